package check

import (
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// clusterState is the cluster at a revision, as its records show it: the replay of the history up to there. It
// judges nothing.
//
// Judges read its fields and the histories of tasks and runs in it. Only the apply methods, each for one kind
// of record, and the trackers of runs and entries change it.
type clusterState struct {
	keys record.Keys

	revision   int64                       // the revision that is being applied
	began      int64                       // the revision of the first list; 0: the history began with an empty prefix
	shardCount int                         // from the cluster's record; 0: not known
	liveKeys   map[string]int64            // the create revisions of all keys that exist
	nodes      map[string]nodeSession      // by name; only nodes that are present
	leaders    map[string]candidate        // the keys of the election
	shards     map[int]*shardState         // by number
	tasks      map[record.Ref]*taskHistory // by namespace, name and shard
	freezes    freezeState                 // the frozen namespaces
	epoch      int                         // of the cluster's record
	gap        *task.Gap                   // what histories may have decided that restores have lost; nil: there were none
	kept       keptRecords                 // specs, former versions, tombstones
}

func newClusterState(keys record.Keys) *clusterState {
	return &clusterState{
		keys: keys, liveKeys: map[string]int64{}, nodes: map[string]nodeSession{}, leaders: map[string]candidate{},
		shards: map[int]*shardState{}, tasks: map[record.Ref]*taskHistory{}, kept: newKeptRecords(),
	}
}

// candidate is a key of the election. Its node leads or waits to lead.
type candidate struct {
	node   string
	create int64 // 0: the key is deleted
}

// nodeSession is a node's key, which exists for one session of one instance.
type nodeSession struct {
	instance        string            // one start of the daemon's process
	create          int64             // the create revision of the node's key, which identifies the session
	canOwn          bool              // it may own shards
	weight          int               // its share of the shards relative to other nodes; at least 1
	labels          map[string]string // as it announces them
	takesRuns       bool              // it accepts new runs
	refusesSince    int64             // since when it does not, by its own clock, in ms
	epoch           int               // the epoch of the cluster, as the node knows it
	joinedAt        int64             // the time in its first record, by its own clock, in ms
	freezesObeyed   int64             // the mod revision of the freeze record that it has confirmed
	freezesObeyedAt int64             // when it first confirmed that revision, by its own clock, in ms
}

// shardState holds a shard's owner and watermark. Its tasks are in clusterState.tasks.
type shardState struct {
	owner        record.Owner // Fence 0: no owner key
	watermark    record.Watermark
	watermarkMod int64           // the watermark's mod revision; 0: no watermark
	opened       bool            // a commit has followed the last change of fence or session
	unreadable   map[string]bool // the keys of its records that cannot be read
}

// freezeState is the freeze record at a revision.
type freezeState struct {
	task.Freezes
	mod        int64 // the record's mod revision; 0: no record
	unreadable bool  // the record cannot be parsed, so that G21 is not judged
}

// keptRecords is what the cluster keeps of the past at a revision.
type keptRecords struct {
	specs      map[record.Ref]specChange     // the current specs, by name
	versions   map[record.Ref]map[int64]bool // the former versions, by name and generation
	tombstones map[record.Ref]tombstone      // the tombstones of deleted tasks, by name
}

// tombstone is the record of a deleted task.
type tombstone struct {
	UID       string      `json:"uid"`
	DeletedAt task.Time   `json:"deleted_at"`
	DeletedBy *task.Actor `json:"deleted_by"`
	Why       string      `json:"why"`

	Spec *task.Spec `json:"spec,omitempty"` // what undelete creates
}

func newKeptRecords() keptRecords {
	return keptRecords{map[record.Ref]specChange{}, map[record.Ref]map[int64]bool{}, map[record.Ref]tombstone{}}
}

// watermarkCovers returns the time in ms up to which a watermark decides the ticks of a covered task of that
// name. The watermark holds a time and the last task that is decided at that time: tasks whose names sort after
// it are decided only up to the millisecond before.
func watermarkCovers(w record.Watermark, name string) int64 {
	at := w.Time.UnixMilli()
	if w.Last != "" && name > w.Last {
		at--
	}
	return at
}

// shardOf returns the state of a shard, and creates it if it is new.
func (c *clusterState) shardOf(id int) *shardState {
	s := c.shards[id]
	if s == nil {
		s = &shardState{unreadable: map[string]bool{}}
		c.shards[id] = s
	}

	return s
}

// taskOf returns the history of a task's name, and creates it if it is new.
func (c *clusterState) taskOf(ref record.Ref) *taskHistory {
	t := c.tasks[ref]
	if t == nil {
		t = &taskHistory{ref: ref, incarnations: map[string]*incarnation{}, runs: map[string]*runHistory{}, active: map[string]*runHistory{}, dead: map[string]int64{}, chunks: map[string]*chunkState{}}
		c.tasks[ref] = t
	}

	return t
}

// setUnreadable records whether a record of a shard can be read. Records outside of shards are ignored.
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

// decidedUpTo returns the time in ms up to which all ticks of a task are decided; 0 if the task has no entry.
func (c *clusterState) decidedUpTo(t *taskHistory) int64 {
	if t.entry == nil {
		return 0
	}
	s := c.shardOf(t.ref.Shard)
	return t.entry.decidedUpTo(t.ref, s.watermark, s.watermarkMod)
}

// currentTerm returns the create revision of the oldest election key, which is the leader's; 0 without a
// leader.
func (c *clusterState) currentTerm() int64 {
	var oldest int64
	for _, l := range c.leaders {
		if oldest == 0 || l.create < oldest {
			oldest = l.create
		}
	}

	return oldest
}

// applyListedWatermarks applies the watermarks of the first list. Their writers are not judged. A shard counts
// as opened if its watermark is newer than both its owner key and the session of its owner.
func (c *clusterState) applyListedWatermarks(d *delta) {
	for id, m := range d.watermarks {
		s := c.shardOf(id)
		s.watermark, s.watermarkMod = m.watermark, m.mod
		s.opened = s.owner.Fence < m.mod && c.nodes[s.owner.Node].create < m.mod
	}
}

// applyWatermarks applies the watermarks that a revision writes. Each write of a watermark is a commit, except
// for its creation, which belongs to the creation of the cluster.
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

		// Creating a watermark belongs to the creation of the cluster, and opens nothing.
		if m.create == m.mod {
			continue
		}

		s.opened = true
	}
}

