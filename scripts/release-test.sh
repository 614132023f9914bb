#!/usr/bin/env bash
# make release-test: build a release of this commit in two directories, the second time with an empty build cache, and compare all files.
# Then verify the signature, and test the packages and the container image. Requires root and ssh-keygen, and takes about ten minutes.
#
#   RELEASE  test only the files in this directory
set -euo pipefail
. "$(dirname "$0")/lib.sh"

need_linux
((EUID == 0)) || die "requires root, because it starts a container"
version=v0.0.1-rc1
mkdir -p build
work=$(mktemp -d "$root/build/release-test.XXXXXX")
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

release=${RELEASE:-}
if [[ -z $release ]]; then
	ssh-keygen -q -t ed25519 -N '' -C releases@example.com -f "$work/key"
	git clone -q "$root" "$work/first" # the commit can change while this runs
	git clone -q "$work/first" "$work/second"
	for n in first second; do
		say "--- $n build"
		[[ $n == first ]] || export GOCACHE=$work/cache
		make -C "$work/$n" release VERSION=$version SIGNING_KEY="$work/key" >"$work/$n.log" 2>&1 || {
			tail -n 20 "$work/$n.log"
			die "the $n build failed"
		}
	done
	unset GOCACHE

	release=$work/first/build/release/$version
	diff -r "$release" "$work/second/build/release/$version" || die "two builds of the same commit differ"

	say "--- signature"
	echo "releases@example.com $(cat "$work/key.pub")" >"$work/allowed_signers"
	(cd "$release" && ssh-keygen -Y verify -f "$work/allowed_signers" -I releases@example.com -n file -s SHA256SUMS.sig <SHA256SUMS && sha256sum --quiet -c SHA256SUMS)
fi

say "--- files"
CARILLON_RELEASE=$(realpath "$release") go -C scripts/release test -count=1 ./...
say "make release-test: ok"
