package check

import (
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// clusterState is the cluster at a revision, as its records say: a replay of the history
// up to there. It judges nothing.
//
// Judges read its fields and the histories of tasks and runs in it. It changes by its
// apply methods, each for one kind of record, and by the trackers of runs and entries.
type clusterState struct {
	keys record.Keys

	revision   int64
	began      int64            // the revision of the first list; 0: there was nothing yet
	shardCount int              // how many shards there are, if the record says
	liveKeys   map[string]int64 // the create revisions of the keys that are there
	nodes      map[string]nodeSession
	leaders    map[string]candidate // the keys of the election
	shards     map[int]*shardState
	tasks      map[record.Ref]*taskHistory
	freezes    freezeState
	kept       keptRecords // specs, former versions, tombstones
}

func newClusterState(keys record.Keys) *clusterState {
	return &clusterState{
		keys: keys, liveKeys: map[string]int64{}, nodes: map[string]nodeSession{}, leaders: map[string]candidate{},
		shards: map[int]*shardState{}, tasks: map[record.Ref]*taskHistory{}, kept: newKeptRecords(),
	}
}

// candidate is a key of the election: a node that leads, or waits for it.
type candidate struct {
	node   string
	create int64 // 0: the key is gone
}

// nodeSession is a node's key: one lease of one instance.
type nodeSession struct {
	instance        string
	create          int64
	canOwn          bool // it may own shards
	weight          int
	joinedAt        int64 // when it announced itself first, by its clock, in ms
	freezesObeyed   int64 // the mod revision of the freezes that it obeys
	freezesObeyedAt int64 // when it said so first, by its clock, in ms
}

// shardState is what a shard's keys say, its tasks aside.
type shardState struct {
	owner        record.Owner // Fence 0: there is none
	watermark    record.Watermark
	watermarkMod int64           // 0: there is none
	opened       bool            // a commit has followed the last change of fence or session
	unreadable   map[string]bool // its records that cannot be read
}

// freezeState are the switches that stop firing, as they stand at a revision.
type freezeState struct {
	task.Freezes
	mod        int64 // 0: there is no record
	unreadable bool
}

// keptRecords is what is kept, as it stands at a revision.
type keptRecords struct {
	specs      map[record.Ref]specChange
	versions   map[record.Ref]map[int64]bool // by name and generation
	tombstones map[record.Ref]tombstone
}

// tombstone is what is remembered of a deleted task.
type tombstone struct {
	UID       string    `json:"uid"`
	DeletedAt task.Time `json:"deleted_at"`
	DeletedBy string    `json:"deleted_by"`
	Why       string    `json:"why"`
}

func newKeptRecords() keptRecords {
	return keptRecords{map[record.Ref]specChange{}, map[record.Ref]map[int64]bool{}, map[record.Ref]tombstone{}}
}

// watermarkCovers is up to when, in ms, a watermark decides the ticks of a covered
// task of that name.
func watermarkCovers(w record.Watermark, name string) int64 {
	at := w.Time.UnixMilli()
	if w.Last != "" && name > w.Last {
		at--
	}
	return at
}

// shardOf returns the state of a shard, which it begins at need.
func (c *clusterState) shardOf(id int) *shardState {
	s := c.shards[id]
	if s == nil {
		s = &shardState{unreadable: map[string]bool{}}
		c.shards[id] = s
	}

	return s
}

// taskOf returns the history of a task's name, which it begins at need.
func (c *clusterState) taskOf(ref record.Ref) *taskHistory {
	t := c.tasks[ref]
	if t == nil {
		t = &taskHistory{ref: ref, incarnations: map[string]*incarnation{}, runs: map[string]*runHistory{}, active: map[string]*runHistory{}, dead: map[string]bool{}}
		c.tasks[ref] = t
	}

	return t
}

// setUnreadable keeps which records of a shard cannot be read.
func (c *clusterState) setUnreadable(ev Event, is bool) {
	k, ok := c.keys.ParseShard(ev.Key)
	if !ok {
		return
	}

	if s := c.shardOf(k.Ref.Shard); is {
		s.unreadable[ev.Key] = true
	} else {
		delete(s.unreadable, ev.Key)
	}
}

// decidedUpTo is up to which tick those of a task are decided at present.
func (c *clusterState) decidedUpTo(t *taskHistory) int64 {
	if t.entry == nil {
		return 0
	}
	s := c.shardOf(t.ref.Shard)
	return t.entry.decidedUpTo(t.ref, s.watermark, s.watermarkMod)
}

// currentTerm is the create revision of the oldest key of the election; 0 without one.
func (c *clusterState) currentTerm() int64 {
	var oldest int64
	for _, l := range c.leaders {
		if oldest == 0 || l.create < oldest {
			oldest = l.create
		}
	}

	return oldest
}

// applyListedWatermarks takes the watermarks of the first list, whose writers cannot be judged.
func (c *clusterState) applyListedWatermarks(d *delta) {
	for id, m := range d.watermarks {
		s := c.shardOf(id)
		s.watermark, s.watermarkMod = m.watermark, m.mod
		s.opened = s.owner.Fence < m.mod && c.nodes[s.owner.Node].create < m.mod
	}
}

// applyWatermarks applies the watermarks that a revision writes, each of which is a commit.
func (c *clusterState) applyWatermarks(d *delta) {
	for id, m := range d.watermarks {
		s := c.shardOf(id)
		if m.deleted {
			s.watermarkMod = 0
			continue
		}

		if m.unreadable {
			continue
		}

		s.watermark, s.watermarkMod = m.watermark, m.mod

		if m.create == m.mod {
			continue
		}

		s.opened = true
	}
}

// applyFleet applies what changes fences and sessions.
func (c *clusterState) applyFleet(d *delta) {
	for name, n := range d.nodes {
		if n == nil {
			delete(c.nodes, name)
			continue
		}

		before, there := c.nodes[name]
		if before.create != n.create {
			for _, s := range c.shards {
				if s.owner.Node == name {
					s.opened = false
				}
			}
		}

		// The first record of a session, and the first that obeys a freeze, say when that was.
		if there && before.create == n.create {
			n.joinedAt = before.joinedAt
			if before.freezesObeyed == n.freezesObeyed {
				n.freezesObeyedAt = before.freezesObeyedAt
			}
		}

		c.nodes[name] = *n
	}

	for key, l := range d.leaders {
		if l.create == 0 {
			delete(c.leaders, key)
		} else {
			c.leaders[key] = l
		}
	}

	if d.shardCount != 0 {
		c.shardCount = d.shardCount
	}

	for id, o := range d.owners {
		s := c.shardOf(id)
		s.owner, s.opened = *o, false
	}
}

// applyFreezes applies a new record of what is frozen.
func (c *clusterState) applyFreezes(d *delta) {
	if d.freezes != nil {
		c.freezes = *d.freezes
	}
}

// notFrozenSince reports whether a task's namespace is not frozen, and has not
// been since an instant, in ms.
func (c *clusterState) notFrozenSince(ref record.Ref, since int64) bool {
	if c.freezes.Of(ref.Namespace) != nil {
		return false
	}

	for _, z := range c.freezes.Past {
		if (z.Namespace == "" || z.Namespace == ref.Namespace) && unixMS(z.Ended) >= since {
			return false
		}
	}

	return true
}

// parentOf is the run that a part belongs to; nil if there is none.
func (c *clusterState) parentOf(ref record.Ref, part string) (parent *runHistory, index int) {
	id, index, _ := task.ParentOf(part)
	return c.taskOf(ref).runs[id], index
}

// endedParts counts the parts of a run that had ended before the present revision.
func (c *clusterState) endedParts(ref record.Ref, parent string) (ended, succeeded int) {
	fan := c.taskOf(ref).runs[parent].fan
	for _, i := range fan.Numbers() {
		if p := c.taskOf(ref).runs[task.PartID(parent, i)]; p != nil && p.ended {
			ended++
			if p.state == task.Succeeded {
				succeeded++
			}
		}
	}

	return ended, succeeded
}

// isOrphaned reports whether the task of a run is gone.
func (c *clusterState) isOrphaned(d *delta, ref record.Ref, r *runHistory) bool {
	t, after := c.taskOf(ref), d.entries[ref]
	return t.entry == nil || t.entry.UID != r.incarnation.uid || after != nil && after.deleted
}

// totalShards is how many shards there are, by the cluster's record or by what was seen.
func (c *clusterState) totalShards() int { return max(c.shardCount, len(c.shards)) }

// ownedShards is how many shards a node owns.
func (c *clusterState) ownedShards(node string) int {
	n := 0
	for _, s := range c.shards {
		if s.owner.Node == node {
			n++
		}
	}

	return n
}

// applyKept applies what a revision keeps.
func (c *clusterState) applyKept(d *delta) {
	for ref, s := range d.specs {
		if s.value == nil {
			delete(c.kept.specs, ref)
		} else {
			c.kept.specs[ref] = *s
		}
	}

	for v, ch := range d.versions {
		all := c.kept.versions[v.ref]
		if all == nil {
			all = map[int64]bool{}
			c.kept.versions[v.ref] = all
		}

		if ch.value == nil {
			delete(all, v.generation)
		} else {
			all[v.generation] = true
		}
	}

	for ref, g := range d.tombstones {
		if g.deleted {
			delete(c.kept.tombstones, ref)
		} else {
			c.kept.tombstones[ref] = g.tombstone
		}
	}

	for k, ch := range d.dead {
		if ch.state == "" {
			delete(c.taskOf(k.ref).dead, k.id)
		} else {
			c.taskOf(k.ref).dead[k.id] = true
		}
	}
}
