#!/usr/bin/env bash
# image.sh [FILE]: write the container image for amd64 and arm64 to FILE (default: build/carillon-image.tar), in the OCI image layout. It
# needs no Docker. Part of make image and make release.
#
#   VERSION  the version of the program (default: derived from git)
set -euo pipefail
. "$(dirname "$0")/lib.sh"

file=$(realpath -m "${1:-build/carillon-image.tar}")
version=${VERSION:-$(git describe --tags --always --dirty)}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)} CGO_ENABLED=0
mkdir -p build
work=$(mktemp -d "$root/build/image.XXXXXX")
trap 'rm -rf "$work"' EXIT

for arch in amd64 arm64; do
	GOOS=linux GOARCH=$arch go build -ldflags "-s -w -X github.com/carillonhq/carillon/pkg/internal/version.version=$version" -o "$work/$arch" ./cmd/carillon
done
go -C scripts/release run . "$file" "$version" amd64="$work/amd64" arm64="$work/arm64"
say "$file"
