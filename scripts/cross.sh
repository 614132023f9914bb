#!/usr/bin/env bash
# make cross: check that the command line, without nodes, builds for macOS and Windows, with its tests, and is no larger than it may be.
# Other architectures of these systems use the same files.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

max=$((20 * 1000 * 1000)) # bytes
mkdir -p build
for target in darwin/arm64 windows/amd64; do
	export GOOS=${target%/*} GOARCH=${target#*/}
	go vet $(go list -deps ./cmd/carillon | grep -E '^github.com/carillonhq/carillon/(cmd|pkg/cli)(/|$)')
	go build -ldflags "-s -w" -o build/cross ./cmd/carillon
	size=$(stat -c %s build/cross)
	say "$target: $size bytes"
	((size <= max)) || die "carillon for $target has $size bytes, more than $max"
done
rm build/cross
