package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

// Etcd tells of the etcd behind the store, and not of records: its members, its
// alarms, which revisions it still has. It changes the members of an embedded one.
type Etcd struct{ *conn }

// Embedded is the endpoint of an etcd in the own process.
const Embedded = "embedded"

// From these parts of its quota on, in percent, an etcd is filling up, and
// nearly full.
const (
	FillingUp  = 80
	NearlyFull = 95
)

// The alarms that etcd raises, and keeps until they are disarmed.
const (
	AlarmNoSpace = "NOSPACE"
	AlarmCorrupt = "CORRUPT"
)

// Member is a member of etcd and what it says of itself.
type Member struct {
	Name     string // "" if it has never run, or was not asked
	ID       string // hexadecimal; "" if it is not known
	Peer     string // where the others reach it; "" if it has no others
	Socket   string // of another node's embedded etcd: where clients on its host reach it
	Endpoint string // Embedded for the one in this process, and in another node's; "" if it has none
	Version  string
	Fault    string // why Carillon would refuse that version; "" if it would not
	Size     int64  // bytes on disk: what the quota counts
	InUse    int64  // bytes of them in use
	Quota    int64  // bytes after which it takes no more writes; 0 if it does not tell
	Leader   bool
	Learner  bool
	Revision int64 // of the store, as this member knows it
	Index    int64 // of the last entry of the log that is committed
	Applied  int64 // of the last that is applied
	Alarms   []string
	Err      error // it did not answer, or not well: it knows no leader, or does not tell its alarms

	id, leader uint64
}

// Used is the part of the quota that is used, in percent; 0 if either is unknown.
func (m Member) Used() int {
	if m.Quota <= 0 {
		return 0
	}
	return int(m.Size * 100 / m.Quota)
}

// Members asks every member of etcd, all at once, for at most timeout: those
// at the endpoints that the client has, in their order, then those that only
// etcd knows of.
// An embedded etcd answers its own process only: the others' nodes tell.
func (s Etcd) Members(ctx context.Context, timeout time.Duration) []Member {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	endpoints := s.etcd.Endpoints()
	if len(endpoints) == 0 {
		endpoints = []string{""} // in the process
	}

	var known []*etcdserverpb.Member
	var alarms *clientv3.AlarmResponse
	var alarmErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		if res, err := s.etcd.MemberList(ctx); err == nil {
			known = res.Members
		}
	})

	wg.Go(func() { alarms, alarmErr = s.etcd.AlarmList(ctx) })
	members := s.askMembers(ctx, endpoints)
	wg.Wait()

	if len(s.etcd.Endpoints()) == 0 {
		members = append(members, s.embeddedOthers(ctx, members[0], known)...)
		for i := range members {
			members[i].learnAlarms(alarms, alarmErr)
			members[i].learnName(known)
		}

		return members
	}

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

func (m *Member) learnAlarms(res *clientv3.AlarmResponse, err error) {
	if m.Err != nil {
		return
	}

	if err != nil {
		m.Err = fmt.Errorf("it does not tell its alarms: %w", err)
		return
	}

	for _, a := range res.Alarms {
		if a.MemberID == m.id {
			m.Alarms = append(m.Alarms, a.Alarm.String())
		}
	}
}

func (s Etcd) askMembers(ctx context.Context, endpoints []string) []Member {
	members := make([]Member, len(endpoints))
	var wg sync.WaitGroup

	for i, endpoint := range endpoints {
		wg.Go(func() { members[i] = s.askMember(ctx, endpoint) })
	}

	wg.Wait()

	return members
}

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
		m.Err = fmt.Errorf("ask for its status: %w", err)
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
		m.Err = errors.New("it knows no leader")
	}

	return m
}

// Readable are the revisions of etcd that can be read.
type Readable struct{ Oldest, Newest int64 }

// Readable finds them. What is older than the oldest has been compacted away.
// etcd tells where that is only to who reads beyond it, so this takes some
// thirty reads of one key.
func (s Etcd) Readable(ctx context.Context) (Readable, error) {
	read := func(rev int64) (int64, error) {
		res, err := s.etcd.Get(ctx, s.keys.Cluster(), clientv3.WithRev(rev), clientv3.WithCountOnly())
		if err != nil {
			return 0, err
		}
		return res.Header.Revision, nil
	}

	newest, err := read(0)
	low, high := int64(1), newest
	for err == nil && low < high {
		middle := low + (high-low)/2
		switch _, err = read(middle); {
		case err == nil:
			high = middle
		case errors.Is(err, rpctypes.ErrCompacted):
			low, err = middle+1, nil
		}
	}

	if err != nil {
		return Readable{}, fmt.Errorf("find the oldest revision: %w: %w", task.ErrUnavailable, err)
	}

	return Readable{Oldest: high, Newest: newest}, nil
}

// SampleHistory counts tasks and records of history in a few of the shards, so
// that their ratio tells of the whole at no great cost: a count walks over all
// keys that it counts.
func (s Etcd) SampleHistory(ctx context.Context, shards int) (tasks, records int64, err error) {
	const most = 8
	var ops []clientv3.Op
	for i := range min(shards, most) {
		shard := i * shards / min(shards, most)
		for _, prefix := range []string{s.keys.Entries(shard), s.keys.History(shard)} {
			ops = append(ops, clientv3.OpGet(prefix, withPrefix(prefix), clientv3.WithCountOnly()))
		}
	}

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return 0, 0, fmt.Errorf("count the history of some shards: %w: %w", task.ErrUnavailable, err)
	}

	for i, r := range res.Responses {
		if i%2 == 0 {
			tasks += r.GetResponseRange().Count
		} else {
			records += r.GetResponseRange().Count
		}
	}

	return tasks, records, nil
}
