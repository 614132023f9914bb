#!/usr/bin/env bash
# make stress: run the tests of PKG COUNT times with the race detector, while two loops keep two
# processors busy. TEST_FLAGS='-run X' selects tests. Stops at the first failure.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

loops=()
trap 'kill "${loops[@]}" 2>/dev/null || true' EXIT
for _ in 1 2; do
	# The loop ends when its parent, the shell that runs this, ends.
	(while kill -0 $$ 2>/dev/null; do for ((i = 0; i < 100000; i++)); do :; done; done) &
	loops+=($!)
done

TEST_FLAGS="-failfast -count ${COUNT:-20} ${TEST_FLAGS:-}" TEST_TIMEOUT=2h bash scripts/test.sh
say "make stress: ok"
