#!/usr/bin/env bash
# Checks that the pages that are made of the program say what it says. A part of
# make lint.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

mkdir -p build
made=$(mktemp -d "$root/build/docs.XXXXXX")
trap 'rm -rf "$made"' EXIT
status=0

current() { # PAGE
	cmp -s "$made/${1##*/}" "$1" || {
		say "$1 is not what the program says: run \`make docs\`, and look at what it changes"
		diff "$1" "$made/${1##*/}" 2>/dev/null | head -5 | cut -c1-150 | sed 's/^/  /' || true
		status=1
	}
}

go build -o "$made/carillon" ./cmd/carillon
CARILLON=$made/carillon bash scripts/cli-docs.sh "$made/cli.md" >/dev/null
go run ./scripts/apidocs >"$made/api.md"
current docs/cli.md
current docs/api.md
exit "$status"
