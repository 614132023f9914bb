#!/usr/bin/env bash
# make soak: the soak tests of package daemon, for SOAK (such as 90s, 10m, 2h): a
# real cluster under load while its nodes are killed, stopped and started; then
# the history in etcd is judged.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

soak=${SOAK:-2m}
[[ $soak =~ ^([0-9]+)([smh])$ ]] || die "SOAK=$soak: write 90s, 10m or 2h"
n=${BASH_REMATCH[1]}
case ${BASH_REMATCH[2]} in
m) n=$((n * 60)) ;;
h) n=$((n * 3600)) ;;
esac
# shellcheck disable=SC2086 # RACE is a flag, or none
CARILLON_SOAK=$soak exec go test ${RACE--race} -run '^TestSoak' -count 1 -timeout $((2 * n + 600))s -v ./pkg/daemon
