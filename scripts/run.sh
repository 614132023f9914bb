#!/usr/bin/env bash
# make run: run one node with an embedded etcd and the tasks in examples/, and show them until
# Ctrl-C. With RUN_SECONDS=15, it stops after this time. RUN_PORT sets the port, and RUN_TASKS
# the files to use instead of examples/.
#
# All data is in build/dev and is used again in the next run. Files of your other nodes are not
# changed.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need_linux

carillon=$root/build/carillon
dir=$root/build/dev
seconds=${RUN_SECONDS:-}
port=${RUN_PORT:-7070}
[[ -x $carillon ]] || die "build/carillon is missing: run \`make run\`, or \`make build\` first"
[[ -z $seconds || $seconds =~ ^[0-9]+$ ]] || die "RUN_SECONDS=$seconds: must be a whole number of seconds"
[[ $port =~ ^[0-9]+$ ]] || die "RUN_PORT=$port: must be a port"
if [[ $port != 0 ]] && taken "$port"; then
	[[ -z ${RUN_PORT:-} ]] || die "port $port is in use; choose another RUN_PORT, or unset it"
	say "port $port is in use; using a free one"
	port=0
fi
# Unset the caller's settings for other clusters.
unset "${!CARILLON_@}" 2>/dev/null || true

mkdir -p "$dir/config"
log=$dir/dev.log
: >"$log"
rm -f "$dir/env"

pid=
stop() {
	trap '' INT TERM HUP
	[[ -n $pid ]] || return 0
	say
	say "stopping"
	end "$pid" "--data-dir $dir" 20
	rm -f "$dir/env"
	until_true 10 no_guardians "$dir" || say "the guardian is still running: $(guardians "$dir" | tr '\n' ' ')"
	pid=
}
trap stop EXIT
trap 'exit 0' INT # the normal end
trap 'exit 143' TERM HUP

# dev writes its token below XDG_CONFIG_HOME. Do not overwrite the user's token.
start "$log" "" env XDG_CONFIG_HOME="$dir/config" "$carillon" dev --data-dir "$dir" --listen "127.0.0.1:$port"

failed() {
	say "--- the end of $log" >&2
	tail -n 20 "$log" >&2
	die "$1"
}

address=
up() {
	alive "$pid" "--data-dir $dir" || return 0 # reported below
	address=$(sed -n 's|^Carillon .* is up: http://\([^ ]*\).*|\1|p' "$log")
	[[ -n $address ]] && ready "$address"
}
until_true 30 up || failed "the node is not ready after 30 s"
alive "$pid" "--data-dir $dir" || failed "the node has exited"

cat >"$dir/env" <<END
# For a shell: . build/dev/env
export PATH="$root/build:\$PATH"
export CARILLON_SERVER=http://$address
export CARILLON_TOKEN_FILE="$dir/token"
export ETCDCTL_ENDPOINTS=$(sed -n 's/^ *etcdctl --endpoints \([^ ]*\) .*/\1/p' "$log")
END
. "$dir/env"

say "The node runs at http://$address. Data: build/dev; log: build/dev/dev.log."
say "In another terminal:   . build/dev/env   and then   carillon task list"
# The link works once, within ten minutes. It is not written to the log, which other users can read.
link=$(carillon ui --print 2>/dev/null) || link="carillon ui"
say "Web UI, logged in: $link"
say
carillon apply -f "${RUN_TASKS:-examples/}"
say

show() {
	carillon task list -A 2>&1 || true
	printf '\n'
	carillon run list -A --limit "${1:-12}" 2>&1 || true
}

runs_shown() { # print the number of runs that fit below the tasks
	local lines
	lines=$(stty size 2>/dev/null | cut -d' ' -f1) || true
	lines=$((${lines:-24} - 21))
	echo $((lines < 5 ? 5 : lines))
}

if [[ -t 1 && -z $seconds ]]; then
	sleep 2
	while alive "$pid" "--data-dir $dir"; do
		screen=$(show "$(runs_shown)")
		((SECONDS < 600)) || link="carillon ui"
		printf '\033[H\033[2J%s\n\nWeb UI: %s\nhttp://%s · press Ctrl-C to stop · in another terminal: . build/dev/env\n' "$screen" "$link" "$address"
		sleep 2
	done
else
	began=$SECONDS
	while alive "$pid" "--data-dir $dir" && { [[ -z $seconds ]] || ((SECONDS - began < seconds)); }; do
		sleep 5
		printf '%s\n' "--- after $((SECONDS - began)) s"
		show 8
	done
fi
alive "$pid" "--data-dir $dir" || failed "the node exited unexpectedly"

if [[ -n $seconds ]]; then
	count=$(carillon run list -A -o name | wc -l)
	bad=$(carillon run list -A --state failed -o name | wc -l)
	say
	say "$((count)) runs recorded, $((bad)) failed"
	((count > 0)) || die "no task has run in $seconds s"
fi
