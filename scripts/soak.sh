#!/usr/bin/env bash
# make soak: the soak tests of package daemon, for SOAK (such as 90s, 10m, 2h): a
# real cluster under load while its nodes are killed, stopped and started; then
# the history in etcd is judged.
#
# With RATE: so many runs each second instead, while nothing else happens; memory,
# goroutines and etcd's size are to reach a plateau, which is judged from 6m on.
# The history is kept in memory to be judged at the end: some 5 GB a million runs.
#
# With HOSTILE=1: 10,000 connections without a token that do what they can to stop a node;
# figures of its firing and of /healthz, before and meanwhile, are reported.
#
# With RESUMES=1: 10,000 tasks are resumed while 256 shards fire; the lateness of runs is reported.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

soak=${SOAK:-2m}
[[ $soak =~ ^([0-9]+)([smh])$ ]] || die "SOAK=$soak: use 90s, 10m or 2h"
n=${BASH_REMATCH[1]}
case ${BASH_REMATCH[2]} in
m) n=$((n * 60)) ;;
h) n=$((n * 3600)) ;;
esac
export CARILLON_SOAK=$soak
if [[ ${RATE:-} ]]; then
	[[ $RATE =~ ^[1-9][0-9]*$ ]] || die "RATE=$RATE: must be the number of runs per second"
	# Without the race detector: it is the program's own memory that counts.
	CARILLON_SOAK_RATE=$RATE exec go test -run '^TestPlateau' -count 1 -timeout $((2 * n + 600))s -v ./pkg/daemon
fi
if [[ ${HOSTILE:-} ]]; then
	# Without the race detector: figures of the program itself are reported.
	exec go test -run '^TestHostileConnections' -count 1 -timeout $((2 * n + 600))s -v ./pkg/daemon
fi
if [[ ${RESUMES:-} ]]; then
	exec go test -run '^TestManyResumes' -count 1 -timeout $((2 * n + 600))s -v ./pkg/daemon
fi
use_race_detector
# shellcheck disable=SC2086 # race is a flag, or nothing
exec go test $race -run '^TestSoak' -count 1 -timeout $((2 * n + 600))s -v ./pkg/daemon
