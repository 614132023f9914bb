// Package etcdadmin reports the members of etcd with their status and alarms, and adds and removes members of an
// embedded etcd.
//
// Guaranteed: a member of an embedded etcd is added or removed only if a majority of members that run remains. A new
// member has no vote before it has caught up. Not guaranteed: the status of a member is as of its last answer, and that
// of another member of an embedded etcd is as of the last announcement of its node.
//
// The package reads and writes no key: it uses etcd's API for maintenance and for the cluster. If a member does not
// answer, the error is in its [Member].
package etcdadmin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/clock"
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
	Quota    int64    // the size at which etcd stops accepting writes, in bytes; 0 if it is not known
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

// ErrNotEmbedded means that Carillon cannot change the members of this etcd, because it is not
// embedded.
var ErrNotEmbedded = errors.New("the etcd of this cluster is not embedded: use etcdctl to change its members")

// ErrRefused means that the member cannot be added or removed in the present state of the
// cluster.
var ErrRefused = errors.New("not possible")

// hexID returns the id of a member as etcdctl prints it.
func hexID(id uint64) string { return strconv.FormatUint(id, 16) }

// learnName adds the name and the peer URL of the member from the list of members.
func (m *Member) learnName(known []*etcdserverpb.Member) {
	if m.id == 0 {
		return
	}

	m.ID = hexID(m.id)
	for _, k := range known {
		if k.ID == m.id {
			m.Name = k.Name
			if len(k.PeerURLs) > 0 {
				m.Peer = k.PeerURLs[0]
			}
		}
	}
}

// embeddedOthers returns the other members of an embedded etcd, with the status that their
// nodes have announced. If the node of a member is not present, the member counts as
// unavailable, because a node loses its session without its member.
func (s Etcd) embeddedOthers(ctx context.Context, own Member, known []*etcdserverpb.Member) []Member {
	if len(known) < 2 {
		return nil
	}

	announced := map[string]*task.Member{}
	nodes, err := s.nodes.Nodes(ctx)
	for _, n := range nodes {
		if n.Member != nil {
			announced[n.Member.ID] = n.Member
		}
	}

	var members []Member
	for _, k := range known {
		if k.ID == own.id {
			continue
		}

		m := Member{Endpoint: Embedded, id: k.ID, Leader: k.ID == own.leader, Learner: k.IsLearner}
		if len(k.PeerURLs) > 0 {
			m.Endpoint = k.PeerURLs[0] // it distinguishes the members
		}

		switch a := announced[hexID(k.ID)]; {
		case a != nil:
			m.Socket = a.Socket
			m.Version, m.Size, m.InUse, m.Quota, m.Index, m.Applied = a.Version, a.DBSize, a.DBInUse, a.DBQuota, a.Index, a.Applied
			if err := kv.VersionFault(a.Version); err != nil {
				m.Fault = err.Error()
			}
		case err != nil:
			m.Err = fmt.Errorf("read its status: %w", err)
		case k.Name == "":
			m.Err = errors.New("it has not started yet")
		default:
			m.Err = errors.New("its node is not present")
		}

		members = append(members, m)
	}

	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.Endpoint, b.Endpoint) })

	return members
}

// OwnMember returns the status of the etcd in this process. It returns nil if there is none or
// it does not answer.
func (s Etcd) OwnMember(ctx context.Context) *task.Member {
	if len(s.etcd.Endpoints()) > 0 {
		return nil
	}

	m := s.askMember(ctx, "")
	if m.id == 0 {
		return nil
	}

	return &task.Member{ID: hexID(m.id), Version: m.Version, DBSize: m.Size, DBInUse: m.InUse, DBQuota: m.Quota, Index: m.Index, Applied: m.Applied}
}

