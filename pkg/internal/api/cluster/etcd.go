package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// etcdTimeout limits how long the members of etcd may take to report their status.
	etcdTimeout = 2 * time.Second
	// manyRevisions is a number of revisions that etcd never keeps if compaction is configured as recommended:
	// 100,000, plus what the fastest etcd adds in five minutes.
	manyRevisions = 1_000_000
	// farBehind is the number of entries that a member may lag in applying before it is reported. etcd refuses
	// writes at 5,000.
	farBehind = 1000
)

// readEtcd adds the state of etcd to the status. It leaves out what etcd does not report, and then returns false. A member that does
// not answer is part of the state.
func (r *StatusReader) readEtcd(ctx context.Context, st *client.ClusterStatus) bool {
	for _, m := range r.Store.Members(ctx, etcdTimeout) {
		st.Etcd = append(st.Etcd, showMember(m))
	}

	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()

	readable, err := r.Store.Readable(ctx)
	if err == nil {
		st.Revisions = client.Revisions{Newest: readable.Newest, Oldest: readable.Oldest}
	}

	return err == nil
}

// showMember converts a member to the form of the API.
func showMember(m etcdadmin.Member) client.EtcdMember {
	out := client.EtcdMember{
		Name: m.Name, ID: m.ID, PeerURL: m.Peer, Socket: m.Socket, Endpoint: m.Endpoint, Version: m.Version, Fault: m.Fault, DBSize: m.Size, DBInUse: m.InUse, DBQuota: m.Quota,
		Leader: m.Leader, Learner: m.Learner, Index: m.Index, Applied: m.Applied, Alarms: append([]string{}, m.Alarms...),
	}
	if m.Err != nil {
		out.Error = m.Err.Error()
	}

	return out
}

// memberUse returns how much of its quota a member uses, in percent.
func memberUse(m client.EtcdMember) int {
	return etcdadmin.Member{Size: m.DBSize, Quota: m.DBQuota}.Used()
}

// etcdWarnings returns the warnings about etcd.
func etcdWarnings(st client.ClusterStatus) []task.Warning {
	var list []task.Warning
	for _, m := range st.Etcd {
		// Whatever else is wrong with a member, an alarm is why nothing can be written.
		code := task.WarnEtcdMember
		if len(m.Alarms) > 0 {
			code = task.WarnEtcdAlarm
		}
		for _, w := range memberWarnings(m) {
			list = append(list, newWarning(code, "etcd at %s %s", m.Endpoint, w))
		}
	}

	if versions := distinctValues(st.Etcd, func(m client.EtcdMember) string { return m.Version }); len(versions) > 1 {
		list = append(list, newWarning(task.WarnEtcdVersions, "the members of etcd have different versions (%s): finish the upgrade", strings.Join(versions, ", ")))
	}

	quotas := distinctValues(st.Etcd, func(m client.EtcdMember) string {
		if m.DBQuota <= 0 {
			return ""
		}
		return formatMiB(m.DBQuota)
	})

	if len(quotas) > 1 {
		list = append(list, newWarning(task.WarnEtcdQuotas, "the members of etcd have different quotas (%s): the smallest quota limits all of them", strings.Join(quotas, ", ")))
	}

	// Revision 1 as the oldest means that no compaction has ever run.
	switch kept := st.Revisions.Newest - st.Revisions.Oldest; {
	case st.Revisions.Oldest == 0 || kept < manyRevisions:
	case st.Revisions.Oldest == 1:
		list = append(list, newWarning(task.WarnEtcdCompaction, "etcd has never been compacted and keeps all of its %d revisions: %s", st.Revisions.Newest, enableCompactionHint))
	default:
		list = append(list, newWarning(task.WarnEtcdCompaction, "etcd keeps %d revisions, because automatic compaction is off or too rare: %s", kept, enableCompactionHint))
	}

	return list
}

const enableCompactionHint = "start its members with --auto-compaction-mode revision --auto-compaction-retention 100000"

