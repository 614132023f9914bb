#!/usr/bin/env bash
# check.sh DEB: is all in the package that is to be, where Debian looks for it?
set -euo pipefail

deb=$1
faults=0
fault() {
	echo "$deb: $*" >&2
	faults=1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
dpkg-deb -c "$deb" >"$work/list"
dpkg-deb -R "$deb" "$work/tree"

# contains MODE PATH: for root, with these rights.
contains() {
	grep -qE "^$1 root/root .* \\./$2\$" "$work/list" || fault "has no $2 ($1): $(grep -F " ./$2" "$work/list" || echo none)"
}
contains -rwxr-xr-x usr/bin/carillon
contains -rw-r----- etc/carillon/agent.yaml
for file in usr/lib/systemd/system/carillon.{service,socket} usr/share/man/man1/{carillon,carillon-agent,carillon-task-create}.1.gz usr/share/man/man7/carillon-schedules.7.gz \
	usr/share/bash-completion/completions/carillon usr/share/zsh/vendor-completions/_carillon usr/share/fish/vendor_completions.d/carillon.fish \
	usr/share/doc/carillon/{copyright,changelog.gz,changelog.Debian.gz,README.md.gz,docs/README.md.gz,docs/how-to/install.md.gz,docs/operations.md.gz,docs/cli.md.gz,docs/api.md.gz,modules.txt} \
	usr/share/doc/carillon/examples/{heartbeat.yaml,scheduler-only.conf,prometheus/carillon.yaml,grafana/carillon.json}; do
	contains -rw-r--r-- "$file"
done

strange=$(awk '$2 != "root/root"' "$work/list")
[[ -z $strange ]] || fault "has what is not root's: $strange"
# The daemon listens where systemd does, for members of a group that there is, and that no
# DynamicUser= wants to make for itself.
unit=$work/tree/usr/lib/systemd/system/carillon.socket
path=$(sed -n 's/^ListenStream=//p' "$unit")
[[ $(sed -n 's/^socket: //p' "$work/tree/etc/carillon/agent.yaml") == "$path" ]] || fault "its settings have another socket than its unit, $path"
group=$(sed -n 's/^SocketGroup=//p' "$unit")
grep -q "groupadd --system $group\$" "$work/tree/DEBIAN/postinst" || fault "does not make the group $group of its socket"
grep -q "groupdel $group" "$work/tree/DEBIAN/postrm" || fault "leaves the group $group behind"
user=$(sed -n 's/^User=//p' "$work/tree/usr/share/doc/carillon/examples/scheduler-only.conf")
[[ -n $user && $user != "$group" ]] || fault "has the group $group, which the dynamic user $user collides with"
grep -q '^Sockets=carillon.socket$' "$work/tree/usr/lib/systemd/system/carillon.service" || fault "its service does not bring its socket"
grep -q '^\[Install\]' "$unit" && fault "its socket can be enabled, so that a connection starts the service"

[[ $(cat "$work/tree/DEBIAN/conffiles") == /etc/carillon/agent.yaml ]] || fault "its conffiles are not the settings"
(cd "$work/tree" && md5sum --quiet -c DEBIAN/md5sums) || fault "its checksums are wrong"
for script in postinst prerm postrm; do
	[[ -x $work/tree/DEBIAN/$script ]] || fault "$script cannot be run"
	sh -n "$work/tree/DEBIAN/$script" || fault "$script is no shell script"
done
[[ $(dpkg-deb -f "$deb" Version) =~ ^[0-9][A-Za-z0-9.+~-]*-1$ ]] || fault "has the version $(dpkg-deb -f "$deb" Version)"
exit "$faults"
