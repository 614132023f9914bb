#!/usr/bin/env bash
# make vm-test: test what requires a separate host. Boots Debian in virtual machines without a
# network, installs the package, and tests it against docs/how-to/limits.md:
#
#   bookworm      systemd 252, cgroup v2 with all controllers
#   bookworm-v1   the same with cgroup v1 only
#   trixie        systemd 257, which supports DelegateSubgroup
#
#   DEB        an existing package (default: build one)
#   VMS        only these virtual machines
#   VM_TESTS   only the tests of scripts/vm/test.sh whose names match this pattern
#   VM_ACCEL   kvm or tcg (default: kvm if the processor supports it)
#   DEB_MIRROR the mirror from which mmdebstrap creates build/vm/SUITE.img, once
#
# Requires root. Takes a few minutes with KVM, and about five minutes for each machine without
# KVM on two idle processors, plus the time to create the images.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

need_linux
((EUID == 0)) || die "requires root, because it creates a disk with files of other users"
missing=()
for tool in qemu-system-x86_64:qemu-system-x86 mke2fs:e2fsprogs mmdebstrap:mmdebstrap dpkg-deb:dpkg; do
	command -v "${tool%:*}" >/dev/null || missing+=("${tool#*:}")
done
((${#missing[@]} == 0)) || die "missing packages (Debian: apt-get install ${missing[*]})"
[[ $(uname -m) == x86_64 ]] || die "supports only x86-64; this is $(uname -m)"

vms=${VMS:-bookworm bookworm-v1 trixie}
accel=${VM_ACCEL:-tcg}
# Even if /dev/kvm can be opened, it cannot run an ordinary kernel without support by the processor.
[[ -n ${VM_ACCEL:-} || ! -w /dev/kvm ]] || ! grep -qwE 'vmx|svm' /proc/cpuinfo || accel=kvm
cpu=Nehalem # qemu 7.2 emulates later processors slowly and not always correctly
[[ $accel != kvm ]] || cpu=host
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
images=$root/build/vm
mkdir -p "$images"
work=$(mktemp -d /var/tmp/carillon-vm-test.XXXXXX)
vm='' watcher=''
finish() {
	for pid in $vm $watcher; do kill -KILL "$pid" 2>/dev/null || true; done
	rm -rf --one-file-system "$work"
}
trap finish EXIT

# disk DIR FILE SIZE [OPTION...]: create a file with an ext4 disk that contains DIR.
disk() {
	rm -f "$2"
	mke2fs -q -t ext4 -d "$1" "${@:4}" "$2" "$3"
}

# image SUITE: create its disk. A second disk contains the tests. All suites use the kernel of
# bookworm, because 6.12 crashes at its start on the processor that qemu 7.2 emulates.
image() {
	local suite=$1 tree=$work/$1 linux=''
	[[ ! -e $images/$suite.img ]] || return 0
	say "--- creating $suite"
	[[ $suite != bookworm ]] || linux=,linux-image-cloud-amd64,initramfs-tools
	mmdebstrap --quiet --variant=minbase --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--include=systemd,systemd-sysv,systemd-container,dbus,procps,udev,iproute2$linux \
		--essential-hook="$root/scripts/vm/initramfs.sh" "$suite" "$work/$suite.tar" "${DEB_MIRROR:-http://deb.debian.org/debian}"
	mkdir "$tree"
	tar -C "$tree" -xf "$work/$suite.tar"
	rm "$work/$suite.tar"
	install -m 644 "$root/scripts/vm/vm-test.service" "$tree/etc/systemd/system/"
	ln -s ../vm-test.service "$tree/etc/systemd/system/multi-user.target.wants/"
	for unit in {apt-daily,apt-daily-upgrade,dpkg-db-backup,e2scrub_all,fstrim}.timer systemd-networkd-wait-online.service; do
		ln -sf /dev/null "$tree/etc/systemd/system/$unit"
	done
	echo vm >"$tree/etc/hostname"
	echo '127.0.0.1 localhost vm' >"$tree/etc/hosts"
	echo '/dev/vda / ext4 noatime 0 1' >"$tree/etc/fstab"
	if [[ -n $linux ]]; then
		cp "$tree"/boot/vmlinuz-* "$images/kernel"
		cp "$tree"/boot/initrd.img-* "$images/initrd"
		tar -C "$tree/usr/lib" -cf "$images/modules.tar" modules
	else
		tar -C "$tree/usr/lib" -xf "$images/modules.tar"
	fi
	disk "$tree" "$images/$suite.new" 2G -O ^has_journal
	mv "$images/$suite.new" "$images/$suite.img"
	rm -rf "$tree"
}

# boot NAME: run scripts/vm/test.sh in a virtual machine, and show its output.
boot() {
	local name=$1 suite=${1%-v1} words='console=ttyS0 root=/dev/vda rw quiet panic=-1 audit=0 no_timer_check'
	for unit in serial-getty@ttyS0 getty@tty1 systemd-timesyncd; do words+=" systemd.mask=$unit.service"; done
	[[ $name != *-v1 ]] || words+=' systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1'
	[[ $name != trixie-v1 ]] || words+=' SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1'
	say "=== $name ($accel)"
	local began=$SECONDS said=$work/$name.said console=$images/$name.console
	: >"$said"
	qemu-system-x86_64 -machine q35 -accel "$accel" -cpu "$cpu" -smp 2 -m 2G -nodefaults -display none -no-reboot -nic none \
		-kernel "$images/kernel" -initrd "$images/initrd" -append "$words" -device virtio-rng-pci \
		-drive "file=$images/$suite.img,format=raw,if=virtio,snapshot=on,cache=unsafe" -drive "file=$work/payload.img,format=raw,if=virtio,readonly=on" \
		-serial "file:$console" -serial "file:$said" </dev/null &
	vm=$!
	tail -q -f -n +1 --pid "$vm" "$said" &
	watcher=$!
	if ! until_true "${VM_SECONDS:-900}" dead "$vm" "$images/$suite.img"; then
		kill -KILL "$vm"
		echo "not finished within ${VM_SECONDS:-900} s"
	fi
	wait "$vm" 2>/dev/null || true
	wait "$watcher" 2>/dev/null || true
	vm='' watcher=''
	say "=== $name: $((SECONDS - began)) s"
	tail -1 "$said" | tr -d '\r' | grep -qx 'vm-test: ok' || {
		say "see its console in ${console#"$root/"}"
		return 1
	}
}

for name in bookworm $vms; do image "${name%-v1}"; done
deb=${DEB:-}
[[ -n $deb ]] || deb=$(bash scripts/package.sh deb | tail -1)
mkdir "$work/payload"
dpkg-deb -R "$deb" "$work/deb"
dpkg-deb --root-owner-group -Znone --build "$work/deb" "$work/payload/carillon.deb" >/dev/null # unpacking xz is slow in the virtual machine
cp scripts/deb/test-lib.sh scripts/vm/test.sh "$work/payload/"
printf '%s\n' "${VM_TESTS:-.*}" >"$work/payload/tests"
[[ $accel == kvm ]] && echo 1 >"$work/payload/patience" || echo 5 >"$work/payload/patience"
say "--- compiling tests"
for package in pkg/cgroup executor/proctree executor/workdir executor/process executor pkg/daemon; do
	[[ t_package_${package//\//_} =~ ${VM_TESTS:-.*} ]] || continue
	mkdir -p "$work/payload/$package"
	go test -c -o "$work/payload/$package/tests" "./$package"
	[[ ! -d $package/testdata ]] || cp -r "$package/testdata" "$work/payload/$package/"
done
disk "$work/payload" "$work/payload.img" "$(($(du -sm "$work/payload" | cut -f1) + 40))M" -L payload

failed=''
for name in $vms; do boot "$name" || failed+=" $name"; done
[[ -z $failed ]] || die "FAILED:$failed"
say "make vm-test: ok"