// memberWarnings returns the problems of one member, as text to append to its name.
func memberWarnings(m client.EtcdMember) []string {
	var list []string
	warn := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }

	if m.Error != "" {
		warn("does not respond, or responds with an error: %s", m.Error)
	}

	if m.Fault != "" {
		warn("has a version that Carillon does not support: %s", m.Fault)
	}

	full := false
	for _, a := range m.Alarms {
		switch {
		// etcd keeps the alarm after space was freed, until an operator disarms it.
		case a == etcdadmin.AlarmNoSpace && m.DBQuota > 0 && memberUse(m) < etcdadmin.FillingUp:
			warn("has space again but still accepts no writes, so nothing fires: disarm its alarm NOSPACE")
		case a == etcdadmin.AlarmNoSpace:
			full = true
		case a == etcdadmin.AlarmCorrupt:
			warn("has raised the alarm CORRUPT: its data differ from those of the other members. Nothing can be read or written until the faulty member is replaced")
		default:
			warn("has raised the alarm %s", a)
		}
	}

	// Space that is free inside the file counts against the quota until the member is defragmented.
	free := m.DBSize - m.DBInUse
	switch percent := memberUse(m); {
	case percent >= etcdadmin.FillingUp:
		what := "compact it, keep less history, or increase its quota"
		if free > m.DBSize/5 {
			what = fmt.Sprintf("%s of that are free inside the file; defragmentation reclaims them", formatMiB(free))
		}

		if full {
			warn("is full, at %d %% of its quota of %s: it accepts no writes. Nothing fires, and changes are refused, until there is space "+
				"and its alarm is disarmed: %s", percent, formatMiB(m.DBQuota), what)
		} else {
			warn("is at %d %% of its quota of %s, and accepts no writes when it is full: %s", percent, formatMiB(m.DBQuota), what)
		}
	case full:
		warn("is full: it accepts no writes. Nothing fires, and changes are refused, until there is space and its alarm is disarmed")
	case percent >= etcdadmin.FillingUp/2 && free > m.DBSize/2:
		warn("uses %s of the %s of its file: the quota counts the whole file; defragmentation reclaims the rest", formatMiB(m.DBInUse), formatMiB(m.DBSize))
	}

	if behind := m.Index - m.Applied; behind > farBehind {
		warn("has not applied the last %d committed writes: its disk or its processor is too slow", behind)
	}

	return list
}

// formatMiB formats a number of bytes.
func formatMiB(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }

// distinctValues returns the different non-empty values of a property of the members.
func distinctValues(members []client.EtcdMember, of func(client.EtcdMember) string) []string {
	var list []string
	for _, m := range members {
		if v := of(m); v != "" && !slices.Contains(list, v) {
			list = append(list, v)
		}
	}

	return list
}

