#!/bin/sh
# Before RPM removes a version. It passes the number of versions that remain: an upgrade leaves the daemon running.
set -e

if [ "$1" = 0 ] && [ -d /run/systemd/system ]; then
	systemctl disable --now carillon.service || true
	systemctl stop carillon.socket || true
fi
