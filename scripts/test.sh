#!/usr/bin/env bash
# make test: all tests, with the race detector, but for those of `make mutants`,
# which need none and take a minute. What failed is told once more at the end,
# where it can be seen.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

race=${RACE--race}
if [[ -n $race ]]; then
	cc=$(go env CC)
	if ! command -v "${cc%% *}" >/dev/null; then
		die "the race detector needs a C compiler, and \"$cc\" is not in PATH: install gcc (Debian, Ubuntu: apt-get install gcc libc6-dev; Fedora: dnf install gcc), or do without: make test RACE="
	fi
	[[ $(go env CGO_ENABLED) == 1 ]] || die "the race detector needs cgo, and CGO_ENABLED is not 1: set it, or do without: make test RACE="
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
	chmod 1777 "$TMPDIR" # as /tmp is: tests run programs as other users
	export TMPDIR
	trap 'rm -rf "$TMPDIR"' EXIT
fi

mkdir -p build
log=$root/build/test.log
status=0
# shellcheck disable=SC2086 # flags are words
go test $race -timeout "${TEST_TIMEOUT:-15m}" -skip '^TestMutants_AreCaught$' ${TEST_FLAGS:-} ${PKG:-./...} 2>&1 | grep --line-buffered -v '\[no test files\]' | tee "$log" || status=${PIPESTATUS[0]}
((status == 0)) || {
	say
	say "What failed (all of it: build/test.log):"
	grep -E '^[[:space:]]*--- FAIL:|^FAIL[[:space:]]|^panic:|WARNING: DATA RACE|\[(build|setup) failed\]' "$log" | awk '!seen[$0]++' | sed 's/^/  /' || true
	say "make test: FAILED"
	exit "$status"
}
say "make test: ok"
