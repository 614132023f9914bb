# The life of the package on a host with systemd. What is expected is in
# docs/how-to/install.md.
set -euo pipefail
. /mnt/test-lib.sh

settings=/etc/carillon/agent.yaml
property() { systemctl show -P "$1" carillon; }
is() { [[ $(property "$1") == "$2" ]]; }
like() { [[ $(property "$1") == $2 ]]; }
succeeded() { [[ $(carillon run list --task "$1" --state succeeded -o name | wc -l) -ge ${2:-1} ]]; }
state_of() { carillon run get "$1" -o json | sed -n 's/^  "state": "\(.*\)",/\1/p'; }
in_state() { [[ $(state_of "$1") == "$2" ]]; }
newest() { carillon run list --task tick --state succeeded --limit 1 -o name; }
newer_than() { [[ $(newest) != "$1" ]]; }
fresh() { eventually 30 newer_than "$(newest)"; } # a success after now

eventually 60 systemctl is-active multi-user.target
systemctl stop systemd-tmpfiles-clean.timer apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer 2>/dev/null || true
trace >/tmp/before

apt install /mnt/first.deb
is ActiveState active || fail "after the installation it is $(property ActiveState): $(property StatusText)"
like StatusText 'Ready: 256 shards, 0 running' || fail "ready, but: $(property StatusText)"
step "installed, and ready at once: $(property StatusText)"

# systemd before 254 has no DelegateSubgroup; without it the daemon moves itself.
faults=$(systemd-analyze --man=no verify carillon.service carillon.socket 2>&1 | grep -v "'DelegateSubgroup'" || true)
[[ -z $faults ]] || fail "the unit: $faults"
carillon task list -q >/dev/null || fail "root cannot use it"

# systemd's socket: for root and the group, without a token, and for nobody else.
socket=/run/carillon/api.sock
as() { HOME=/nonexistent setpriv --reuid=65534 --regid=65534 --groups="$1" carillon task list -q; }
[[ $(stat -c '%U:%G %a' $socket) == 'root:carillon 660' ]] || fail "the socket is $(stat -c '%U:%G %a' $socket)"
[[ $(systemctl show -P ActiveState,SubState carillon.socket | paste -sd/) == active/running ]] || fail "the socket of systemd is not in use"
[[ $(carillon config show --origin) == *"unix://$socket"* ]] || fail "root does not use the socket: $(carillon config show --origin)"
mv /var/lib/carillon/token /root/token
carillon task list -q >/dev/null || fail "root needs a token on the socket"
as "$(getent group carillon | cut -d: -f3)" >/dev/null || fail "a member of the group cannot use the socket"
! as 65534 2>/tmp/refused || fail "anybody can use the API"
grep -q 'a token is required' /tmp/refused || fail "a user outside the group is refused with: $(cat /tmp/refused)"
mv /root/token /var/lib/carillon/token
step "root and the group administer it over the socket, others do not"
carillon task create tick --schedule '@every 1s' -- /usr/bin/id -un >/dev/null
eventually 20 succeeded tick 3
[[ $(carillon logs tick) == nobody ]] || fail "the task ran as $(carillon logs tick)"
step "a task fires each second, as the default user"

# A restart: what ends in time ends well, what does not is ended. What daemonizes ends with
# its attempt, not with the daemon.
# The node says how long it may take, whatever the unit says.
dropin=/run/systemd/system/carillon.service.d/test.conf
mkdir -p "${dropin%/*}"
printf '[Service]\nTimeoutStopSec=1s\n' >$dropin
systemctl daemon-reload
printf 'drain_timeout: 4s\n' >>$settings
systemctl restart carillon
carillon task create short --schedule @manual -- /bin/sleep 2 >/dev/null
carillon task create long --schedule @manual -- /bin/sleep 1000 >/dev/null
carillon task create detached --schedule @manual -- /bin/sh -c 'setsid sleep 4711 >/dev/null 2>&1 & sleep 1' >/dev/null
carillon task trigger detached --wait >/dev/null
! pgrep -fx 'sleep 4711' >/dev/null || fail "what daemonized has outlived its attempt"
carillon task trigger short >/dev/null
carillon task trigger long >/dev/null
eventually 10 in_state short running
eventually 10 in_state long running
systemctl restart carillon
is ActiveState active || fail "after a restart it is $(property ActiveState)"
in_state short succeeded || fail "what had time to end is $(state_of short)"
eventually 10 test "$(state_of long)" != running
! pgrep -fx '/bin/sleep 1000' || fail "an attempt outlived the daemon"
fresh
step "restarted: the short run succeeded, the long one is $(state_of long)"

