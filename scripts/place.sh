#!/usr/bin/env bash
# make place: run a task with each placement strategy on six agents of this host for
# SECONDS_EACH seconds. Then kill one agent, and repeat this. Prints a table of the nodes of the
# runs. Stops everything that it has started.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

carillon=${CARILLON:-$root/build/carillon}
each=${SECONDS_EACH:-60}
port=${PORT:-7870}
data=$(mktemp -d)
declare -A pids
finish() {
	for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
	for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
	rm -rf "$data"
}
trap finish EXIT

agent() { # NAME FLAGS...
	local name=$1
	shift
	"$carillon" agent --name "$name" --data-dir "$data/$name" --listen "127.0.0.1:$((port + ${name#n}))" --log-level warn --drain-timeout 2s "$@" 2>"$data/$name.log" &
	pids[$name]=$!
}
agent n1 --embedded --weight 1
socket=""
for _ in $(seq 100); do
	socket=$(find "$data/n1" -type s 2>/dev/null | head -1 || true)
	[[ -n $socket && -s $data/n1/token ]] && break
	sleep 0.1
done
for i in 2 3 4 5 6; do agent "n$i" --etcd-endpoints "unix://$socket" --weight $((i == 6 ? 5 : 1)); done
export CARILLON_SERVER=http://127.0.0.1:$((port + 1)) CARILLON_TOKEN
CARILLON_TOKEN=$(cat "$data/n1/token")
for _ in $(seq 150); do
	[[ $("$carillon" node list -o name 2>/dev/null | wc -l) == 6 ]] && break
	sleep 0.2
done

create() { # NAME FLAGS...
	"$carillon" task create "$1" --schedule "* * * * * *" --overlap allow --set history.keep=1000 "${@:2}" -- true >/dev/null
}
# Kill the node that has the runs of hash, first and sticky. Choose a key that hashes to a node
# other than the one with the etcd.
for key in k1 k2 k3 k4 k5 k6 k7 k8 k9; do
	"$carillon" task create "hash-$key" --schedule @manual --set target.strategy=hash --set "target.key=$key" -- true >/dev/null
	lost=$("$carillon" task trigger "hash-$key" --wait -o json 2>/dev/null | sed -n 's/.*"node": "\(n[0-9]\)".*/\1/p' | head -1)
	[[ $lost != n1 && -n $lost ]] && break
done
next=n1
"$carillon" task create sticky --schedule @manual --set target.strategy=sticky --selector "node = $lost" -- true >/dev/null
"$carillon" task trigger sticky --wait >/dev/null 2>&1
"$carillon" task update sticky --schedule "* * * * * *" --overlap allow --set history.keep=1000 --selector "" >/dev/null
create hash --set target.strategy=hash --set "target.key=$key"
create first --set target.strategy=first --set "target.order=$lost,$next"
for s in auto round-robin random weighted least-loaded; do create "$s" --set "target.strategy=$s"; done

count() { # FROM TO: print a table of runs by task and node, for ticks in [FROM, TO]
	local s n line
	for s in auto round-robin random weighted least-loaded hash first sticky; do
		"$carillon" task history "$s" --limit 1000 -o json >"$data/history"
		line="| $s "
		for n in 1 2 3 4 5 6; do
			line+="| $(python3 - "$data/history" "n$n" "$1" "$2" <<'PY'
import json, sys
runs = [r for r in json.load(open(sys.argv[1])) if r["state"] == "succeeded" and r["trigger"] == "schedule" and r.get("node") == sys.argv[2]]
print(sum(sys.argv[3] <= r["scheduled_time"] <= sys.argv[4] for r in runs) or "")
PY
) "
		done
		echo "$line|"
	done
}
now() { date -u +%Y-%m-%dT%H:%M:%S.000Z; }
table() { # WHAT FROM TO
	echo
	echo "$1"
	echo "| strategy | n1 | n2 | n3 | n4 | n5 | n6 |"
	echo "|---|---|---|---|---|---|---|"
	count "$2" "$3"
}
sleep 2
from=$(now)
sleep "$each"
to=$(now)
sleep 2
table "six nodes, $each s, key $key:" "$from" "$to"
kill -KILL "${pids[$lost]}"
wait "${pids[$lost]}" 2>/dev/null || true
unset "pids[$lost]"
for _ in $(seq 150); do
	[[ $("$carillon" node list -o name 2>/dev/null | wc -l) == 5 ]] && break
	sleep 0.2
done
sleep 2
from=$(now)
sleep "$each"
to=$(now)
sleep 2
table "without $lost:" "$from" "$to"
