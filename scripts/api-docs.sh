#!/usr/bin/env bash
# api-docs.sh [FILE]: write the page of the HTTP API, by default build/docs/api.md, from the OpenAPI document.
# Part of make docs and of packages.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

page=$(realpath -m "${1:-build/docs/api.md}")
mkdir -p "$(dirname "$page")"

# The test runs on this host, also in a build for another architecture.
env -u GOARCH -u GOARM CGO_ENABLED=0 go test -vet=off -count=1 -run '^TestPage_' ./pkg/internal/api -page "$page" >/dev/null ||
	die "cannot write $page: run go test -run TestPage_ ./pkg/internal/api"
say "wrote ${page#"$root/"}"
