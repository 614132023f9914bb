#!/bin/sh
# Collect the crontabs of hosts over ssh, for: carillon import crontab DIR
#
#   carillon import crontab --collect >collect.sh
#   sh collect.sh DIR HOST...              # HOST is as for ssh, such as web1 or root@web1
#
# HOST must be the name of the host itself. If ssh needs an address or another name, add it to ~/.ssh/config.
#
# The script needs ssh, tar, and root on the hosts: it logs in as root, or uses sudo without a password. SSH_OPTIONS
# can contain options for ssh. It changes nothing on the hosts, and prints no line of a crontab.
#
# DIR/HOST gets /etc/crontab, /etc/anacrontab, /etc/cron.d and the crontabs of users, at their paths. It also gets what
# their import needs to know: the name and the time zone of the host, the names and home directories of its users, and
# which cron it has. Crontabs can contain passwords, so only you can read DIR.
set -u
umask 077

if [ $# -lt 2 ]; then
	echo "usage: sh collect.sh DIR HOST..." >&2
	exit 2
fi
dir=$1
shift
mkdir -p "$dir" || exit 1

# gather runs on the host as root, and writes the files to its output as a tar archive. It contains no single quotes.
gather='
umask 077
cd / || exit 1
copy=$(mktemp -d) || exit 1
trap "rm -rf \"\$copy\"" EXIT
mkdir -p "$copy/etc" "$copy/usr/sbin"

for file in etc/crontab etc/anacrontab etc/debian_version etc/cron.d/* var/spool/cron/* var/spool/cron/crontabs/* var/spool/cron/tabs/*; do
	if [ -f "$file" ]; then
		mkdir -p "$copy/${file%/*}" && cat "$file" >"$copy/$file" || exit 1
	fi
done

uname -n >"$copy/etc/hostname"
if command -v crond >/dev/null 2>&1; then : >"$copy/usr/sbin/crond"; fi
{ getent passwd 2>/dev/null || cat etc/passwd; } | sed "s/^\([^:]*\):[^:]*:\([^:]*:[^:]*\):[^:]*:/\1:x:\2::/" >"$copy/etc/passwd"

# The time zone of cron: its own TZ, or that of the host.
zone=
for pidfile in run/crond.pid run/cron.pid var/run/crond.pid; do
	if [ -z "$zone" ] && [ -r "$pidfile" ]; then
		zone=$(tr "\000" "\n" <"proc/$(cat "$pidfile")/environ" 2>/dev/null | sed -n "s/^TZ=:*//p")
	fi
done
link=$(readlink etc/localtime 2>/dev/null)
if [ -n "$zone" ]; then
	:
elif [ "${link#*/zoneinfo/}" != "$link" ]; then
	zone=${link#*/zoneinfo/}
elif [ -s etc/timezone ]; then
	zone=$(cat etc/timezone)
elif [ ! -e etc/localtime ]; then
	zone=UTC
fi
if [ -n "$zone" ]; then printf "%s\n" "$zone" >"$copy/etc/timezone"; fi

# The last file shows that nothing is missing.
: >"$copy/complete"
cd "$copy" && tar -cf - etc usr $(if [ -d var ]; then echo var; fi) complete
'

failed=
for host in "$@"; do
	name=${host#*@}
	case $host in
	-*) echo "$host: is not the name of a host" >&2; exit 2 ;;
	esac
	case $name in
	'' | .* | */*) echo "$host: is not the name of a host" >&2; exit 2 ;;
	esac

	# A host that cannot be read keeps what an earlier call collected. The archive is complete if ssh, and so gather, ends
	# without an error, and all of it can be extracted.
	new=$dir/.$name.new
	rm -rf "$new" "$new.tar"
	mkdir "$new" || exit 1
	if ! printf '%s\n' "gather='$gather'" 'if [ "$(id -u)" -eq 0 ]; then sh -c "$gather"; else sudo -n sh -c "$gather"; fi' |
		ssh -T ${SSH_OPTIONS-} "$host" sh -s >"$new.tar" ||
		! tar -xof "$new.tar" --no-same-permissions -C "$new" || [ ! -f "$new/complete" ]; then
		echo "$name: could not be read" >&2
		rm -rf "$new" "$new.tar"
		failed="$failed $name"
		continue
	fi
	rm -f "$new.tar"

	# gather sends only files and directories. A link could lead to files of this host.
	if [ -n "$(find "$new" ! -type f ! -type d)" ]; then
		echo "$name: sent something other than files and directories" >&2
		rm -rf "$new"
		failed="$failed $name"
		continue
	fi

	rm -rf "$new/complete" "${dir:?}/$name"
	mv "$new" "$dir/$name" || exit 1
	zone=unknown
	if [ -s "$dir/$name/etc/timezone" ]; then zone=$(head -c 64 "$dir/$name/etc/timezone" | tr -cd 'A-Za-z0-9/_+-'); fi
	crontabs=$(cd "$dir/$name" && find etc/crontab etc/anacrontab etc/cron.d var -type f 2>/dev/null | wc -l)
	echo "$name: $((crontabs)) crontabs, time zone $zone"
done

if [ -n "$failed" ]; then
	echo "not collected:$failed" >&2
	exit 1
fi
