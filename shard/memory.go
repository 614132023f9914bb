package shard

import (
	"maps"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// memory is what a leader remembers during one term: since when things are as they are. A new leader starts
// without it. It uses the leader's clock only.
type memory struct {
	grace time.Duration // how long most nodes have time to come back together
	limit time.Duration // how long a next owner has time to load a shard

	nodes     map[string]*visits   // by name
	handovers map[int]handoverSeen // by shard
	vanished  time.Time            // since when most nodes are gone; zero: they are not
}

// newMemory returns the memory of a leader at the beginning of its term.
func newMemory(grace, limit time.Duration) *memory {
	return &memory{grace: grace, limit: limit, nodes: map[string]*visits{}, handovers: map[int]handoverSeen{}}
}

// visits records how one node has come and gone.
type visits struct {
	session int64     // create revision of its node key when it was last present
	fit     bool      // it could own shards the last time
	since   time.Time // since when it is fit, or not
	returns int       // how often it came back since it last stayed for steadyAfter
}

// handoverSeen is when the leader first saw a handover to a node.
type handoverSeen struct {
	to    string
	since time.Time
}

const (
	// steadyAfter is how long a node must stay until its returns are forgotten.
	steadyAfter = 2 * time.Minute
	// firstWait is how long a node must stay to get shards when it has come back twice. Each further return
	// doubles the time, up to maxWait. The first return has no delay.
	firstWait = 2 * time.Second
	maxWait   = time.Minute
	// forgetAfter is how long a node that is gone is remembered.
	forgetAfter = 10 * time.Minute
)

// requiredStay returns how long a node must have been present to get shards.
func (v *visits) requiredStay() time.Duration {
	if v.returns < 2 {
		return 0
	}
	return min(firstWait<<min(v.returns-2, 10), maxWait)
}

// recordLineup records the state that was read at now, and returns what follows from the past. again is the time
// after which that may change without an event, or 0 if it does not.
func (m *memory) recordLineup(now time.Time, l store.Lineup) (notes Notes, again time.Duration) {
	// soonest reports whether an instant has passed. If not, it makes again at most the time that is left.
	soonest := func(at time.Time) (past bool) {
		left := at.Sub(now)
		if left > 0 && (again == 0 || left < again) {
			again = left
		}
		return left <= 0
	}

	m.updateVisits(now, l.Nodes)
	notes.Newcomers, notes.Late = map[string]bool{}, map[int]bool{}

	owns := map[string]bool{}
	for _, o := range l.Owners {
		owns[o.Node] = true
	}

	for name, v := range m.nodes {
		// A node that still owns shards is not delayed: nobody has taken them over.
		if v.fit && !owns[name] && !soonest(v.since.Add(v.requiredStay())) {
			notes.Newcomers[name] = true
		}
	}

	// Hold all moves for the grace period after most nodes have disappeared. After that, they are treated
	// as dead.
	if m.mostGone(l) {
		if m.vanished.IsZero() {
			m.vanished = now
		}
		notes.Hold = !soonest(m.vanished.Add(m.grace))
	} else {
		m.vanished = time.Time{}
	}

	for id, at := range m.handoverDeadlines(now, l) {
		if soonest(at) {
			notes.Late[id] = true
		}
	}

	return notes, again
}

// updateVisits records which nodes have come, gone, or come back.
func (m *memory) updateVisits(now time.Time, nodes []task.Node) {
	present := map[string]bool{}
	for _, n := range nodes {
		present[n.Name] = true
		v := m.nodes[n.Name]
		switch {
		case v == nil:
			// A node that this leader sees for the first time.
			v = &visits{since: now}
			m.nodes[n.Name] = v
		case n.Owns() && (!v.fit || v.session != n.Revision):
			// It could not own shards the last time, or has a new session: it was away in between.
			v.returns++
			v.since = now
		case n.Owns() != v.fit:
			// It cannot own shards any more.
			v.since = now
		case v.fit && now.Sub(v.since) >= steadyAfter:
			// It has stayed for long enough.
			v.returns = 0
		}

		v.session, v.fit = n.Revision, n.Owns()
	}

	for name, v := range m.nodes {
		if present[name] {
			continue
		}

		if v.fit {
			v.fit, v.since = false, now
		}

		if now.Sub(v.since) > forgetAfter {
			delete(m.nodes, name)
		}
	}
}

// mostGone reports whether more than half of the nodes that own shards, and more than one, have lost their
// sessions together, and some of them are still away. That happens when a stalled etcd leader ends all
// leases at once. Nodes that are back count as well: they own shards under an owner key that is older than
// their new session.
func (m *memory) mostGone(l store.Lineup) bool {
	nodes := map[string]task.Node{}
	for _, n := range l.Nodes {
		nodes[n.Name] = n
	}

	// lost counts owners whose session has ended, whether they are back or not.
	owners, lost, away := map[string]bool{}, map[string]bool{}, false
	for _, o := range l.Owners {
		if o.Node == "" {
			continue
		}

		owners[o.Node] = true
		n, present := nodes[o.Node]
		away = away || !present

		if !present || o.Fence < n.Revision && m.justJoined(n) {
			lost[o.Node] = true
		}
	}

	return away && len(lost) > 1 && 2*len(lost) > len(owners)
}

// justJoined reports whether a node's session is younger than the grace period. It compares two times of
// the node's own clock from its record, so differences between clocks do not matter.
func (m *memory) justJoined(n task.Node) bool {
	age := n.Clock.Sub(n.JoinedAt.Time)
	return !n.JoinedAt.IsZero() && 0 <= age && age < m.grace
}

// handoverDeadlines returns, by shard, until when next owners have time to load their shards. The time
// starts when this leader first saw the handover, and only its own clock matters. For a shard of a node
// that drains, the limit may be shorter.
func (m *memory) handoverDeadlines(now time.Time, l store.Lineup) map[int]time.Time {
	// A node that drains announces within which time it wants to hand over its shards.
	draining := map[string]time.Duration{}
	for _, n := range l.Nodes {
		if n.State == task.NodeDraining && n.HandoverWithin > 0 {
			draining[n.Name] = n.HandoverWithin.Std()
		}
	}

	limits := map[int]time.Duration{}
	for _, o := range l.Owners {
		if d, ok := draining[o.Node]; ok {
			limits[o.Shard] = min(d, m.limit)
		}
	}

	deadlines := map[int]time.Time{}
	for _, h := range l.Handovers {
		// The time starts over if the handover is to another node now.
		seen := m.handovers[h.Shard]
		if seen.to != h.To || seen.since.IsZero() {
			seen = handoverSeen{h.To, now}
		}

		m.handovers[h.Shard] = seen
		limit, ok := limits[h.Shard]
		if !ok {
			limit = m.limit
		}

		deadlines[h.Shard] = seen.since.Add(limit)
	}

	// Forget handovers that are over.
	maps.DeleteFunc(m.handovers, func(id int, _ handoverSeen) bool { _, there := deadlines[id]; return !there })

	return deadlines
}
