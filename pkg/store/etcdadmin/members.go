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

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/task"
)

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

	for _, k := range known {
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

	// The member of this process is not removed, because its node would lose etcd before it could
	// answer.
	own := s.OwnMember(ctx)

	for _, k := range known {
		if k.Name != name && hexID(k.ID) != name {
			continue
		}
		if own != nil && own.ID == hexID(k.ID) {
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
func (s Etcd) embeddedMembers(ctx context.Context) ([]*etcdserverpb.Member, error) {
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

	return res.Members, nil
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
