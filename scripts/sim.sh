#!/usr/bin/env bash
# make sim: simulate the seeds that have failed before, then SEEDS (100) seeds from SEED (1) on, each with DURATION (1m) of
# faults. Do the same with SEEDS clusters of particular kinds. Then read 1,000 lists of tasks for each of the SEEDS.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

say "the seeds of pkg/internal/test/sim/testdata/seeds.txt, then ${SEEDS:=100} simulations from seed ${SEED:=1}, each with ${DURATION:=1m} of faults"
CARILLON_SIM="$SEED $SEEDS $DURATION" go test -count=1 -timeout 12h -run '^(TestSeeds|TestKinds|TestLists_AreNeverWrongAndComplete)$' ${TEST_FLAGS:-} ./pkg/internal/test/sim