# A crash: the guardian ends what ran, at once; systemd brings the daemon back.
carillon task trigger long >/dev/null
eventually 10 in_state long running
pid=$(property MainPID)
kill -KILL "$pid"
eventually 1 sh -c "! pgrep -fx '/bin/sleep 1000'"
[[ $(property MainPID) != "$pid" || -S $socket ]] || fail "the socket is gone while the daemon is away"
eventually 30 is ActiveState active
[[ $(property MainPID) != "$pid" ]] || fail "not restarted"
in_state long lost || in_state long failed || fail "the run of the killed daemon is $(state_of long)"
fresh
step "killed: its guardian ended the run ($(state_of long)), systemd started it again ($(property NRestarts))"

# What was stopped stays so, whoever asks.
systemctl stop carillon
[[ ! -e $socket ]] || fail "the socket outlives the service"
! carillon task list -q 2>/dev/null || fail "who answers?"
is ActiveState inactive || fail "a call has started the service: $(property ActiveState)"
systemctl start carillon
[[ -S $socket ]] || fail "the service did not bring its socket"
fresh
step "stopped: a call does not start it; started: its socket is there"

# A pause that is shorter than the watchdog's patience changes nothing; a longer one ends it.
printf '[Service]\nWatchdogSec=6s\nTimeoutAbortSec=2s\n' >$dropin
systemctl daemon-reload
carillon cluster set --lost-after 12s >/dev/null
printf 'lease_ttl: 2s\n' >>$settings
systemctl restart carillon
pid=$(property MainPID)
kill -STOP "$pid"
sleep 8
kill -CONT "$pid"
sleep 5
[[ $(property MainPID) == "$pid" ]] || fail "a pause of 8 s was not borne, though attempts may be adopted for 12 s"
fresh
kill -STOP "$pid"
eventually 40 sh -c "[ \$(systemctl show -P MainPID carillon) != $pid ]"
eventually 30 is ActiveState active
fresh
rm -r "${dropin%/*}"
systemctl daemon-reload
step "paused for 8 s: it went on; paused for longer than its attempts may be adopted: restarted"

# Waiting for an etcd is no failure, and no readiness.
cp -p $settings /tmp/settings
sed -i 's/^embedded: true/etcd_endpoints: ["http:\/\/127.0.0.1:1"]\nprefix: \/other/' $settings
systemctl restart --no-block carillon
eventually 20 like StatusText 'Waiting: etcd does not answer*'
is ActiveState activating || fail "a node that waits is $(property ActiveState)"
step "without etcd it is activating: $(property StatusText | cut -c1-60)…"
cat /tmp/settings >$settings
systemctl restart carillon
fresh

# A node without tasks gives all rights up, and takes them back.
dropin=/etc/systemd/system/carillon.service.d/scheduler-only.conf
mkdir -p "${dropin%/*}"
cp /usr/share/doc/carillon/examples/scheduler-only.conf "${dropin%/*}"
systemctl daemon-reload
echo 'roles: [scheduler, api]' >>$settings
systemctl restart carillon
like StatusText 'Ready: 256 shards, * running' || fail "hardened, it says $(property StatusText)"
carillon task list -q >/dev/null || fail "hardened, it does not answer on the socket"
(($(ps -o uid= -p "$(property MainPID)") > 0)) || fail "hardened, it runs as root"
step "hardened, for a node that only schedules: $(systemd-analyze security carillon 2>/dev/null | tail -1 | sed 's/^[^:]*: //')"
rm -r "${dropin%/*}"
systemctl daemon-reload
cat /tmp/settings >$settings
systemctl restart carillon
fresh
[[ -d /var/lib/carillon && ! -L /var/lib/carillon ]] || fail "the data directory did not come back"

# An upgrade keeps the settings and the tasks, and restarts it.
was=$(sha256sum <$settings) pid=$(property MainPID)
apt install /mnt/newer.deb
[[ $(sha256sum <$settings) == "$was" ]] || fail "the settings were overwritten"
is ActiveState active && [[ $(property MainPID) != "$pid" ]] || fail "not restarted by the upgrade"
dpkg-query -W -f '${Version}' carillon | grep -q newer || fail "not upgraded"
fresh
step "upgraded, restarted, settings and tasks kept"

# One that its settings would not let come back is left running.
echo "nonsense: true" >>$settings
pid=$(property MainPID)
apt install --allow-downgrades /mnt/first.deb
[[ $said == *"nonsense"*"not a field"* ]] || fail "it did not say what is wrong: $said"
[[ $(property MainPID) == "$pid" ]] || fail "a node was restarted that cannot come back"
sed -i '/^nonsense/d' $settings
fresh
step "settings that cannot be used: said so, and the old daemon left running"

apt remove carillon
! pgrep -x carillon || fail "removed, but running"
[[ -e $settings && -e /var/lib/carillon/token ]] || fail "remove took settings or data"
step "removed: stopped, settings and data kept"
apt install /mnt/newer.deb
is ActiveState active || fail "installed again, it is $(property ActiveState)"
fresh
step "installed again: the tasks are there, and fire"

apt purge carillon
systemctl reset-failed 2>/dev/null || true
no_trace /tmp/before
[[ -z $(systemctl list-unit-files 'carillon*' --no-legend) ]] || fail "units are left"
step "purged, without a trace"
