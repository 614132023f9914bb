#!/usr/bin/env bash
# make test: run all tests with the race detector, except those that -short skips.
#
# make test-cluster ("test.sh cluster"): run only the tests that -short skips. They use whole
# daemons and real processes, or are longer forms of other tests.
#
# TestMutants_AreCaught is run by make mutants, because it takes a minute and does not need the
# race detector. Failures are printed again at the end.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

target=test
[[ ${1:-} != cluster ]] || target=test-cluster

use_race_detector

# Tests start hundreds of etcds, and none of them depends on a disk. So use a file system in
# memory if it is large enough and allows programs to be executed.
in_memory() {
	[[ -z ${TMPDIR:-} && -w /dev/shm ]] || return 1
	(($(df --output=avail -k /dev/shm | tail -1) > 8 << 20)) || return 1
	[[ ! $(findmnt -no OPTIONS /dev/shm 2>/dev/null) =~ noexec ]]
}
if in_memory; then
	TMPDIR=$(mktemp -d /dev/shm/c.XXXX) # short, because the path of a socket has at most 107 bytes
	chmod 1777 "$TMPDIR"                # like /tmp, because tests run programs as other users
	export TMPDIR
	trap 'rm -rf "$TMPDIR"' EXIT
fi

# long_tests prints "DIRECTORY TEST" for each test that calls testing.Short. A test must call it
# directly: if a helper did, neither target would run the test.
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
	# Do not vet again: lint does this. TEST_FLAGS are words.
	# shellcheck disable=SC2086
	go test -vet=off -timeout "${TEST_TIMEOUT:-25m}" ${TEST_FLAGS:-} "$@" 2>&1 | grep --line-buffered -v '\[no test files\]' | tee -a "$log" || ((PIPESTATUS[0] == 0)) || status=1
}

if [[ $target == test ]]; then
	# Start the slowest packages first, so that the others are compiled and tested at the same time.
	# Tests wait about as long as they compute, so run twice as many as there are processors.
	# shellcheck disable=SC2086 # packages are words
	run_tests $race -short -skip '^TestMutants_AreCaught$' -p "$((2 * $(nproc)))" ${PKG:-./pkg/daemon ./pkg/internal/testkit/sim ./executor ./...}
else
	long=$(long_tests)
	[[ -n $long ]] || die "no test of ${PKG:-./...} uses testing.Short"
	names="^($(cut -d' ' -f2 <<<"$long" | sort -u | paste -sd'|'))\$"

	# Start the packages with the most long tests first. The tests of schedules and imports compute
	# years in one goroutine. The race detector would make them ten times slower, for no benefit.
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
