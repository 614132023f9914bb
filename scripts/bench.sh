#!/usr/bin/env bash
# make bench: run the Go benchmarks of all packages that have some.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

packages=${PKG:-./...}
if [[ $packages == ./... ]]; then
	packages=$(grep -rlE --include='*_test.go' --exclude-dir=build '^func Benchmark' . | xargs -r -n 1 dirname | sort -u)
	[[ -n $packages ]] || die "no benchmarks found"
fi
# shellcheck disable=SC2086 # packages are words
exec go test -run '^$' -bench "${BENCH:-.}" -benchtime "${BENCHTIME:-1s}" -benchmem -timeout 60m $packages
