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

use_race_detector

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

mkdir -p build
log=$root/build/$target.log
: >"$log"
status=0

# run_tests FLAG|PACKAGE...
run_tests() {
	# What lint vets is not vetted again. TEST_FLAGS are words.
	# shellcheck disable=SC2086
	go test -vet=off -timeout "${TEST_TIMEOUT:-25m}" ${TEST_FLAGS:-} "$@" 2>&1 | grep --line-buffered -v '\[no test files\]' | tee -a "$log" || ((PIPESTATUS[0] == 0)) || status=1
}

if [[ $target == test ]]; then
	# The packages that take longest come first: the others are compiled and tested beside them. Tests
	# wait about as long as they compute, so there are twice as many at once as processors.
	# shellcheck disable=SC2086 # packages are words
	run_tests $race -short -skip '^TestMutants_AreCaught$' -p "$((2 * $(nproc)))" ${PKG:-./pkg/daemon ./pkg/internal/testkit/sim ./executor ./...}
else
	long=$(long_tests)
	[[ -n $long ]] || die "no test of ${PKG:-./...} uses testing.Short"
	names="^($(cut -d' ' -f2 <<<"$long" | sort -u | paste -sd'|'))\$"

	# Those with the most long tests come first. Schedules and imports are calculated over years, by
	# one goroutine: the race detector would make that ten times slower, and find nothing.
	by_count=$(cut -d' ' -f1 <<<"$long" | sort | uniq -c | sort -rn | awk '{ print $2 }')
	mapfile -t calculating < <(grep -E '/pkg/internal/(importer|schedule)$' <<<"$by_count" || true)
	mapfile -t others < <(grep -vE '/pkg/internal/(importer|schedule)$' <<<"$by_count" || true)
	((${#calculating[@]} == 0)) || CGO_ENABLED=0 run_tests -run "$names" "${calculating[@]}"
	((${#others[@]} == 0)) || run_tests $race -run "$names" "${others[@]}"
fi

((status == 0)) || {
	say
	say "Failures (full output: ${log#"$root"/}):"
	grep -E '^[[:space:]]*--- FAIL:|^FAIL[[:space:]]|^panic:|WARNING: DATA RACE|\[(build|setup) failed\]' "$log" | awk '!seen[$0]++' | sed 's/^/  /' || true
	say "make $target: FAILED"
	exit "$status"
}
say "make $target: ok"
