#!/usr/bin/env bash
# make test: run all tests, except those that -short skips. Packages with goroutines run with the
# race detector, all others without it (see has_goroutines below). Some run both ways (see twice).
#
# make test-cluster ("test.sh cluster"): run only the tests that -short skips. They use whole
# daemons and real processes, with the race detector, or are longer forms of other tests.
#
# Tests with mutants skip themselves here: make mutants builds them. Failures are printed again at
# the end.
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

# Tests start etcd as a process. Without this variable, each package with such tests calls the go command.
mkdir -p build
CGO_ENABLED=0 go build -o build/test-etcd ./pkg/internal/test/etcd
export CARILLON_TEST_ETCD=$root/build/test-etcd

# A test that has read this variable runs again if the program has changed, also if its result is cached.
CARILLON_TEST_ETCD_ID=$(go tool buildid build/test-etcd)
export CARILLON_TEST_ETCD_ID

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

log=$root/build/$target.log
: >"$log"
status=0

# run_tests FLAG|PACKAGE...
run_tests() {
	# Do not vet again: lint does this. TEST_FLAGS are words.
	# shellcheck disable=SC2086
	go test -vet=off -timeout "${TEST_TIMEOUT:-25m}" ${TEST_FLAGS:-} "$@" 2>&1 | grep --line-buffered -v '\[no test files\]' | tee -a "$log" || ((PIPESTATUS[0] == 0)) || status=1
}

# has_goroutines DIRECTORY: does a package or its test start goroutines, or synchronize them? If
# not, the race detector would only make its tests five to ten times slower.
has_goroutines() {
	grep -qE '^[[:space:]]*(defer )?go |\.Go\(|"sync(/atomic)?"|"golang.org/x/sync|"net/http/httptest"' "$1"/*.go
}

# run_packages FLAG... -- PACKAGE...: run the tests of packages without goroutines, and of those
# whose paths match $no_race, without the race detector, those of the others with it, and those that
# match $twice both ways. Packages without tests are left out.
run_packages() {
	local flags=() list package dir without=() with=()
	while [[ $1 != -- ]]; do
		flags+=("$1")
		shift
	done
	shift
	list=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' "$@")
	while read -r package dir; do
		if [[ $package =~ $no_race ]] || ! has_goroutines "$dir"; then
			without+=("$package")
		else
			with+=("$package")
			if [[ -n $race && $package =~ $twice ]]; then without+=("$package"); fi
		fi
	done <<<"$list"
	((${#without[@]} == 0)) || CGO_ENABLED=0 run_tests "${flags[@]}" "${without[@]}"
	# Tests wait about as long as they compute, so run more packages than there are processors.
	# shellcheck disable=SC2086 # $race is empty or a flag
	((${#with[@]} == 0)) || run_tests $race -p "$at_once" "${flags[@]}" "${with[@]}"
}

if [[ $target == test ]]; then
	no_race='/pkg/internal/alert$' # random walks of pure functions; only its examples have an HTTP server
	at_once=$((2 * $(nproc)))

	# The tests of these packages are mostly more seeds and cases of the same kind. All of them run
	# without the race detector, and a part with it: see package racetest. Of kv/embedded, it is one
	# test that imports much.
	twice='/pkg/(internal/(authority|schedule|test/sim)|kv/embedded)$'

	# Start the slowest packages first, so that the others are compiled and tested at the same time.
	# shellcheck disable=SC2086 # packages are words
	run_packages -short -- ${PKG:-./pkg/daemon ./pkg/internal/test/sim ./executor ./pkg/internal/api ./pkg/kv ./pkg/store ./pkg/scheduler ./...}
else
	long=$(long_tests)
	[[ -n $long ]] || die "no test of ${PKG:-./...} uses testing.Short"
	names="^($(cut -d' ' -f2 <<<"$long" | sort -u | paste -sd'|'))\$"

	# The long tests of these packages are more seeds, cases and benchmarks of the kinds that make
	# test runs with the race detector. More of them find more mistakes, but hardly more races.
	no_race='/pkg/(internal/(alert|api|authority|schedule|test/sim)|bench|kv|scheduler)$'
	twice='^$'       # none
	at_once=$(nproc) # daemons miss their deadlines on a busy host

	# Start the packages with the most long tests first.
	mapfile -t packages < <(cut -d' ' -f1 <<<"$long" | sort | uniq -c | sort -rn | awk '{ print $2 }')
	run_packages -run "$names" -- "${packages[@]}"
fi

((status == 0)) || {
	say
	say "Failures (full output: ${log#"$root"/}):"
	grep -E '^[[:space:]]*--- FAIL:|^FAIL[[:space:]]|^panic:|WARNING: DATA RACE|\[(build|setup) failed\]' "$log" | awk '!seen[$0]++' | sed 's/^/  /' || true
	say "make $target: FAILED"
	exit "$status"
}
say "make $target: ok"
