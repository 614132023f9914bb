package shard

import (
	"maps"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// memory is what a leader remembers from update to update, for one term: since when
// things are as they are. A new leader begins without any.
type memory struct {
	grace time.Duration // for most nodes to come back together
	limit time.Duration // for a shard to be loaded by its next owner

	nodes     map[string]*visits
	handovers map[int]handoverSeen
	vanished  time.Time // since when most nodes are gone; zero: they are not
}

func newMemory(grace, limit time.Duration) *memory {
	return &memory{grace: grace, limit: limit, nodes: map[string]*visits{}, handovers: map[int]handoverSeen{}}
}

// visits are the comings and goings of one node.
type visits struct {
	session int64 // the last that was seen
	fit     bool  // it could own shards at the last look
	since   time.Time
	returns int // since it last stayed for steady
}

type handoverSeen struct {
	to    string
	since time.Time
}

const (
	// steadyAfter is how long a node has to stay for its returns to be forgotten.
	steadyAfter = 2 * time.Minute
	// firstWait is how long a node waits for shards that has come back twice; each
	// further return doubles it, up to mostWait. The first return is free.
	firstWait = 2 * time.Second
	mostWait  = time.Minute
	// forgetAfter is how long a node is remembered that is gone.
	forgetAfter = 10 * time.Minute
)

// requiredStay is how long a node must have been there to be given shards.
func (v *visits) requiredStay() time.Duration {
	if v.returns < 2 {
		return 0
	}
	return min(firstWait<<min(v.returns-2, 10), mostWait)
}

// update takes in what there is at now. again is when to look again, though nothing
// has changed; 0 if nothing will be different by itself.
func (m *memory) update(now time.Time, l store.Lineup) (notes Notes, again time.Duration) {
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
		// One that still owns shards has not been missed.
		if v.fit && !owns[name] && !soonest(v.since.Add(v.requiredStay())) {
			notes.Newcomers[name] = true
		}
	}

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

// updateVisits notes who has come, who has gone, and who has come again.
func (m *memory) updateVisits(now time.Time, nodes []task.Node) {
	present := map[string]bool{}
	for _, n := range nodes {
		present[n.Name] = true
		v := m.nodes[n.Name]
		switch {
		case v == nil:
			v = &visits{since: now}
			m.nodes[n.Name] = v
		case n.Owns() && (!v.fit || v.session != n.Revision):
			v.returns++
			v.since = now
		case n.Owns() != v.fit:
			v.since = now
		case v.fit && now.Sub(v.since) >= steadyAfter:
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

// mostGone reports whether more than half of the nodes that own shards have lost
// their sessions together, and some of them are still away: as when etcd revokes
// all leases at once. Those that are back count too: they own their shards from
// before their session, which is new.
func (m *memory) mostGone(l store.Lineup) bool {
	nodes := map[string]task.Node{}
	for _, n := range l.Nodes {
		nodes[n.Name] = n
	}

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

// justJoined reports whether a node's session is younger than the grace, by what
// it said last, and by its own clock alone.
func (m *memory) justJoined(n task.Node) bool {
	age := n.Clock.Sub(n.JoinedAt.Time)
	return !n.JoinedAt.IsZero() && 0 <= age && age < m.grace
}

// handoverDeadlines are until when next owners have time to load their shards. The time
// runs from when this leader first saw the handover: no clock but its own counts.
func (m *memory) handoverDeadlines(now time.Time, l store.Lineup) map[int]time.Time {
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

	maps.DeleteFunc(m.handovers, func(id int, _ handoverSeen) bool { _, there := deadlines[id]; return !there })

	return deadlines
}
