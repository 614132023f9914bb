#!/usr/bin/env bash
# make chaos: the tests that hurt a real cluster, CHAOS_COUNT times. They are the
# tests of package daemon that are named TestChaos…; while there are none, those
# that kill, stop and freeze real nodes (TestDaemon…, TestSoak…). CHAOS_RUN, an
# expression for go test -run, chooses others.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

count=${CHAOS_COUNT:-3}
[[ $count =~ ^[1-9][0-9]*$ ]] || die "CHAOS_COUNT=$count: must be a whole number from 1"
names=$(grep -rhoE --include='*_test.go' '^func Test[A-Za-z0-9_]+' pkg/daemon | sed 's/func //')
run=${CHAOS_RUN:-}
if [[ -z $run ]]; then
	if grep -q '^TestChaos' <<<"$names"; then run='^TestChaos'; else
		run='^Test(Daemon|Soak)'
		say "there are no TestChaos… yet: running the tests of failover, CHAOS_COUNT times"
	fi
fi
matching=$(grep -E "$run" <<<"$names" | grep -v '^TestMain$' || true)
[[ -n $matching ]] || die "no test of pkg/daemon matches $run"
say "$count times each:"
sed 's/^/  /' <<<"$matching"
# shellcheck disable=SC2086 # RACE is a flag, or none
exec go test ${RACE--race} -run "$run" -count "$count" -failfast -timeout $((count * 15))m -v ./pkg/daemon
