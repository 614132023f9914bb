#!/usr/bin/env bash
# make test: all tests but those that skip themselves under -short, with the race detector.
#
# make test-cluster ("test.sh cluster"): just those tests, whole. They are stories with whole
# daemons and real processes, and longer forms of others.
#
# TestMutants_AreCaught is make mutants: it needs no race detector and takes a minute.
# Failures are repeated at the end, where they can be seen.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

target=test
[[ ${1:-} != cluster ]] || target=test-cluster

race=${RACE--race}
if [[ -n $race ]]; then
	cc=$(go env CC)
	if ! command -v "${cc%% *}" >/dev/null; then
		die "the race detector needs a C compiler, and \"$cc\" is not in PATH: install gcc (Debian, Ubuntu: apt-get install gcc libc6-dev; Fedora: dnf install gcc), or do without: make $target RACE="
	fi
	[[ $(go env CGO_ENABLED) == 1 ]] || die "the race detector needs cgo, and CGO_ENABLED is not 1: set it, or do without: make $target RACE="
fi

# Hundreds of etcds write their logs, and no test here cares for what a disk does: they
# write into memory, where there is enough of it, and where programs may be run.
in_memory() {
	[[ -z ${TMPDIR:-} && -w /dev/shm ]] || return 1
	(($(df --output=avail -k /dev/shm | tail -1) > 8 << 20)) || return 1
	[[ ! $(findmnt -no OPTIONS /dev/shm 2>/dev/null) =~ noexec ]]
}
if in_memory; then
	TMPDIR=$(mktemp -d /dev/shm/c.XXXX) # short: a socket's path may have 107 bytes
	chmod 1777 "$TMPDIR"                # as /tmp is: tests run programs as other users
	export TMPDIR
	trap 'rm -rf "$TMPDIR"' EXIT
fi

# long_tests prints "DIRECTORY TEST" of each test that looks at testing.Short. It must do so
# itself: a helper that did it for several tests would hide them from both targets.
long_tests() {
	# shellcheck disable=SC2086 # packages are words
	go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ${PKG:-./...} | while read -r dir; do
		awk -v dir="$dir" '/^func / { name = "" }
			/^func Test/ { sub(/\(.*/, "", $2); name = $2 }
			/testing\.Short\(\)/ && name == "" { print FILENAME ": testing.Short is used outside a test" >"/dev/stderr"; exit 1 }
			/testing\.Short\(\)/ && !seen[name]++ { print dir, name }' "$dir"/*_test.go || return 1
	done
}

# By default the race detector waits for a second whenever a process exits. Tests are processes, and
# some of them start many more.
export GORACE=${GORACE-atexit_sleep_ms=0}

# What lint vets is not vetted again.
flags=(-vet=off -timeout "${TEST_TIMEOUT:-25m}")
packages=${PKG:-./...}
if [[ $target == test ]]; then
	# Tests wait about as long as they compute.
	flags+=(-short -skip '^TestMutants_AreCaught$' -p "$((2 * $(nproc)))")
else
	long=$(long_tests)
	[[ -n $long ]] || die "no test of ${PKG:-./...} looks at testing.Short"
	# The packages with the most long tests first: the others are tested beside them.
	packages=$(cut -d' ' -f1 <<<"$long" | sort | uniq -c | sort -rn | awk '{ print $2 }')
	flags+=(-run "^($(cut -d' ' -f2 <<<"$long" | sort -u | paste -sd'|'))\$")
fi

mkdir -p build
log=build/$target.log
status=0
# shellcheck disable=SC2086 # flags and packages are words
go test $race "${flags[@]}" ${TEST_FLAGS:-} $packages 2>&1 | grep --line-buffered -v '\[no test files\]' | tee "$root/$log" || status=${PIPESTATUS[0]}
((status == 0)) || {
	say
	say "What failed (all of it: $log):"
	grep -E '^[[:space:]]*--- FAIL:|^FAIL[[:space:]]|^panic:|WARNING: DATA RACE|\[(build|setup) failed\]' "$root/$log" | awk '!seen[$0]++' | sed 's/^/  /' || true
	say "make $target: FAILED"
	exit "$status"
}
say "make $target: ok"
