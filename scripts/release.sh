#!/usr/bin/env bash
# make release VERSION=v1.2.3: build everything that a release consists of, into build/release/VERSION. Two builds of a commit are equal.
#
#   VERSION      v1.2.3, or v1.2.3-rc1 before it
#   SIGNING_KEY  file with the private SSH key that signs SHA256SUMS, or with its public key if an
#                agent has it (default: no signature)
set -euo pipefail
. "$(dirname "$0")/lib.sh"

[[ ${VERSION:-} =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-(alpha|beta|rc)[0-9]+)?$ ]] || die "set VERSION to a version such as v1.2.3 or v1.2.3-rc1; it is \"${VERSION:-}\""
[[ -z $(git status --porcelain) ]] || die "the working tree has changes: a release is built from a commit"
export VERSION SOURCE_DATE_EPOCH CGO_ENABLED=0
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)

out=$root/build/release/$VERSION
rm -rf "$out"
mkdir -p "$out"
work=$(mktemp -d "$root/build/release.XXXXXX")
trap 'rm -rf "$work"' EXIT
umask 022

# tool NAME ARG...: run a program of scripts/release/go.mod, on this host.
tool() { env -u GOOS -u GOARCH go tool -modfile=scripts/release/go.mod "$@"; }

# archive OS ARCH: build the program, and write an archive with it and a list of its modules, in the format of CycloneDX.
archive() {
	local name=carillon-$VERSION-$1-$2 program=carillon
	[[ $1 != windows ]] || program=carillon.exe
	mkdir "$work/$name"
	GOOS=$1 GOARCH=$2 go build -ldflags "-s -w -X github.com/carillonhq/carillon/pkg/internal/version.version=$VERSION" -o "$work/$name/$program" ./cmd/carillon
	cp LICENSE "$work/$name/"
	tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --mode=go-w -cf - "$name" | gzip -9n >"$out/$name.tar.gz"
	tool cyclonedx-gomod bin -json -std -noserial -notimestamp -version "$VERSION" -output "$out/$name.cdx.json" "$work/$name/$program"
}

for arch in amd64 arm64; do
	for os in linux darwin windows; do
		say "--- $os/$arch"
		archive "$os" "$arch"
	done
	say "--- packages for $arch"
	GOARCH=$arch OUT=$out bash scripts/package.sh deb rpm apk
done

say "--- container image"
bash scripts/image.sh "$out/carillon-$VERSION-image.tar"

# The limits are in bytes.
for name in "$work"/carillon-*; do
	size=$(cat "$name"/carillon* | wc -c) max=20000000
	[[ $name != *-linux-* ]] || max=60000000
	((size <= max)) || die "the program in ${name##*/} has $size bytes, more than $max"
done

(cd "$out" && LC_ALL=C sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
if [[ -n ${SIGNING_KEY:-} ]]; then
	ssh-keygen -q -Y sign -f "$SIGNING_KEY" -n file "$out/SHA256SUMS"
else
	say "not signed: SIGNING_KEY is not set"
fi
(cd "$out" && ls -l)
