#!/bin/sh
# After an installation or upgrade of the RPM or Alpine package.
set -e

# Members of this group may use the socket of the API, so they are administrators.
if ! grep -q '^carillon:' /etc/group; then
	groupadd --system carillon 2>/dev/null || addgroup -S carillon
fi

# RPM passes the number of installed versions: 2 for an upgrade. A node whose settings are invalid is not restarted.
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
	if [ "$1" = 2 ] && carillon agent --config /etc/carillon/agent.yaml --check-config >/dev/null; then
		timeout 60 systemctl try-restart carillon.service || echo "carillon: not ready yet; the service keeps trying: systemctl status carillon" >&2
	fi
fi
