#!/usr/bin/env bash
# make clean: delete build/, unless a program in it is still running.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

for exe in /proc/[0-9]*/exe; do
	target=$(readlink "$exe" 2>/dev/null) || continue
	[[ $target != "$root/build/"* ]] || die "process $(basename "$(dirname "$exe")") still runs ${target#"$root/"}: stop it first (make cluster-down)"
done
rm -rf "${root:?}/build"