// applyFleet applies changes of nodes, election keys, owners and the shard count. A new session of an owner, or
// a new owner key, means that the shard must be opened again.
func (c *clusterState) applyFleet(d *delta) {
	// A new session invalidates the openings of all shards of its node.
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

		// A node rewrites its record during a session. joinedAt is the time in the first record of the session,
		// freezesObeyedAt the time in the first record that confirms the present freezes, and refusesSince the time in the first
		// record by which the node takes no runs.
		if there && before.create == n.create {
			n.joinedAt = before.joinedAt
			if before.freezesObeyed == n.freezesObeyed {
				n.freezesObeyedAt = before.freezesObeyedAt
			}
			if !before.takesRuns && !n.takesRuns {
				n.refusesSince = before.refusesSince
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

	// The number of shards is fixed when the cluster is created.
	if d.cluster != nil && d.cluster.Shards != 0 {
		c.shardCount = d.cluster.Shards
	}
	if d.cluster != nil {
		c.epoch, c.gap = d.cluster.Epoch, d.cluster.Gap()
	}

	for id, o := range d.owners {
		s := c.shardOf(id)
		s.owner, s.opened = *o, false
	}
}

// applyFreezes applies a new freeze record.
func (c *clusterState) applyFreezes(d *delta) {
	if d.freezes != nil {
		c.freezes = *d.freezes
	}
}

// notFrozenSince reports whether a task's namespace is not frozen now and has not been frozen since an instant,
// in ms.
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

// parentOf returns the run that a part belongs to, or nil, and the number of the part.
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

// isOrphaned reports whether the task of a run has been deleted, or is deleted in this revision.
func (c *clusterState) isOrphaned(d *delta, ref record.Ref, r *runHistory) bool {
	t, after := c.taskOf(ref), d.entries[ref]
	return t.entry == nil || t.entry.UID != r.incarnation.uid || after != nil && after.deleted
}

// totalShards returns the number of shards, from the cluster's record or from the shards seen.
func (c *clusterState) totalShards() int { return max(c.shardCount, len(c.shards)) }

// ownedShards returns how many shards a node owns.
func (c *clusterState) ownedShards(node string) int {
	n := 0
	for _, s := range c.shards {
		if s.owner.Node == node {
			n++
		}
	}

	return n
}

// applyKept applies changes of specs, former versions, tombstones and dead-letter runs.
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
			c.taskOf(k.ref).dead[k.id] = ch.create
		}
	}
}

// applyLedgers applies changes of the chunks of ledgers, and deletions of the records that they count.
func (c *clusterState) applyLedgers(d *delta) {
	for ref, ch := range d.ledgers {
		for _, rec := range ch.deleted {
			if r := c.taskOf(ref).runs[rec.run]; r != nil && !rec.late {
				r.trimmed = true
			}
		}

		for _, chunk := range ch.chunks {
			if chunk.state == nil {
				delete(c.taskOf(ref).chunks, chunk.id)
			} else {
				c.taskOf(ref).chunks[chunk.id] = chunk.state
			}
		}
	}
}
