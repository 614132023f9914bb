# Runs in a virtual machine of make vm-test, as root: installs the package, and holds it to
# docs/how-to/limits.md. Each function t_* is a test.
set -euo pipefail
. /mnt/test-lib.sh
# eventually SECONDS COMMAND...: as there, with the patience that an emulated machine takes.
eval "patient_$(declare -f eventually)"
eventually() { patient_eventually $(($1 * $(cat /mnt/patience))) "${@:2}"; }

export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
settings=/etc/carillon/agent.yaml
dropin=/run/systemd/system/carillon.service.d/test.conf
v2() { [[ -e /sys/fs/cgroup/cgroup.controllers ]]; }
property() { systemctl show -P "$1" carillon; }
say() { printf '%s\n' "$*"; }
is() { [[ $(property "$1") == "$2" ]]; }
none() { ! pgrep -fx "$1" >/dev/null; }

# look TASK: asks for its newest run. record TASK FIELD: what that said then, without
# quotes. The command is slow in an emulated machine, so it is asked no more than needed.
look() { carillon run get "$1" -o json >"/tmp/run.$1"; }
record() { sed -n "/^ *\"$2\": /{s/^[^:]*: \"\?//; s/\"\?,\?\$//; p; q}" "/tmp/run.$1"; }
in_state() { look "$1" && [[ $(record "$1" state) == "$2" ]]; }
# open_namespace: an agent's namespace default lets tasks use neither a shell nor another user.
open_namespace() { carillon namespace update default --shell --run-as '*' --groups '*' >/dev/null; }
create() { carillon task create "$1" --schedule @manual --set kill_grace=1s "${@:2}" >/dev/null; }
begin() {
	carillon task trigger "$1" >/dev/null
	eventually 30 in_state "$1" running
}
# ends TASK STATE [REASON]: runs it to its end, which is to be this.
ends() {
	carillon task trigger "$1" --wait >/dev/null 2>&1 || true
	look "$1"
	local is
	is="$(record "$1" state) $(record "$1" reason)"
	[[ $is == "$2 ${3:-}" ]] || fail "$1 ended as $is ($(record "$1" message)), not as $2 ${3:-}"
}
says() { [[ $(record "$1" message) == *"$2"* ]] || fail "$1 says: $(record "$1" message)"; }
printed() { carillon logs "$1" 2>/dev/null; }

# groups: the control groups that agents have made.
groups() { find /sys/fs/cgroup -depth -type d -path '*/carillon-vm-*' 2>/dev/null || true; }
populated() {
	local dir
	for dir in $(groups); do [[ -z $(cat "$dir/cgroup.procs" 2>/dev/null) ]] || say "$dir: $(tr '\n' ' ' <"$dir/cgroup.procs")"; done
}
all_empty() { [[ -z $(populated) ]]; }
no_groups() { [[ -z $(groups) ]]; }
one_agents() { [[ $(groups | grep -o '/carillon-vm-[^/]*' | sort -u | wc -l) == 1 ]] || fail "groups of other agents: $(groups)"; }
ready() { is ActiveState active; } # systemd is told so by a node that fires
restart() {
	systemctl daemon-reload
	systemctl restart carillon
	eventually 60 ready
}
# with SETTING...: restarts the agent with these beside the usual.
with() {
	cp -p $settings /tmp/settings
	printf '%s\n' "$@" >>$settings
	restart
}
usual() {
	[[ ! -e /tmp/settings ]] || mv /tmp/settings $settings
	rm -f $dropin
	restart
}
# announced: what the agent said last of control groups.
announced() { journalctl -u carillon -o cat --no-pager | grep 'control groups' | tail -1; }

