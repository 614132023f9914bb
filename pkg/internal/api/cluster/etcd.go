package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// etcdTimeout bounds how long the members of etcd are asked how they fare.
	etcdTimeout = 2 * time.Second
	// fewTasks is up to how many tasks say nothing of how much space one takes.
	fewTasks = 100
	// manyRevisions is how many revisions no compaction leaves that is set up as
	// advised: 100,000, and what the fastest etcd adds in five minutes.
	manyRevisions = 1_000_000
	// farBehind is by how many entries a member's applying is late that has trouble; etcd
	// refuses writes at 5,000.
	farBehind = 1000
)

// lookAtEtcd adds what etcd says of itself. What it does not tell is left out:
// the status is asked for when something is wrong.
func (h *Handlers) lookAtEtcd(ctx context.Context, st *client.ClusterStatus) {
	for _, m := range h.Store.Members(ctx, etcdTimeout) {
		st.Etcd = append(st.Etcd, member(m))
	}

	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()

	if r, err := h.Store.Readable(ctx); err == nil {
		st.Revisions = client.Revisions{Newest: r.Newest, Oldest: r.Oldest}
	}

	if tasks, records, err := h.Store.SampleHistory(ctx, h.Cluster.Shards); err == nil && tasks > 0 {
		st.Room = room(*st, float64(records)/float64(tasks))
	}
}

func member(m store.Member) client.EtcdMember {
	out := client.EtcdMember{
		Name: m.Name, ID: m.ID, PeerURL: m.Peer, Socket: m.Socket, Endpoint: m.Endpoint, Version: m.Version, Fault: m.Fault, DBSize: m.Size, DBInUse: m.InUse, DBQuota: m.Quota,
		Leader: m.Leader, Learner: m.Learner, Index: m.Index, Applied: m.Applied, Alarms: append([]string{}, m.Alarms...),
	}
	if m.Err != nil {
		out.Error = m.Err.Error()
	}

	return out
}

// room does the sum: what the tasks take now, and how many such the quota carries.
func room(st client.ClusterStatus, history float64) *client.Room {
	var inUse, quota int64
	for _, m := range st.Etcd {
		inUse = max(inUse, m.DBInUse)
		if m.DBQuota > 0 && (quota == 0 || m.DBQuota < quota) {
			quota = m.DBQuota
		}
	}

	if st.Tasks < fewTasks || inUse == 0 || quota == 0 {
		return nil
	}

	each := max(inUse/st.Tasks, 1)

	return &client.Room{BytesPerTask: each, HistoryPerTask: float64(int64(history*10)) / 10, Tasks: quota / 100 * store.FillingUp / each}
}

func used(m client.EtcdMember) int { return store.Member{Size: m.DBSize, Quota: m.DBQuota}.Used() }

// etcdWarnings are what an operator should look at in etcd.
func etcdWarnings(st client.ClusterStatus) []task.Warning {
	var list []task.Warning
	for _, m := range st.Etcd {
		for _, w := range memberWarnings(m) {
			list = append(list, warning(task.WarnEtcdMember, "etcd at %s %s", m.Endpoint, w))
		}
	}

	if versions := distinct(st.Etcd, func(m client.EtcdMember) string { return m.Version }); len(versions) > 1 {
		list = append(list, warning(task.WarnEtcdVersions, "the members of etcd have different versions (%s): finish the upgrade", strings.Join(versions, ", ")))
	}

	quotas := distinct(st.Etcd, func(m client.EtcdMember) string {
		if m.DBQuota <= 0 {
			return ""
		}
		return mib(m.DBQuota)
	})

	if len(quotas) > 1 {
		list = append(list, warning(task.WarnEtcdQuotas, "the members of etcd have different quotas (%s): the smallest quota limits all of them", strings.Join(quotas, ", ")))
	}

	switch kept := st.Revisions.Newest - st.Revisions.Oldest; {
	case st.Revisions.Oldest == 0 || kept < manyRevisions:
	case st.Revisions.Oldest == 1:
		list = append(list, warning(task.WarnEtcdCompaction, "etcd has never been compacted and keeps all of its %d revisions: %s", st.Revisions.Newest, turnOn))
	default:
		list = append(list, warning(task.WarnEtcdCompaction, "etcd keeps %d revisions, because automatic compaction is off or too rare: %s", kept, turnOn))
	}

	return list
}

const turnOn = "start its members with --auto-compaction-mode revision --auto-compaction-retention 100000"

