#!/usr/bin/env bash
# make cluster-up: start three etcd members and three agents as processes on this host. With
# EMBEDDED=1, start three agents with an embedded etcd. Members that are already running are
# left alone, so you can use it to restart the others. With names (cluster-up.sh n2), starts
# only these members.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/cluster.sh"
need_linux

for name in "$@"; do known "$name"; done
for file in carillon etcd etcdctl; do
	[[ -z $embedded || $file != etcd ]] || continue
	[[ -x build/$file ]] || die "build/$file is missing: run \`make cluster-up\`"
done
unset "${!CARILLON_@}" "${!ETCD_@}" 2>/dev/null || true

wanted() { # NAME: is it among the given names, or are there none?
	local name=$1
	shift
	(($# == 0)) || [[ " $* " == *" $name "* ]]
}

check_port() { # NAME ADDRESS...
	local name=$1 at
	shift
	for at in "$@"; do
		! taken "${at##*:}" || die "port ${at##*:}, which $name requires, is in use; set CLUSTER_PORT or CLUSTER_ETCD_PORT"
	done
}

failed() { # NAME MESSAGE
	say "--- the end of $dir/$1.log" >&2
	tail -n 20 "$dir/$1.log" >&2
	die "$1 $2"
}

start_etcd() {
	local name=$1 members= e
	check_port "$name" "$(client "$name")" "$(peer "$name")"
	for e in "${etcds[@]}"; do members+=",$e=http://$(peer "$e")"; done
	start "$dir/$name.log" "$dir/$name.pid" "$root/build/etcd" --name "$name" --data-dir "$dir/$name" \
		--listen-client-urls "http://$(client "$name")" --advertise-client-urls "http://$(client "$name")" \
		--listen-peer-urls "http://$(peer "$name")" --initial-advertise-peer-urls "http://$(peer "$name")" \
		--initial-cluster "${members#,}" --initial-cluster-state new --initial-cluster-token carillon-local \
		--quota-backend-bytes $((2 << 30)) --auto-compaction-mode revision --auto-compaction-retention 100000 \
		--log-level warn
	say "started $name (etcd), pid $pid, http://$(client "$name")"
}

# The first agent creates the CA of the members when it starts. The others get their certificates from it, once.
admit() {
	local name=$1 first=${agents[0]}
	[[ $name != "$first" && ! -e $dir/$name/peer-certs && ! -e $dir/$name/join-token ]] || return 0
	until_true 30 test -s "$dir/$first/peer-certs/ca.pem" || failed "$first" "has not created a CA for the etcd members"
	(umask 077 && mkdir -p "$dir/$name" && build/carillon cluster join-token "$name" --data-dir "$dir/$first" \
		--peer-url "https://$(peer "$name")" >"$dir/$name/join-token") || die "cannot create a join token for $name"
}

start_agent() {
	local name=$1 a members= etcd
	check_port "$name" "$(listen "$name")"
	if [[ -n $embedded ]]; then
		check_port "$name" "$(peer "$name")"
		for a in "${agents[@]}"; do members+=",$a=https://$(peer "$a")"; done
		admit "$name"
		etcd=(--embedded --initial-cluster "${members#,}")
	else
		etcd=(--etcd-endpoints "$(endpoints)")
	fi
	start "$dir/$name.log" "$dir/$name.pid" "$root/build/carillon" agent --name "$name" --data-dir "$dir/$name" \
		--listen "$(listen "$name")" "${etcd[@]}" --label "host=$name" --drain-timeout 10s
	say "started $name (agent), pid $pid, http://$(listen "$name")"
}

# If the process has exited, both succeed to end the wait, and the caller checks again.
etcd_ready() { ! running "$1" || build/etcdctl --endpoints "http://$(client "$1")" --command-timeout 2s endpoint health >/dev/null 2>&1; }
agent_ready() { ! running "$1" || ready "$(listen "$1")"; }

wait_for() { # NAME SECONDS CHECK
	until_true "$2" "$3" "$1" || failed "$1" "is not ready after $2 s"
	running "$1" || failed "$1" "has exited"
}

fresh=()
for name in "${etcds[@]}"; do
	wanted "$name" "$@" || continue
	if running "$name"; then
		say "$name is already running"
		continue
	fi
	start_etcd "$name"
	fresh+=("$name")
done
for name in "${fresh[@]}"; do wait_for "$name" 30 etcd_ready; done

waiting=()
# The first agent creates the cluster and its admin token, so start it first.
for name in "${agents[@]}"; do
	wanted "$name" "$@" || continue
	if running "$name"; then
		say "$name is already running"
		continue
	fi
	start_agent "$name"
	if [[ -n $embedded ]]; then waiting+=("$name"); else wait_for "$name" 60 agent_ready; fi
done
for name in "${waiting[@]}"; do wait_for "$name" 60 agent_ready; done # they wait for each other

token=
for name in "${agents[@]}"; do
	[[ ! -s $dir/$name/token ]] || token=$dir/$name/token
done
[[ -n $token ]] || die "no agent has an admin token in its data directory; \`make cluster-down CLEAN=1\` and start again"

server=
for name in "${agents[@]}"; do
	if [[ -z $server ]] && running "$name"; then server=http://$(listen "$name"); fi
done
[[ -n $server ]] || exit 0 # only etcd was requested

cat >"$dir/env" <<END
# For a shell: . ${dir#"$root/"}/env
export PATH="$root/build:\$PATH"
export CARILLON_SERVER=$server
export CARILLON_TOKEN_FILE="$token"
export ETCDCTL_ENDPOINTS=$(endpoints)
END
. "$dir/env"

all_owned() {
	local status
	status=$(carillon cluster status -o json 2>/dev/null) || return 1
	[[ $(field leader "$status") != '""' && $(field shards "$status") == $(field shards_owned "$status") ]]
}
field() { sed -n "s/.*\"$1\": *\\([^,}]*\\).*/\\1/p" <<<"$2" | head -n 1; }
until_true 30 all_owned || say "some shards have no owner yet: see carillon cluster status"

# Most tasks in examples/ use a shell or another user, which a new namespace does not allow. Open the namespace only
# once, so that later changes by the user stay.
open_namespace() {
	local namespace
	namespace=$(carillon namespace get default -o json 2>/dev/null) || return 1
	grep -A 1 '"updated_by"' <<<"$namespace" | grep -q '"subject": "carillon"' || return 0
	carillon namespace update default --shell --run-as '*' --groups '*' --env-files '*' >/dev/null 2>&1
}
until_true 30 open_namespace || say "cannot open the namespace default: see carillon namespace get default"

cat <<END

The cluster is up. Its data, logs and pids are in ${dir#"$root/"}.

  . ${dir#"$root/"}/env            sets PATH, CARILLON_SERVER=$server,
                             CARILLON_TOKEN_FILE=${token#"$root/"}, ETCDCTL_ENDPOINTS
  carillon node list
  carillon apply -f examples/
  carillon run list
  etcdctl get --prefix --keys-only /carillon/

  kill -9 \$(cat ${dir#"$root/"}/n2.pid)   crashes a node; make cluster-up NODES=n2${embedded:+ EMBEDDED=1} restarts it
  make cluster-down${embedded:+ EMBEDDED=1}            stops everything and keeps the data; CLEAN=1 deletes the data
END
