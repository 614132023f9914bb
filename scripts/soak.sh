#!/usr/bin/env bash
# make soak: run the soak tests of package daemon for SOAK (such as 90s, 10m, 2h). They kill,
# stop and start nodes of a real cluster under load, and then check the history in etcd.
#
# With RATE, the cluster instead executes this many runs per second without disturbance. Memory,
# goroutines and etcd's size must reach a plateau, which is checked in runs of at least 6m. The
# history is kept in memory until the end, about 5 GB for a million runs.
#
# With HOSTILE=1, 10,000 connections without a token try to stop a node. The test reports the
# lateness of runs and the latency of /healthz before and during this.
#
# With RESUMES=1, 10,000 tasks are resumed while 256 shards fire. The test reports the lateness
# of runs.
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
	# Without the race detector, which would change the memory of the program.
	CARILLON_SOAK_RATE=$RATE exec go test -run '^TestPlateau' -count 1 -timeout $((2 * n + 600))s -v ./pkg/daemon
fi
if [[ ${HOSTILE:-} ]]; then
	# Without the race detector, which would change the results.
	exec go test -run '^TestHostileConnections' -count 1 -timeout $((2 * n + 600))s -v ./pkg/daemon
fi
if [[ ${RESUMES:-} ]]; then
	exec go test -run '^TestManyResumes' -count 1 -timeout $((2 * n + 600))s -v ./pkg/daemon
fi
use_race_detector
# shellcheck disable=SC2086 # race is a flag, or nothing
exec go test $race -run '^TestSoak' -count 1 -timeout $((2 * n + 600))s -v ./pkg/daemon