t_installed() {
	apt install /mnt/carillon.deb
	eventually 60 ready
	step "$(announced | cut -c1-250)"
	[[ $(announced) == *'attempts have control groups'* && $(announced) == *cpu*memory*pids* && $(announced) != *'"lacks"'* ]] || fail "it found less than there is"
	! v2 || [[ $(property ControlGroup) == /system.slice/carillon.service && $(cat /proc/"$(property MainPID)"/cgroup) == 0::/system.slice/carillon.service/daemon ]] ||
		fail "the daemon is in $(cat /proc/"$(property MainPID)"/cgroup)"
	is NRestarts 0 || fail "it was restarted $(property NRestarts) times"
	[[ $(journalctl -u carillon -p info..info -o cat --no-pager) == *$'\n{"level":"info",'* ]] || fail "the journal does not have the priorities of its messages"
	open_namespace
	# What several tests run:
	create hog --limit memory=64Mi -- tail /dev/zero
	create daemonizes --shell "setsid env -i sh -c '(trap \"\" TERM; sleep 4714) & exec sleep 4714' >/dev/null 2>&1 & exit 0"
}

t_memory() {
	ends hog failed oom
	(($(record hog memory_peak) > 48 << 20 && $(record hog memory_peak) <= 64 << 20)) || fail "its peak is said to be $(record hog memory_peak)"
	create modest --limit memory=64Mi --limit swap=0 --shell 'head -c 20000000 /dev/zero | tail >/dev/null'
	ends modest succeeded
	step "$(record hog message); peak of another: $(record modest memory_peak)"
}

# A child is killed for memory: with v2 all of the attempt is. It has failed either way.
t_child_out_of_memory() {
	create child --limit memory=64Mi --shell 'sleep 4712 & setsid sleep 4712 & tail /dev/zero; echo went on; exit 0'
	ends child failed oom
	says child 'limits.memory is 64Mi'
	! v2 || [[ -z $(printed child) ]] || fail "it went on: $(printed child)"
	none 'sleep 4712' || fail "of its tree is left: $(pgrep -fa 'sleep 4712')"
	is ActiveState active && is NRestarts 0 || fail "the service is $(property ActiveState), restarted $(property NRestarts) times"
}

t_pids() {
	create bomb --limit pids=60 --shell 'f() { f | f & f; }; f; sleep 4713'
	ends bomb failed exit_code
	says bomb limits.pids
	eventually 10 all_empty
}

t_cpu() {
	create busy --limit cpu=0.2 --timeout 4s -- sh -c 'while :; do :; done'
	ends busy timed_out timeout
	(($(record busy cpu_ms) < 2000)) || fail "with a fifth of a processor for 4 s it took $(record busy cpu_ms) ms"
	step "$(record busy cpu_ms) ms of 4 s at cpu=0.2"
}

ticked() { (($(wc -l </var/tmp/ticks) > $1)); }
t_pause() {
	[[ -e /var/tmp/ticks ]] || create counter --shell 'setsid sh -c "while :; do echo >>/var/tmp/ticks; sleep 0.1; done" & wait'
	: >/var/tmp/ticks
	begin counter
	eventually 20 test -s /var/tmp/ticks
	carillon run pause counter >/dev/null
	eventually 10 in_state counter paused
	local ticks
	ticks=$(wc -l </var/tmp/ticks)
	sleep 1
	[[ $(wc -l </var/tmp/ticks) == "$ticks" ]] || fail "it goes on while it is paused"
	carillon run resume counter >/dev/null
	eventually 10 in_state counter running
	eventually 10 ticked "$ticks"
	carillon run pause counter >/dev/null
	eventually 10 in_state counter paused
	carillon run cancel counter --yes >/dev/null
	eventually 20 in_state counter cancelled
	eventually 5 all_empty
}

t_tree_ends_with_the_attempt() {
	ends daemonizes succeeded
	none 'sleep 4714' || fail "it left $(pgrep -fa 'sleep 4714')"
}

