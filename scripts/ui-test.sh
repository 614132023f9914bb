#!/usr/bin/env bash
# make ui-test: test the Web UI in Chromium, against a real node with an embedded etcd. Screenshots of all pages, in light
# and dark colors and 320 pixels wide, are written to build/ui.
#
# Without Chromium, the script installs Debian's package if it may. CHROMIUM sets the path of another one. UI_TESTS=Pages
# runs only the tests whose names match.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need_linux

carillon=$root/build/carillon
[[ -x $carillon ]] || die "build/carillon is missing: run \`make ui-test\`, or \`make build\` first"

install_chromium() {
	command -v apt-get >/dev/null ||
		die "Chromium is missing, and this is not Debian: install it, and set CHROMIUM to its path"
	((EUID == 0)) ||
		die "Chromium is missing: run apt-get install chromium as root, or set CHROMIUM to its path"

	say "installing Debian's packages chromium and fonts-dejavu-core"
	export DEBIAN_FRONTEND=noninteractive
	apt-get install -y --no-install-recommends chromium fonts-dejavu-core >build/ui-install.log 2>&1 ||
		{ apt-get update && apt-get install -y --no-install-recommends chromium fonts-dejavu-core; } >>build/ui-install.log 2>&1 ||
		die "chromium cannot be installed (build/ui-install.log): $(tail -n 1 build/ui-install.log)"
}

mkdir -p build/ui
if [[ -z ${CHROMIUM:-} ]]; then
	command -v chromium >/dev/null || install_chromium
fi
rm -f build/ui/*.png

# Unset the caller's settings for other clusters.
unset "${!CARILLON_@}" 2>/dev/null || true

# Show failures and measured figures. The whole output is in build/ui-test.log.
began=$SECONDS
# shellcheck disable=SC2086 # TEST_FLAGS are words
go test -v -vet=off -count=1 -tags browser -timeout 10m -run "${UI_TESTS:-.}" ${TEST_FLAGS:-} ./pkg/internal/ui/browsertest \
	-args -carillon "$carillon" -shots "$root/build/ui" 2>&1 | tee build/ui-test.log | grep -vE '^(=== |[[:space:]]*--- (PASS|SKIP)|PASS$)' ||
	die "FAILED after $((SECONDS - began)) s; see build/ui-test.log, and the screenshots in build/ui"
say "make ui-test: ok in $((SECONDS - began)) s; screenshots are in build/ui"
