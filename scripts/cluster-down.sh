#!/usr/bin/env bash
# make cluster-down: stop the local cluster: first the agents, which drain, then their
# guardians and etcd. Stops only processes whose pids cluster-up recorded. CLEAN=1 also
# deletes their data. With names (cluster-down.sh n2), stops only these members.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/cluster.sh"

for name in "$@"; do known "$name"; done
names=("$@")
((${#names[@]} > 0)) || names=("${agents[@]}" "${etcds[@]}")

left=0
stop_all() { # SECONDS NAMES...: signal all, then wait for each
	local seconds=$1 name
	shift
	for name in "$@"; do
		if running "$name"; then kill -TERM "$(pid_of "$name")" 2>/dev/null || true; else rm -f "$dir/$name.pid"; fi
	done
	for name in "$@"; do
		[[ -e $dir/$name.pid ]] || continue
		if end "$(pid_of "$name")" "--data-dir $dir/$name" "$seconds" told; then
			say "stopped $name"
			rm -f "$dir/$name.pid"
		else
			say "$name, pid $(pid_of "$name"), did not exit"
			left=1
		fi
	done
}

stop_agents=() stop_etcds=() dirs=()
for name in "${names[@]}"; do
	if is_etcd "$name"; then stop_etcds+=("$name"); else stop_agents+=("$name") dirs+=("$dir/$name"); fi
done

((${#stop_agents[@]} == 0)) || stop_all 25 "${stop_agents[@]}"
# Wait for the guardians before etcd stops: they kill what their agents left, and record this
# in etcd. If etcd is unavailable, they retry for a while.
if ((${#dirs[@]} > 0)) && ! until_true 15 no_guardians "${dirs[@]}"; then
	say "guardians did not exit; killing $(guardians "${dirs[@]}" | tr '\n' ' ')"
	for pid in $(guardians "${dirs[@]}"); do kill -KILL "$pid" 2>/dev/null || true; done
	until_true 5 no_guardians "${dirs[@]}" || left=1
fi
((${#stop_etcds[@]} == 0)) || stop_all 15 "${stop_etcds[@]}"

((left == 0)) || die "some processes are still running: see above"
if [[ ${CLEAN:-} == 1 ]]; then
	for name in "${names[@]}"; do
		[[ -z $name ]] || rm -rf "${dir:?}/$name" "$dir/$name.log" "$dir/$name.pid"
	done
	(($# > 0)) || { rm -f "$dir/env" && rmdir "$dir" 2>/dev/null || true; }
	say "deleted the data of ${names[*]}"
else
	say "kept the data in ${dir#"$root/"}; to delete it, set CLEAN=1"
fi