# As another user, with all rights that root has on a real host.
t_limits_of_another_user() {
	create bound --user nobody --set action.process.group=nogroup --set action.process.groups=adm --set action.process.nice=-5 --set action.process.ionice=realtime/3 --set action.process.umask=027 --set action.process.private_tmp=true --set action.process.scratch=true --set action.process.no_new_privs=true \
		--limit open_files=1000000 --limit core=1Mi --limit file_size=1Gi --limit processes=500 --limit cpu_time=1m --limit stack=16Mi --limit address_space=4Gi \
		--limit memory=256Mi --limit cpu=1.5 --limit pids=50 --limit swap=0 \
		-- bash -c 'id -un; id -Gn; ulimit -n; ulimit -u; umask; nice; ls -A /tmp | wc -l; pwd; ionice; grep NoNewPrivs /proc/self/status'
	ends bound succeeded
	local want="nobody nogroup adm 1000000 500 0027 -5 0"
	[[ $(printed bound | head -7 | xargs) == "$want" ]] || fail "it is $(printed bound | xargs), not $want"
	[[ -z $(record bound unenforced) ]] || fail "not enforced: $(carillon run get bound)"
	step "$(printed bound | xargs)"
}

t_stopped_it_leaves_nothing() {
	create long --shell 'setsid sleep 4715 & sleep 4715'
	begin long
	systemctl stop carillon
	none 'sleep 4715' || fail "left: $(pgrep -fa 'sleep 4715')"
	no_groups || fail "left: $(groups)"
	! pgrep -x carillon >/dev/null || fail "left: $(pgrep -xa carillon)"
	[[ ! -e /sys/fs/cgroup/system.slice/carillon.service ]] || fail "the service's own group is left: $(ls -d /sys/fs/cgroup/system.slice/carillon.service/*/)"
	systemctl start carillon
	eventually 60 ready
}

# back PID: systemd has brought the agent back.
back() { ready && [[ $(property MainPID) != "$1" ]]; }

all_three() { (($(pgrep -fxc 'sleep 4716') == 3)); }
t_killed_it_leaves_nothing() {
	create hostile --limit pids=100 --shell "setsid env -i sh -c '(trap \"\" TERM; sleep 4716) & exec sleep 4716' >/dev/null 2>&1 & sleep 4716"
	begin hostile
	eventually 20 all_three
	local pid
	pid=$(property MainPID)
	kill -KILL "$pid"
	eventually 20 none 'sleep 4716'
	eventually 60 back "$pid"
	one_agents
	look hostile
	step "restarted $(property NRestarts) times; the run is $(record hostile state)"
}

# Its guardian, too: then the next agent does it.
t_killed_with_its_guardian_it_leaves_nothing() {
	begin hostile
	eventually 20 all_three
	local pid
	pid=$(property MainPID)
	kill -KILL $(pgrep -x carillon)
	eventually 60 back "$pid"
	eventually 20 none 'sleep 4716'
	one_agents
	[[ $(announced) == *'attempts have control groups'* && $(announced) != *'"lacks"'* ]] || fail "afterwards: $(announced)"
	look hostile
	step "restarted $(property NRestarts) times; the run is $(record hostile state)"
	ends hog failed oom
}

# What limits the service limits its tasks, too, and is no reason to end it.
t_limits_of_the_service() {
	mkdir -p "${dropin%/*}"
	printf '[Service]\nMemoryMax=300M\nTasksMax=200\n' >$dropin
	restart
	create greedy -- tail /dev/zero
	ends greedy failed signal
	is ActiveState active || fail "the service is $(property ActiveState)"
	step "$(record greedy message)"
	usual
}

t_switched_off() {
	with 'cgroup: off'
	[[ $(announced) == *'no control groups'* ]] || fail "$(announced)"
	no_groups || fail "groups: $(groups)"
	ends daemonizes succeeded
	none 'sleep 4714' || fail "it left $(pgrep -fa 'sleep 4714')"
	ends hog failed host
	create reports --limit memory=64Mi --set action.process.enforce=report -- true
	ends reports succeeded
	t_pause
	usual
}

