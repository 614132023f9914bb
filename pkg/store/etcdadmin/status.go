package etcdadmin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// Etcd reports the members of an etcd, and changes those of an embedded one.
type Etcd struct {
	etcd  *kv.Client
	nodes NodeLister
}

// NodeLister lists the records of the nodes that are present.
type NodeLister interface {
	Nodes(ctx context.Context) ([]task.Node, error)
}

// New returns the administration of the etcd to which a client is connected.
func New(etcd *kv.Client, nodes NodeLister) Etcd { return Etcd{etcd: etcd, nodes: nodes} }

// Embedded is the endpoint of an etcd inside the process of a node.
const Embedded = "embedded"

// These are percentages of the quota: from FillingUp on, an etcd is filling up, and from
// NearlyFull on, it is nearly full.
const (
	FillingUp  = 80
	NearlyFull = 95
)

// The alarms of etcd. They remain until an operator disarms them.
const (
	AlarmNoSpace = "NOSPACE"
	AlarmCorrupt = "CORRUPT"
)

// Member is a member of etcd with the status that it reports.
type Member struct {
	Name     string   // empty if the member has never run or was not asked
	ID       string   // hexadecimal; empty if it is not known
	Peer     string   // the URL for other members; empty if there are none
	Socket   string   // for the embedded etcd of another node: the socket for clients on its host
	Endpoint string   // where this client reaches the member; Embedded for the one in this process; the peer URL for other embedded members
	Version  string   // of etcd
	Fault    string   // why Carillon does not accept the version; empty if it does
	Size     int64    // bytes on disk, which count against the quota
	InUse    int64    // the part of Size that is in use, in bytes
	Quota    int64    // the size from which on etcd accepts no writes, in bytes; 0 if it is not known
	Leader   bool     // it is the leader of etcd
	Learner  bool     // it has no vote yet
	Revision int64    // the revision of the store on this member
	Index    int64    // the last committed entry of the log
	Applied  int64    // the last applied entry of the log
	Alarms   []string // of this member
	Err      error    // why the status is incomplete: no answer, no leader, or no alarms

	id, leader uint64 // its own id and that of the leader; 0: not known
}

// Used returns how much of the quota is used, in percent, or 0 if it is not known.
func (m Member) Used() int {
	if m.Quota <= 0 {
		return 0
	}
	return int(m.Size * 100 / m.Quota)
}

// Members requests the status of every member of etcd in parallel, and waits at most timeout.
// First come the members at the endpoints of the client, in their order, then those that only
// etcd knows. An embedded etcd serves only its own process, so the status of its other members
// comes from the records of their nodes.
func (s Etcd) Members(ctx context.Context, timeout time.Duration) []Member {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	endpoints := s.etcd.Endpoints()
	if len(endpoints) == 0 {
		endpoints = []string{""} // the etcd in this process
	}

	var known []*etcdserverpb.Member
	var alarms *clientv3.AlarmResponse
	var alarmErr error
	var members []Member
	callgroup.Run(
		func() {
			if res, err := s.etcd.MemberList(ctx); err == nil {
				known = res.Members
			}
		},
		func() { alarms, alarmErr = s.etcd.AlarmList(ctx) },
		func() { members = s.askMembers(ctx, endpoints) },
	)

	// An embedded etcd: its other members cannot be reached by this client.
	if len(s.etcd.Endpoints()) == 0 {
		members = append(members, s.embeddedOthers(ctx, members[0], known)...)
		for i := range members {
			members[i].learnAlarms(alarms, alarmErr)
			members[i].learnName(known)
		}

		return members
	}

	// Also ask the members that are not among the endpoints of the client.
	var others []string
	for _, k := range known {
		asked := slices.ContainsFunc(members, func(m Member) bool {
			return m.id == k.ID || slices.Contains(k.ClientURLs, m.Endpoint)
		})

		if !asked && len(k.ClientURLs) > 0 {
			others = append(others, k.ClientURLs[0])
		}
	}

	slices.Sort(others)
	members = append(members, s.askMembers(ctx, others)...)
	for i := range members {
		members[i].learnAlarms(alarms, alarmErr)
		members[i].learnName(known)
	}

	return members
}

// learnAlarms adds the alarms of the member, or the error with which they could not be read.
func (m *Member) learnAlarms(res *clientv3.AlarmResponse, err error) {
	if m.Err != nil {
		return
	}

	if err != nil {
		m.Err = fmt.Errorf("cannot read its alarms: %w", err)
		return
	}

	for _, a := range res.Alarms {
		if a.MemberID == m.id {
			m.Alarms = append(m.Alarms, a.Alarm.String())
		}
	}
}

// askMembers requests the status of several members in parallel.
func (s Etcd) askMembers(ctx context.Context, endpoints []string) []Member {
	members := make([]Member, len(endpoints))
	calls := make([]func(), len(endpoints))
	for i, endpoint := range endpoints {
		calls[i] = func() { members[i] = s.askMember(ctx, endpoint) }
	}
	callgroup.Run(calls...)

	return members
}

// askMember requests the status of the member at an endpoint. Empty means the own process.
func (s Etcd) askMember(ctx context.Context, endpoint string) Member {
	m := Member{Endpoint: endpoint}
	if endpoint == "" {
		m.Endpoint = Embedded
	}

	st, err := s.etcd.Status(ctx, endpoint)
	if err == nil && st.Header == nil {
		err = errors.New("its answer has no header")
	}

	if err != nil {
		m.Err = fmt.Errorf("read its status: %w", err)
		return m
	}

	m.id, m.leader = st.Header.MemberId, st.Leader
	m.Leader, m.Learner = m.id == m.leader, st.IsLearner
	m.Version, m.Size, m.InUse, m.Quota = st.Version, st.DbSize, st.DbSizeInUse, st.DbSizeQuota
	m.Revision, m.Index, m.Applied = st.Header.Revision, int64(st.RaftIndex), int64(st.RaftAppliedIndex)
	if err := kv.VersionFault(st.Version); err != nil {
		m.Fault = err.Error()
	}

	if st.Leader == 0 {
		m.Err = errors.New("it has no leader")
	}

	return m
}
