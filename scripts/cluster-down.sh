#!/usr/bin/env bash
# make cluster-down: stop the local cluster: the agents, which drain, their
# guardians, then etcd. Only processes whose pids cluster-up wrote down are
# touched. CLEAN=1 deletes their data. With names (cluster-down.sh n2) only those.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/cluster.sh"

for name in "$@"; do known "$name"; done
names=("$@")
((${#names[@]} > 0)) || names=("${agents[@]}" "${etcds[@]}")

left=0
stop_all() { # SECONDS NAMES...: all at once, then one by one until they are gone
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
# A guardian kills what its agent left, and says so in etcd: it is waited for
# before etcd stops. It tries for a while if etcd is away already.
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
