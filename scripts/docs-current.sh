#!/usr/bin/env bash
# Checks that docs/cli.md matches the help of the commands. Part of make lint.
# (TestAPIPage_IsCurrent compares docs/api.md with the OpenAPI document.)
set -euo pipefail
. "$(dirname "$0")/lib.sh"

mkdir -p build
made=$(mktemp -d "$root/build/docs.XXXXXX")
trap 'rm -rf "$made"' EXIT
status=0

current() { # PAGE
	cmp -s "$made/${1##*/}" "$1" || {
		say "$1 is out of date: run \`make docs\` and review the changes"
		diff "$1" "$made/${1##*/}" 2>/dev/null | head -5 | cut -c1-150 | sed 's/^/  /' || true
		status=1
	}
}

go build -o "$made/carillon" ./cmd/carillon
CARILLON=$made/carillon bash scripts/cli-docs.sh "$made/cli.md" >/dev/null
current docs/cli.md
exit "$status"
