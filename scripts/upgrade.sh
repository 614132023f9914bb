#!/usr/bin/env bash
# make upgrade: build Carillon from the commit FROM, upgrade a cluster of three nodes from it to
# the current version under load, node by node, and back, and check the history. The current
# version emulates one with the next record format, which FROM does not understand.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

[[ ${FROM:-} ]] || die "set FROM to the commit to upgrade from: make upgrade FROM=HEAD~100"
from=$(git -C "$root" rev-parse --verify --short "$FROM^{commit}") || die "FROM=$FROM is not a commit"
former=$root/build/former/$from
if [[ ! -x $former/carillon ]]; then
	say "building $from"
	mkdir -p "$former/src"
	git -C "$root" archive "$from" | tar -x -C "$former/src"
	(cd "$former/src" && go build -buildvcs=false -o "$former/carillon" ./cmd/carillon)
	rm -rf "${former:?}/src"
fi
cd "$root"
use_race_detector
# shellcheck disable=SC2086 # race is a flag, or nothing
CARILLON_FORMER=$former/carillon go test $race -count=1 -timeout "${TEST_TIMEOUT:-10m}" -tags upgrade ./pkg/daemon -run TestUpgrade -v
