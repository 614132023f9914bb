# Shared by cluster-up and cluster-down: the members of the local cluster and their addresses.
# Source it in bash, after lib.sh.
#
# CLUSTER_DIR (.cluster) contains data, logs and pids. CLUSTER_PORT (7071) is the port of the
# first agent. CLUSTER_ETCD_PORT (23791) is the port of the first etcd member; ports for peers
# are higher by ten. With EMBEDDED=1, the agents run an embedded etcd, and the directory is
# .cluster-embedded.

embedded=${EMBEDDED:-}
dir=${CLUSTER_DIR:-.cluster${embedded:+-embedded}}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd -P)
etcds=(e1 e2 e3)
agents=(n1 n2 n3)
[[ -z $embedded ]] || etcds=()
api_port=$((${CLUSTER_PORT:-7071}))
etcd_port=$((${CLUSTER_ETCD_PORT:-23791}))

number() { echo $((${1#?} - 1)); }
client() { echo "127.0.0.1:$((etcd_port + $(number "$1")))"; }
peer() { echo "127.0.0.1:$((etcd_port + 10 + $(number "$1")))"; }
listen() { echo "127.0.0.1:$((api_port + $(number "$1")))"; }

pid_of() { cat "$dir/$1.pid" 2>/dev/null || true; }
running() { alive "$(pid_of "$1")" "--data-dir $dir/$1"; }

endpoints() {
	local e list=
	if [[ -n $embedded ]]; then
		for e in "${agents[@]}"; do list+=",unix://$dir/$e/etcd/etcd.sock"; done
		echo "${list#,}"
		return
	fi
	for e in "${etcds[@]}"; do list+=",http://$(client "$e")"; done
	echo "${list#,}"
}

# members NAMES...: check names from the command line.
known() {
	local name=$1
	[[ " ${etcds[*]} ${agents[*]} " == *" $name "* ]] || die "$name is not a member: use ${etcds[*]} (etcd) and ${agents[*]} (agents)"
}
is_etcd() { [[ $1 == e* ]]; }
