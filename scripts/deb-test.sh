#!/usr/bin/env bash
# make deb-test: install the package on a clean Debian, without systemd and with systemd in a
# container. Test that it fires, restarts and upgrades, and that nothing remains after remove
# and purge. Requires root, and takes about two minutes.
#
#   DEB        an existing package (default: build one, twice)
#   DEB_ROOT   a tarball of a Debian with systemd (default: mmdebstrap creates build/debian.tar
#              with DEB_SUITE, bookworm, from the mirror DEB_MIRROR)
set -euo pipefail
. "$(dirname "$0")/lib.sh"

need_linux
((EUID == 0)) || die "requires root, because it boots a container"
missing=()
for tool in systemd-nspawn dpkg-deb nsenter; do command -v "$tool" >/dev/null || missing+=("$tool"); done
tarball=${DEB_ROOT:-$root/build/debian.tar}
[[ -e $tarball ]] || command -v mmdebstrap >/dev/null || missing+=(mmdebstrap)
((${#missing[@]} == 0)) || die "missing programs: ${missing[*]} (Debian: apt-get install systemd-container mmdebstrap)"

deb=${DEB:-}
if [[ -z $deb ]]; then
	deb=$(bash scripts/package.sh deb | tail -1)
	if command -v lintian >/dev/null; then
		say "--- lintian"
		lintian --allow-root --tag-display-limit 0 --fail-on error,warning "$deb"
	fi
	say "--- built again"
	sha256sum "$deb" >build/deb.sum
	bash scripts/package.sh deb >/dev/null
	sha256sum --quiet -c build/deb.sum || die "two builds of the same commit differ"
fi
[[ -e $tarball ]] || mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus,procps \
	"${DEB_SUITE:-bookworm}" "$tarball" "${DEB_MIRROR:-http://deb.debian.org/debian}"

work=$(mktemp -d /var/tmp/carillon-deb-test.XXXXXX)
container='' init='' cgroup=''
# gone PATH: delete it. This can fail while the container still writes, so the caller retries.
gone() { rm -rf --one-file-system "$1" 2>/dev/null; }
# groups_gone: delete the empty cgroups of the container.
groups_gone() {
	local dir left=0
	for dir in /sys/fs/cgroup/{systemd,unified,.}/{carillon-deb-test,payload,supervisor}; do
		[[ ! -d $dir ]] || find "$dir" -depth -type d -exec rmdir {} \; 2>/dev/null || true
		[[ ! -d $dir ]] || left=1
	done
	return "$left"
}
finish() {
	[[ -z $init ]] || kill -KILL "$init" 2>/dev/null || true # this kills everything in the container
	[[ -z $container ]] || wait "$container" 2>/dev/null || true
	until_true 20 gone "$work" || say "$work still exists"
	[[ -z $cgroup ]] || until_true 5 groups_gone || true
}
trap finish EXIT

# A newer version of the same package, with different example settings.
dpkg-deb -R "$deb" "$work/newer"
sed -i 's/^Version: .*/&+newer/' "$work/newer/DEBIAN/control"
echo "# newer" >>"$work/newer/etc/carillon/agent.yaml"
mkdir "$work/root"
tar -C "$work/root" -xf "$tarball"
cp "$deb" "$work/root/mnt/first.deb"
dpkg-deb --root-owner-group -Zgzip -z1 --build "$work/newer" "$work/root/mnt/newer.deb" >/dev/null
cp scripts/deb/test-*.sh "$work/root/mnt/"

say "--- without systemd"
chroot "$work/root" /bin/bash /mnt/test-plain.sh

say "--- with systemd"
# If systemd runs on the host, it creates a cgroup for the container. Otherwise, create one, so
# that the systemd in the container does not use the cgroup of the caller.
unit=()
if [[ ! -d /run/systemd/system ]]; then
	unit=(--keep-unit) cgroup=/sys/fs/cgroup
	[[ ! -d $cgroup/systemd ]] || cgroup=$cgroup/systemd
	mkdir -p "$cgroup/carillon-deb-test"
fi
(
	[[ -z $cgroup ]] || echo "$BASHPID" >"$cgroup/carillon-deb-test/cgroup.procs"
	exec systemd-nspawn --quiet --register=no "${unit[@]}" --private-network --directory="$work/root" --boot --console=pipe </dev/null
) >"$work/console" 2>&1 &
container=$!
init_of() { init=$(pgrep -P "$container" | head -1) && [[ -n $init && $(cat "/proc/$init/comm" 2>/dev/null) == systemd ]]; }
until_true 20 init_of || die "the container did not boot: $(tail -3 "$work/console")"
inside() { nsenter -t "$init" --mount --uts --ipc --net --pid --root --wd -- /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"; }
status=0
timeout 600 nsenter -t "$init" --mount --uts --ipc --net --pid --root --wd -- \
	/usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 /bin/bash /mnt/test-booted.sh || status=$?
((status == 0)) || {
	say "--- the journal, at the end"
	inside journalctl -u carillon --no-pager -n 60 -o short-iso 2>/dev/null | cut -c1-300 || true
	die "FAILED (exit $status)"
}
say "make deb-test: ok"
