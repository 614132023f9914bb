# Installs and purges where systemd does not run, as when an image is built.
set -euo pipefail
. /mnt/test-lib.sh

trace >/tmp/before
apt install /mnt/first.deb
step "installed: $(carillon version 2>/dev/null | head -1)"
carillon agent --config /etc/carillon/agent.yaml --check-config >/dev/null || fail "its own settings are refused"
[[ -L /etc/systemd/system/multi-user.target.wants/carillon.service ]] || fail "not enabled for when it boots"
[[ $(stat -c %a /etc/carillon/agent.yaml) == 640 ]] || fail "the settings are open"
getent group carillon >/dev/null || fail "there is no group for the socket"
apt purge carillon
no_trace /tmp/before
step "purged, without a trace"
