# What the tests of the package share, inside the container. Sourced by bash.

export DEBIAN_FRONTEND=noninteractive
step() { printf '%s\n' "  $*"; }
fail() {
	printf 'FAILED: %s\n' "$*" >&2
	exit 1
}
eventually() { # SECONDS COMMAND...
	local end=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		((SECONDS < end)) || fail "not within its time: $*"
		sleep 0.2
	done
}
# apt ARGUMENT...: what it says is shown if it fails, and in $said.
apt() {
	said=$(apt-get -o Dpkg::Options::=--force-confold -o Dpkg::Use-Pty=0 -qq -y "$@" </dev/null 2>&1) || fail "apt-get $*: $said"
}

# trace: every path that there is, and what is in those of /etc. Left out is what
# other programs note for themselves: logs, the lists of dpkg and apt, and former versions of
# the lists of groups.
trace() {
	find / \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /mnt -o -path /var/log -o -path /var/cache -o -path /var/lib/apt/lists -o -path /var/tmp \) -prune \
		-o -print | grep -vxE '/var/lib/dpkg/(status|diversions|statoverride)-old|/var/lib/apt/extended_states|/var/lib/dpkg/lock.*|/var/lib/systemd/(timers|timesync).*|/var/lib/systemd/random-seed|/etc/.pwd.lock|/etc/g(roup|shadow)-' | LC_ALL=C sort
	find /etc -type f ! -name 'group-' ! -name 'gshadow-' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
}
no_trace() { # BEFORE
	trace >/tmp/after
	diff "$1" /tmp/after || fail "traces are left"
	! pgrep -x carillon || fail "processes are left"
}
