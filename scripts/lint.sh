#!/usr/bin/env bash
# make lint: run all checks, even if one fails. Lists the failed ones at the end.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

bad=()
check() { # NAME COMMAND...
	local name=$1
	shift
	if "$@"; then say "ok      $name"; else
		say "FAILED  $name"
		bad+=("$name")
	fi
}

format() {
	local files
	files=$(gofmt -l . | grep -v '^build/' || true)
	[[ -z $files ]] || {
		say "not formatted with gofmt:"
		sed 's/^/  /' <<<"$files"
		return 1
	}
}

# static_check: it runs for a minute, so it needs no garbage collection until it uses two gigabytes of
# memory, as compilers (see GOFLAGS in Makefile).
static_check() { GOGC=off GOMEMLIMIT=2GiB go tool staticcheck ./...; }

check "gofmt" format
# No file is left out because of these tags, so one call checks all files of this platform.
check "go vet" go vet -tags upgrade,browser ./...
check "staticcheck" static_check
check "docs" bash scripts/docs.sh
check "guarantees" bash scripts/guarantees.sh --check
check "layers" go run ./scripts/layers
if ((${#bad[@]} > 0)); then
	say "make lint: FAILED: ${bad[*]}"
	exit 1
fi
say "make lint: ok"
