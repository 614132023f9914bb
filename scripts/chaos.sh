#!/usr/bin/env bash
# make chaos: inject faults into a cluster of real daemons and three etcd members for
# DURATION (such as 90s, 20m, 1h), then check its history. SEED selects the faults.
# FAULTS=kill-all,herd uses only these faults. With HOLD=5m, each fault lasts five minutes.
# CHAOS_MUTANT=name runs daemons with a mutant, to test the checks. See docs/internals/chaos.md.
#
# The race detector is off; the short run in `make test-cluster` uses it. The history is kept
# in memory until the end, about 300 MB for 20 minutes. The results are in
# build/chaos-SEED.json and build/chaos-SEED.log.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need_linux

duration=${DURATION:-5m} seed=${SEED:-1}
[[ $duration =~ ^([0-9]+)([smh])$ ]] || die "DURATION=$duration: use 90s, 20m or 1h"
n=${BASH_REMATCH[1]}
case ${BASH_REMATCH[2]} in
m) n=$((n * 60)) ;;
h) n=$((n * 3600)) ;;
esac
[[ $seed =~ ^[0-9]+$ ]] || die "SEED=$seed: must be a whole number"

mkdir -p build
log=build/chaos-$seed.log
export CARILLON_CHAOS_DURATION=$duration CARILLON_CHAOS_SEED=$seed CARILLON_CHAOS_FAULTS=${FAULTS:-} CARILLON_CHAOS_HOLD=${HOLD:-}
export CARILLON_CHAOS_REPORT=$root/build/chaos-$seed.json
run=(go test -run '^TestChaos_PromisesHold$' -count 1 -timeout $((n + 900))s -v)
if [[ -n ${CHAOS_MUTANT:-} ]]; then
	go run ./pkg/internal/test/mutant/overlay build/_mutants
	run+=(-overlay build/_mutants/overlay.json)
fi
run+=(./pkg/internal/test/chaos)
# One of the faults mounts a small disk. In a mount namespace, it disappears when the run ends.
if ((EUID == 0)) && unshare --mount true 2>/dev/null; then run=(unshare --mount "${run[@]}"); fi
status=0
"${run[@]}" 2>&1 | tee "$log" || status=${PIPESTATUS[0]}
((status == 0)) || die "failed: see $log; to repeat the same faults: make chaos SEED=$seed DURATION=$duration"
