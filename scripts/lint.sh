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

check "gofmt" format
check "go vet" go vet ./...
check "go vet, upgrade" go vet -tags upgrade ./pkg/daemon
check "go vet, browser" go vet -tags browser ./pkg/internal/ui/browsertest
check "staticcheck" go tool staticcheck ./...
check "docs" bash scripts/docs.sh
check "guarantees" bash scripts/guarantees.sh --check
check "layers" go run ./scripts/layers
if ((${#bad[@]} > 0)); then
	say "make lint: FAILED: ${bad[*]}"
	exit 1
fi
say "make lint: ok"
