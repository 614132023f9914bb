# Shared functions. Source this file in bash.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"

say() { printf '%s\n' "$*"; }
die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

# use_race_detector: set race to go test's flag, or to nothing if RACE is empty.
use_race_detector() {
	race=${RACE--race}
	[[ -n $race ]] || return 0
	local cc
	cc=$(CGO_ENABLED=1 go env CC)
	command -v "${cc%% *}" >/dev/null ||
		die "the race detector needs a C compiler, and \"$cc\" is not in PATH: install gcc (Debian, Ubuntu: apt-get install gcc libc6-dev; Fedora: dnf install gcc), or turn it off: RACE="
	export CGO_ENABLED=1

	# By default, the race detector waits for a second when a process exits. Tests start many
	# processes.
	export GORACE=${GORACE-atexit_sleep_ms=0}
}

# need_linux: fail unless this is Linux, which agents require.
need_linux() { [[ $(uname -s) == Linux ]] || die "carillon's nodes run on Linux; this is $(uname -s)"; }

# taken PORT: does a process listen on this port of 127.0.0.1?
taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# ready HOST:PORT: does the node at this address report that it is ready?
ready() {
	local line
	line=$(
		exec 2>/dev/null 3<>"/dev/tcp/${1%:*}/${1##*:}" || exit 1
		printf 'GET /readyz HTTP/1.0\r\nHost: %s\r\n\r\n' "$1" >&3
		IFS= read -r -t 3 status <&3 && printf '%s' "$status"
	) || return 1
	[[ $line == *' 200 '* ]]
}

# until_true SECONDS COMMAND...: run the command until it succeeds. Return 1 after SECONDS.
until_true() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		((SECONDS < end)) || return 1
		sleep 0.2
	done
}

# start LOG PIDFILE COMMAND...: start a process in its own process group, so that Ctrl-C in this
# terminal does not stop it. Sets $pid, and writes it to PIDFILE unless that is "".
start() {
	local log=$1 file=$2
	shift 2
	set -m
	"$@" </dev/null >>"$log" 2>&1 &
	pid=$!
	set +m
	disown "$pid" 2>/dev/null || true
	[[ -z $file ]] || echo "$pid" >"$file"
}

# alive PID MARK: is this process running, and does its command line contain MARK? The pid may
# have been reused. A process that was just started has the command line of its shell until it
# executes its program, and none while it does so. So look again for half a second.
alive() {
	local state try
	for try in 1 2 3 4 5 6; do
		[[ -n $1 && -r /proc/$1/cmdline ]] || return 1
		state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null) || return 1
		[[ -n $state && $state != Z ]] || return 1
		[[ $(tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null) != *"$2"* ]] || return 0
		((try == 6)) || sleep 0.1
	done
	return 1
}

dead() { ! alive "$@"; }

# end PID MARK SECONDS: send SIGTERM, wait, then send SIGKILL. A second SIGTERM stops a node
# immediately, so pass a fourth argument if you have already sent one.
end() {
	alive "$1" "$2" || return 0
	[[ -n ${4:-} ]] || kill -TERM "$1" 2>/dev/null || true
	until_true "$3" dead "$1" "$2" && return 0
	say "process $1 did not exit within $3 s of SIGTERM; killing it"
	kill -KILL "$1" 2>/dev/null || true
	until_true 5 dead "$1" "$2"
}

# guardians DIR...: print the pids of the guardians of these data directories. A guardian keeps
# guardian.lock open. Its command line does not contain the directory.
guardians() {
	local dir fd
	for dir in "$@"; do
		[[ -e $dir/guardian.lock ]] || continue
		for fd in $(find /proc/[0-9]*/fd -lname "$dir/guardian.lock" 2>/dev/null); do
			fd=${fd#/proc/}
			say "${fd%%/*}"
		done
	done | sort -u
}

no_guardians() { [[ -z $(guardians "$@") ]]; }