// makeSpace returns the etcdctl commands that free space, if a member needs it: compact, then defragment the
// members one by one, then disarm the alarm. The leader comes last, because a member does not respond while it
// is defragmented. embedded contains the arguments with which etcdctl reaches an embedded etcd.
func makeSpace(st client.ClusterStatus, embedded string) []string {
	var leaders, others, here []string
	needed, alarm, where := false, false, map[string]string{}
	for _, m := range st.Etcd {
		full := slices.Contains(m.Alarms, etcdadmin.AlarmNoSpace)
		needed, alarm = needed || full || memberUse(m) >= etcdadmin.FillingUp, alarm || full

		endpoint := m.Endpoint
		if endpoint == etcdadmin.Embedded && embedded != "" {
			endpoint = embedded
		}

		if m.Socket != "" { // only the member's own host can connect to it
			endpoint = m.Socket + " " + m.Name // the name makes endpoints distinct, because hosts may use the same path
			where[endpoint] = m.Name
		} else if m.DBSize > 0 {
			here = append(here, endpoint)
		}

		switch {
		case m.DBSize == 0: // the member does not answer
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

	// The commands set the variable ETCDCTL_ENDPOINTS, because etcdctl rejects the flag if the variable is set
	// as well. The timeout is long because these commands may take minutes, and the default is 5 s.
	at := func(endpoints string) string {
		return "ETCDCTL_ENDPOINTS=" + endpoints + " etcdctl --command-timeout 10m "
	}

	if len(here) == 0 {
		return nil
	}

	// Without sockets, one command reaches all members.
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

// listMembers serves the members of etcd, sorted by name.
func (h *Handlers) listMembers(c *httpapi.Call) (httpapi.Answer, error) {
	list := []client.EtcdMember{}
	for _, m := range h.Store.Members(c.Context(), etcdTimeout) {
		list = append(list, showMember(m))
	}

	slices.SortStableFunc(list, func(a, b client.EtcdMember) int { return strings.Compare(a.Name, b.Name) })

	return httpapi.All(list)
}

// addMember serves the addition of a member.
func (h *Handlers) addMember(c *httpapi.Call) (httpapi.Answer, error) {
	var ask client.AddMemberRequest
	if err := c.Decode(&ask); err != nil {
		return httpapi.Answer{}, err
	}
	if err := task.CheckName("name", ask.Name); err != nil {
		return httpapi.Answer{}, err
	}

	u, err := url.Parse(ask.PeerURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.Path != "" || u.User != nil {
		return httpapi.Answer{}, task.Invalid(task.CodeBadValue, "peer_url", "%s is not a URL such as https://10.0.0.4:2380", task.Quote(ask.PeerURL))
	}

	err = c.Rights().RecordAround(c.Context(), h.Store, memberObject(ask.Name, "put"), func() error {
		return h.Store.AddMember(c.Context(), ask.Name, ask.PeerURL)
	})
	if err != nil {
		return httpapi.Answer{}, memberFailure(err)
	}

	h.noteChange(c, fmt.Sprintf("etcd member %s added at %s", ask.Name, ask.PeerURL))

	return h.answerMembers(c, http.StatusCreated, ask.Name, ask.PeerURL), nil
}

// removeMember serves the removal of a member.
func (h *Handlers) removeMember(c *httpapi.Call) (httpapi.Answer, error) {
	name := c.Request.PathValue("member")
	if err := task.CheckName("member", name); err != nil {
		return httpapi.Answer{}, err
	}

	err := c.Rights().RecordAround(c.Context(), h.Store, memberObject(name, "delete"), func() error {
		return h.Store.RemoveMember(c.Context(), name)
	})
	if err != nil {
		return httpapi.Answer{}, memberFailure(err)
	}

	h.noteChange(c, fmt.Sprintf("etcd member %s removed", name))

	return h.answerMembers(c, http.StatusOK, name, ""), nil
}

func memberObject(name, change string) []task.AuditObject {
	return []task.AuditObject{{Kind: "member", Name: name, Change: change}}
}

// answerMembers returns the members after a change. added is the peer URL of a new member; etcd does not know its
// name until it has started.
func (h *Handlers) answerMembers(c *httpapi.Call, status int, name, added string) httpapi.Answer {
	out := client.MemberChange{Name: name}
	var list []string
	for _, m := range h.Store.Members(c.Context(), etcdTimeout) {
		if m.Peer == added && added != "" {
			m.Name = name
		}
		list = append(list, m.Name+"="+m.Peer)
	}

	slices.Sort(list)
	out.InitialCluster, out.Members = strings.Join(list, ","), len(list)
	if len(list)%2 == 0 {
		out.WarningCode = task.WarnEvenMembers
		out.Warning = fmt.Sprintf("%d members tolerate no more failures than %d; use an odd number", len(list), len(list)-1)
	}

	return httpapi.Answer{Status: status, Body: out}
}

// memberFailure converts an error of the store to a failure, with the store's text. A conflict here is not a
// changed record, so a retry would not help.
func memberFailure(err error) error {
	switch {
	case errors.Is(err, task.ErrExists):
		return httpapi.Fail(http.StatusConflict, client.CodeExists, "%s", err)
	case errors.Is(err, etcdadmin.ErrNotEmbedded), errors.Is(err, etcdadmin.ErrRefused):
		return httpapi.Fail(http.StatusConflict, client.CodeConflict, "%s", err)
	case errors.Is(err, task.ErrUnavailable):
		return httpapi.Fail(http.StatusServiceUnavailable, client.CodeUnavailable, "%s", err).
			WithHint("members cannot be changed while more than half of them are unavailable").Because(err)
	}

	return err
}
