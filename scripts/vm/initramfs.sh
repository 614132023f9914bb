#!/bin/sh
# For mmdebstrap: the initrd of a virtual machine needs its disk, and no more.
set -e
mkdir -p "$1/etc/initramfs-tools/conf.d"
printf 'MODULES=list\nCOMPRESS=gzip\n' >"$1/etc/initramfs-tools/conf.d/carillon-vm"
printf 'virtio_pci\nvirtio_blk\next4\n' >"$1/etc/initramfs-tools/modules"