t_path() {
	with 'cgroup: /carillon'
	[[ $(announced) == *'attempts have control groups'* && $(announced) == *cpu*memory*pids* ]] || fail "$(announced)"
	[[ $(groups) == */cgroup/*carillon/carillon-* ]] || fail "groups: $(groups)"
	ends hog failed oom
	usual
	no_groups_of_path
}
no_groups_of_path() { [[ $(groups) != */cgroup/carillon/* ]] || fail "left: $(groups)"; }

# Where systemd was told not to delegate, limits are refused, not ignored.
t_not_delegated() {
	mkdir -p "${dropin%/*}"
	printf '[Service]\nDelegate=no\nDelegateSubgroup=\n' >$dropin
	restart
	step "$(announced | cut -c1-350)"
	if v2; then
		[[ $(announced) == *'not delegated'* ]] || fail "it does not say so"
		ends hog failed host
	else
		ends hog failed oom
	fi
	ends daemonizes succeeded
	none 'sleep 4714' || fail "it left $(pgrep -fa 'sleep 4714')"
	usual
}

# The agent as the first process of a container: nobody else reaps.
t_first_of_a_container() {
	local root=/var/tmp/container container init=''
	mkdir -p $root
	mount --bind / $root
	systemd-nspawn --quiet -D $root --volatile=overlay --tmpfs=/var/lib/carillon --private-network \
		/usr/bin/carillon agent --name inner --data-dir /var/lib/carillon --embedded </dev/null >/tmp/container 2>&1 &
	container=$!
	init_of() { init=$(pgrep -P "$container" -x carillon); }
	(eventually 30 init_of) || {
		cat /tmp/container
		pgrep -fa carillon
		fail "the agent is no child of systemd-nspawn"
	}
	init_of
	carillon() { nsenter -t "$init" -a /usr/bin/carillon "$@"; }
	eventually 60 carillon node list -q
	open_namespace
	step "$(grep 'control groups' /tmp/container | tail -1 | cut -c1-300)"
	create inside --shell "setsid env -i sh -c '(trap \"\" TERM; sleep 4717) & exec sleep 4717' >/dev/null 2>&1 & exit 0"
	ends inside succeeded
	none 'sleep 4717' || fail "it left $(pgrep -fa 'sleep 4717')"
	if v2; then
		create hog --limit memory=64Mi -- tail /dev/zero
		ends hog failed oom
	fi
	eventually 10 no_zombies "$init"
	kill -TERM "$init"
	eventually 60 ended "$container"
	umount $root
}
no_zombies() { ! ps -o stat= --ppid "$1" | grep -q Z; }
ended() { ! kill -0 "$1"; }

# Tests of packages, which a host with v1 controllers runs on those, or on files.
tests() { # PACKAGE PATTERN
	systemd-run --quiet --wait --pipe -p Delegate=yes -p OOMPolicy=continue -p WorkingDirectory="/mnt/$1" -p TasksMax=80% \
		env HOME=/root PATH="$PATH" TMPDIR=/tmp "/mnt/$1/tests" -test.run "$2" -test.timeout 15m -test.failfast 2>&1 </dev/null | cut -c1-400 | tail -40
}
t_package_pkg_cgroup() { tests pkg/cgroup .; }
t_package_executor_proctree() { tests executor/proctree .; }
t_package_executor_workdir() { tests executor/workdir .; }
t_package_executor_process() { tests executor/process '^Test(Tree|Confine|Thread|Guardian|Pause|Orphans|Scratch|Room)'; }
t_package_executor() { tests executor '^TestPause'; }
t_package_pkg_daemon() {
	systemctl stop carillon
	tests pkg/daemon '^TestTorture_'
	systemctl start carillon
	eventually 60 ready
}

say "systemd $(systemctl --version | sed -n '1s/systemd \([0-9]*\).*/\1/p'), Linux $(uname -r), $(stat -fc %T /sys/fs/cgroup)"
failed=''
for t in $(grep -o '^t_[a-z_]*' /mnt/test.sh); do
	[[ $t =~ $(cat /mnt/tests) || $t == t_installed ]] || continue
	say "--- ${t#t_} (after $SECONDS s)"
	set +e
	(
		set -e
		"$t"
	)
	(($? == 0)) || {
		failed+=" ${t#t_}"
		journalctl -u carillon --no-pager -n 15 -o cat | cut -c1-300
		(usual) || say "the agent does not start with the usual settings" # the next test is to begin with them
	}
	set -e
done
[[ -z $failed ]] || fail "$failed"
say "vm-test: ok"