func memberWarnings(m client.EtcdMember) []string {
	var list []string
	warn := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }

	if m.Error != "" {
		warn("does not answer, or not well: %s", m.Error)
	}

	if m.Fault != "" {
		warn("is not one that Carillon works with: %s", m.Fault)
	}

	full := false
	for _, a := range m.Alarms {
		switch {
		case a == store.AlarmNoSpace && m.DBQuota > 0 && used(m) < store.FillingUp:
			warn("has space again, but still accepts no writes, and nothing fires: its alarm NOSPACE has to be disarmed")
		case a == store.AlarmNoSpace:
			full = true
		case a == store.AlarmCorrupt:
			warn("has raised the alarm CORRUPT: its data differ from the other members'. Nothing can be read or written until the member that is wrong is replaced")
		default:
			warn("has raised the alarm %s", a)
		}
	}

	free := m.DBSize - m.DBInUse
	switch percent := used(m); {
	case percent >= store.FillingUp:
		what := "compact it, keep less history, or give it a larger quota"
		if free > m.DBSize/5 {
			what = fmt.Sprintf("%s of that are free inside the file, and defragmenting gives them back", mib(free))
		}

		if full {
			warn("is full, at %d %% of its quota of %s: it accepts no writes. Nothing fires, and changes are refused, until there is space "+
				"and its alarm is disarmed: %s", percent, mib(m.DBQuota), what)
		} else {
			warn("is at %d %% of its quota of %s, and accepts no writes when it is full: %s", percent, mib(m.DBQuota), what)
		}
	case full:
		warn("is full: it accepts no writes. Nothing fires, and changes are refused, until there is space and its alarm is disarmed")
	case percent >= store.FillingUp/2 && free > m.DBSize/2:
		warn("uses %s of the %s of its file: the quota counts all of it, and defragmenting gives the rest back", mib(m.DBInUse), mib(m.DBSize))
	}

	if behind := m.Index - m.Applied; behind > farBehind {
		warn("is %d writes behind in applying what is agreed on: its disk or its processor is too slow", behind)
	}

	return list
}

func mib(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }

func distinct(members []client.EtcdMember, of func(client.EtcdMember) string) []string {
	var list []string
	for _, m := range members {
		if v := of(m); v != "" && !slices.Contains(list, v) {
			list = append(list, v)
		}
	}

	return list
}

// makeSpace are the command lines of etcdctl that make space, if a member needs
// it: compact, then defragment one member after the other, the leader last, as
// each stands still meanwhile; then disarm. embedded is how etcdctl reaches an
// etcd in the process.
func makeSpace(st client.ClusterStatus, embedded string) []string {
	var leaders, others, here []string
	needed, alarm, where := false, false, map[string]string{}
	for _, m := range st.Etcd {
		full := slices.Contains(m.Alarms, store.AlarmNoSpace)
		needed, alarm = needed || full || used(m) >= store.FillingUp, alarm || full

		endpoint := m.Endpoint
		if endpoint == store.Embedded && embedded != "" {
			endpoint = embedded
		}

		if m.Socket != "" { // only its own host reaches it
			endpoint = m.Socket + " " + m.Name // hosts may have the same path
			where[endpoint] = m.Name
		} else if m.DBSize > 0 {
			here = append(here, endpoint)
		}

		switch {
		case m.DBSize == 0: // it is away
		case m.Leader:
			leaders = append(leaders, endpoint)
		default:
			others = append(others, endpoint)
		}
	}

	endpoints := append(others, leaders...)
	if !needed || len(endpoints) == 0 {
		return nil
	}

	// The variable, because etcdctl refuses the flag where the variable is set, too.
	// Some of it may take minutes; without a word, etcdctl waits for five seconds.
	at := func(endpoints string) string {
		return "ETCDCTL_ENDPOINTS=" + endpoints + " etcdctl --command-timeout 10m "
	}

	if len(here) == 0 {
		return nil
	}

	if len(where) == 0 {
		here = endpoints
	}

	all := at(strings.Join(here, ","))
	var list []string
	if st.Revisions.Newest > 0 {
		list = append(list, fmt.Sprintf("%scompact --physical %d", all, st.Revisions.Newest))
	}

	for _, e := range endpoints {
		if name := where[e]; name != "" {
			list = append(list, fmt.Sprintf("%sdefrag # on the host of %s", at(strings.TrimSuffix(e, " "+name)), name))
			continue
		}
		list = append(list, at(e)+"defrag")
	}

	if alarm {
		list = append(list, all+"alarm disarm")
	}

	return list
}