// AddMember adds a member to an embedded etcd. The member is a learner first, and gets a vote
// when it runs and has caught up. AddMember returns task.ErrExists if there is a member of that
// name or at that URL, ErrNotEmbedded, ErrRefused, or task.ErrUnavailable without a majority.
func (s Etcd) AddMember(ctx context.Context, name, peer string) error {
	known, err := s.embeddedMembers(ctx)
	if err != nil {
		return fmt.Errorf("add member %s: %w", name, err)
	}

	for _, k := range known.Members {
		if k.Name == name || slices.Contains(k.PeerURLs, peer) {
			return fmt.Errorf("add member %s: %w: %s at %v; if that member is lost, remove it first", name, task.ErrExists, k.Name, k.PeerURLs)
		}
	}

	err = untilHealthy(ctx, func() error { _, err := s.etcd.MemberAddAsLearner(ctx, []string{peer}); return err })
	if err != nil {
		return fmt.Errorf("add member %s: %w", name, err)
	}

	return nil
}

// RemoveMember removes a member of an embedded etcd, by its name or its id. It returns
// task.ErrNotFound; ErrRefused if the majority would be lost or if it is the member of this
// process; ErrNotEmbedded; or task.ErrUnavailable without a majority.
func (s Etcd) RemoveMember(ctx context.Context, name string) error {
	known, err := s.embeddedMembers(ctx)
	if err != nil {
		return fmt.Errorf("remove member %s: %w", name, err)
	}

	for _, k := range known.Members {
		if k.Name != name && hexID(k.ID) != name {
			continue
		}

		// The member of this process has given the list. It is not removed, because its node would lose etcd before it
		// could answer.
		if k.ID == known.Header.MemberId {
			return fmt.Errorf("remove member %s: %w: it is the etcd of this node; use another node", name, ErrRefused)
		}

		err := untilHealthy(ctx, func() error { _, err := s.etcd.MemberRemove(ctx, k.ID); return err })
		if err != nil {
			return fmt.Errorf("remove member %s: %w", name, err)
		}

		return nil
	}

	return fmt.Errorf("remove member %s: %w", name, task.ErrNotFound)
}

// embeddedMembers lists the members of an embedded etcd, if it can have more than one.
func (s Etcd) embeddedMembers(ctx context.Context) (*clientv3.MemberListResponse, error) {
	if len(s.etcd.Endpoints()) > 0 {
		return nil, ErrNotEmbedded
	}

	res, err := s.etcd.MemberList(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	if len(res.Members) == 1 && !slices.ContainsFunc(res.Members[0].PeerURLs, isHTTP) {
		return nil, fmt.Errorf("%w: this etcd can have only one member, because it was started without initial_cluster", ErrRefused)
	}

	return res, nil
}

func isHTTP(u string) bool { return len(u) > 4 && u[:4] == "http" }

// untilHealthy calls try until it succeeds, for about seven seconds, and translates its errors.
// etcd changes its members only if the remaining ones have been connected for five seconds.
func untilHealthy(ctx context.Context, try func() error) error {
	deadline := time.Now().Add(7 * time.Second)
	wait := 20 * time.Millisecond

	for {
		err := try()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, rpctypes.ErrMemberNotEnoughStarted):
			return fmt.Errorf("%w: the remaining members that run would not be a majority", ErrRefused)
		case errors.Is(err, rpctypes.ErrTooManyLearners):
			return fmt.Errorf("%w: another member has been added and has not started yet: start it, or remove it by its id", ErrRefused)
		case !errors.Is(err, rpctypes.ErrUnhealthy):
			return fmt.Errorf("%w: %w", task.ErrUnavailable, err)
		case time.Now().After(deadline):
			return fmt.Errorf("%w: etcd is not healthy enough to change its members: more than half must have run for five seconds; "+
				"remove a lost member before you add another", task.ErrUnavailable)
		}

		if !clock.Sleep(ctx, wait) {
			return fmt.Errorf("%w: %w", task.ErrUnavailable, context.Cause(ctx))
		}

		wait = min(2*wait, time.Second)
	}
}
