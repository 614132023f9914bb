#!/usr/bin/env bash
# make shadow: run a real cron and a node next to each other for MINUTES. cron runs a crontab,
# and the node imports it with --shadow and records its ticks. Each line writes the minutes in
# which it ran. The script makes a log of them, and `carillon import compare` compares it with the
# ticks.
#
# Requires root, unshare, mount, and Debian's cron. CRON is the path of cron, for example in an
# unpacked package (apt-get download cron; dpkg-deb -x). cron runs in its own mount and pid
# namespaces, with its own spool and /etc/crontab, so it does not run the crontabs of this host
# or change anything on it. All data is in build/shadow.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need_linux

carillon=$root/build/carillon
minutes=${MINUTES:-10}
cron=${CRON:-$(command -v cron || true)}
[[ -x $carillon ]] || die "build/carillon is missing: run \`make shadow\`, or \`make build\` first"
[[ $minutes =~ ^[1-9][0-9]*$ ]] || die "MINUTES=$minutes: must be a whole number"
[[ $(id -u) == 0 ]] || die "requires root, because cron runs as root in its own namespaces"
[[ -n $cron && -x $cron ]] || die "cron not found: set CRON=/path/to/cron (apt-get download cron && dpkg-deb -x cron_*.deb unpacked)"
unshare --mount true 2>/dev/null || die "cannot create namespaces (unshare --mount)"
unset "${!CARILLON_@}" 2>/dev/null || true

dir=$root/build/shadow
rm -rf "$dir"
mkdir -p "$dir/config" "$dir/ran" "$dir/spool/crontabs"
log=$dir/dev.log
: >"$log"

# The crontab: each line writes the minute to its own file. If a task were not a shadow, its
# minutes would appear twice.
crontab=$dir/spool/crontabs/root
write() { printf '%s date +\\%%FT\\%%H:\\%%M >> %s/ran/%s\n' "$1" "$dir" "$2"; }
{
	printf 'SHELL=/bin/sh\nMAILTO=""\n\n'
	printf '# every minute\n'
	write '* * * * *' every
	write '*/2 * * * *' even
	write '1-59/3 * * * *' third
	write '0,7,14,21,28,35,42,49,56 * * * *' listed
	write '* * * JAN-DEC sun,Mon-sat' named
	write '* * 1-31/2 * *' odd-days
	write '*/5 * */2 * 1-5' both-days
	write '* * 31 12 7' either-day
	write '* 0-23/2 * * *' even-hours
	write '@hourly' hourly
	write '@daily' daily
	printf '* * * * * cat >> %s/input; date +\\%%FT\\%%H:\\%%M >> %s/ran/input%%a line%%another\n' "$dir" "$dir"
} >"$crontab"
chmod 600 "$crontab"

pid= cronpid=
stop() {
	trap '' INT TERM HUP
	# unshare ignores SIGTERM. Its children end with it.
	if alive "$cronpid" unshare; then kill -KILL "$cronpid"; fi
	if [[ -n $pid ]]; then
		end "$pid" "--data-dir $dir" 20
		until_true 10 no_guardians "$dir" || say "the guardian is still running: $(guardians "$dir" | tr '\n' ' ')"
	fi
	pid= cronpid=
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

start "$log" "" env XDG_CONFIG_HOME="$dir/config" "$carillon" dev --data-dir "$dir" --listen 127.0.0.1:0
node=$pid
address=
up() {
	alive "$node" "--data-dir $dir" || return 0
	address=$(sed -n 's|^Carillon .* is up: http://\([^ ]*\).*|\1|p' "$log")
	[[ -n $address ]] && ready "$address"
}
until_true 30 up || die "the node is not ready after 30 s; see $log"
alive "$node" "--data-dir $dir" || die "the node has exited; see $log"
export CARILLON_SERVER=http://$address CARILLON_TOKEN_FILE=$dir/token

# --keep: enough runs for a tick in every minute.
import() { "$carillon" import crontab "$crontab" --shadow --any-node --keep 5000 "$@"; }
import
import -q -o json | grep -q '"result": "configured"\|"result": "created"' && die "a second import changed tasks"

# cron sees only the spool in dir, no other crontab, and its own /run.
cronlog=$dir/cron.log
start "$cronlog" "" unshare --mount --pid --fork --kill-child --mount-proc --propagation private bash -euc '
	mount -t tmpfs none /run
	mkdir -p /run/etc /var/spool/cron
	mount --bind "$1/spool" /var/spool/cron
	if [[ -d /etc/cron.d ]]; then mount --bind /run/etc /etc/cron.d; fi
	if [[ -e /etc/crontab ]]; then mount --bind /dev/null /etc/crontab; fi
	exec "$2" -f -L 1
' shadow "$dir" "$cron"
cronpid=$pid pid=$node

# Compare whole minutes, from the first one after both have started. Both schedule in the time
# zone of the host. The recorded minutes are in UTC.
sleep 1
alive "$cronpid" unshare || die "cron has exited: $(tail -n 3 "$cronlog")"
first=$((($(date +%s) / 60 + 1) * 60))
last=$((first + (minutes - 1) * 60))
say "cron and the node are running; comparing the minutes from $(date -d "@$first" +%H:%M) to $(date -d "@$last" +%H:%M)"
while (($(date +%s) < last + 20)); do
	sleep 5
	alive "$cronpid" unshare || die "cron has exited: $(tail -n 3 "$cronlog")"
	alive "$node" "--data-dir $dir" || die "the node has exited; see $log"
done

# The log: what cron would have written to syslog, from the times at which the lines ran. All lines
# but one have the same command. It has a line without a job at the beginning and at the end.
host=$(hostname)
log_line() { printf '%s %s CRON[1]: %s\n' "$(date -u -d "$1" +%FT%H:%M:%SZ)" "$host" "$2"; }
{
	log_line "@$first" begin
	for file in "$dir"/ran/*; do
		command="date +%FT%H:%M >> $file"
		if [[ ${file##*/} == input ]]; then command="cat >> $dir/input; $command"; fi
		while read -r minute; do log_line "$(date -d "$minute")" "(root) CMD ($command)"; done <"$file"
	done
	log_line "@$last" end
} >"$dir/cron.syslog"

status=0
"$carillon" import compare "$dir/cron.syslog" --since "$(date -u -d "@$first" +%FT%H:%M:%SZ)" --until "$(date -u -d "@$((last + 60))" +%FT%H:%M:%SZ)" || status=$?
others=$("$carillon" run list -o jsonl | grep -cvF '"reason":"shadow"' || true)
((status == 0 && others == 0)) || die "cron and the shadow differ, or $others runs did not come from shadows; see $dir"
