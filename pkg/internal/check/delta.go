package check

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// delta is what one revision changes, decoded.
type delta struct {
	nodes   map[string]*session // nil: gone
	leaders map[string]int64    // 0: gone
	owners  map[int]*store.Owner
	marks   map[int]*marked
	revised map[int]bool // shards of which an edit says that tasks may have new ticks
	entries map[store.Ref]*entryChange
	specs   map[store.Ref]*specChange // by name, see nameOf
	runs    map[runRef]*runChange
	freezes *freezesChange
	remembered
}

type marked struct {
	mark        store.Watermark
	mod, create int64
	key         string
	gone, bad   bool
}

type entryChange struct {
	entry task.Entry
	mod   int64
	// create tells a rewritten entry from a new one.
	create    int64
	key       string
	gone, bad bool
}

type runRef struct {
	ref store.Ref
	id  string
}

// runChange is what a revision does to one run, wherever it is on record.
type runChange struct {
	runRef
	puts      []attemptPut
	gone      []string // the nodes from whose inboxes it went
	goneKey   string
	queued    *task.Waiting
	queueKey  string
	dequeued  bool
	ended     *task.Run
	endedKey  string
	endedText string
	late      []task.Run
	lateKey   string
	partGone  bool // the record of its end, of a part
	partKey   string
}

type attemptPut struct {
	task.Assigned
	node        string
	create, mod int64
	key         string
}

func compareRefs(a, b store.Ref) int {
	return cmp.Or(cmp.Compare(a.Shard, b.Shard), strings.Compare(a.String(), b.String()))
}

// sortedRuns gives the same order every time, so that reports do not flicker.
// Single ticks come before ranges, which then count what is left.
func (d *delta) sortedRuns() []*runChange {
	isRange := func(r *runChange) int {
		if r.ended != nil && r.ended.Count > 1 {
			return 1
		}
		return 0
	}
	return slices.SortedFunc(maps.Values(d.runs), func(a, b *runChange) int {
		return cmp.Or(cmp.Compare(isRange(a), isRange(b)), compareRefs(a.ref, b.ref), strings.Compare(a.id, b.id))
	})
}

func (d *delta) run(ref store.Ref, id string) *runChange {
	k := runRef{ref, id}
	r := d.runs[k]
	if r == nil {
		r = &runChange{runRef: k}
		d.runs[k] = r
	}
	return r
}

func newDelta() *delta {
	return &delta{
		nodes: map[string]*session{}, leaders: map[string]int64{}, owners: map[int]*store.Owner{},
		marks: map[int]*marked{}, revised: map[int]bool{}, entries: map[store.Ref]*entryChange{}, specs: map[store.Ref]*specChange{},
		runs: map[runRef]*runChange{}, remembered: newRemembered(),
	}
}

// parse decodes the events of one revision. What cannot be read is reported and
// left out: a bad record hurts only itself.
func (c *checker) parse(events []Event) *delta {
	d := newDelta()
	for _, ev := range events {
		rest, ok := strings.CutPrefix(ev.Key, c.keys.Root())
		if !ok {
			continue // not ours
		}
		dir, _, _ := strings.Cut(rest, "/")
		switch dir {
		case "nodes":
			c.parseNode(d, ev)
		case "leader":
			d.leaders[ev.Key] = ev.CreateRevision
			if c.candidates[ev.Key] = string(ev.Value); ev.Deleted {
				delete(c.candidates, ev.Key)
			}
		case "owners":
			c.parseOwner(d, ev)
		case "tasks":
			if ns, name, ok := c.keys.ParseSpec(ev.Key); ok {
				d.specs[store.Ref{Namespace: ns, Name: name}] = c.parseSpec(ev)
			}
		case "runs":
			c.parseAttempt(d, ev)
		case "shards":
			c.parseShard(d, ev)
		case "cluster":
			c.parseCluster(ev)
		case "freezes":
			c.parseFreezes(d, ev)
		case "versions":
			c.parseVersion(d, ev)
		case "deleted":
			c.parseTombstone(d, ev)
		case "tokens", "cleared", "moves", "events", "secrets", "requests":
		default:
			c.note("keys below %s are none that the design knows", c.keys.Root()+dir)
		}
	}
	return d
}

func (c *checker) unreadable(ev Event, err error) {
	c.breach("form", ev.Key, "unreadable record: %v", err)
	c.bad(ev, true)
}

// bad keeps which records of a shard cannot be read.
func (c *checker) bad(ev Event, is bool) {
	k, ok := c.keys.ParseShard(ev.Key)
	if !ok {
		return
	}
	if s := c.shard(k.Ref.Shard); is {
		s.bad[ev.Key] = true
	} else {
		delete(s.bad, ev.Key)
	}
}

func (c *checker) parseCluster(ev Event) {
	var cluster task.Cluster
	if !ev.Deleted && json.Unmarshal(ev.Value, &cluster) == nil {
		c.cluster = cluster.Shards
	}
}

func (c *checker) parseNode(d *delta, ev Event) {
	name := strings.TrimPrefix(ev.Key, c.keys.Nodes())
	if ev.Deleted {
		d.nodes[name] = nil
		return
	}
	var n task.Node
	if err := json.Unmarshal(ev.Value, &n); err != nil {
		c.unreadable(ev, err)
	}
	s := &session{instance: n.Instance, create: ev.CreateRevision, owns: n.Owns(), weight: max(n.Weight, 1), joined: ms(n.Clock), froze: n.Froze, frozeAt: ms(n.Clock)}
	if before, there := c.nodes[name]; there && before.create == s.create {
		s.joined = before.joined
		if before.froze == s.froze {
			s.frozeAt = before.frozeAt
		}
	}
	d.nodes[name] = s
}

func (c *checker) parseOwner(d *delta, ev Event) {
	id, ok := c.keys.ParseOwner(ev.Key)
	if !ok {
		c.note("key %s is none that the design knows", ev.Key)
		return
	}
	o := &store.Owner{Shard: id}
	if !ev.Deleted {
		if err := json.Unmarshal(ev.Value, o); err != nil {
			c.unreadable(ev, err) // its shard has a fence, and no node
		}
		o.Shard, o.Fence = id, ev.ModRevision
	}
	d.owners[id] = o
}

func (c *checker) parseAttempt(d *delta, ev Event) {
	k, ok := c.keys.ParseRun(ev.Key)
	if !ok {
		c.breach("form", ev.Key, "is not the key of an attempt")
		return
	}
	r := d.run(k.Ref, k.Run)
	if ev.Deleted {
		r.gone, r.goneKey = append(r.gone, k.Node), ev.Key
		return
	}
	a, err := store.DecodeAssigned(k, ev.CreateRevision, ev.Value)
	if err != nil {
		c.unreadable(ev, err)
		return
	}
	r.puts = append(r.puts, attemptPut{Assigned: a, node: k.Node, create: ev.CreateRevision, mod: ev.ModRevision, key: ev.Key})
}

func (c *checker) parseShard(d *delta, ev Event) {
	k, ok := c.keys.ParseShard(ev.Key)
	if !ok {
		c.note("key %s is none that the design knows", ev.Key)
		return
	}
	c.bad(ev, false)
	switch k.Kind {
	case store.KindWatermark:
		m := &marked{key: ev.Key, mod: ev.ModRevision, create: ev.CreateRevision, gone: ev.Deleted}
		if !ev.Deleted {
			var err error
			if m.mark, err = store.DecodeWatermark(ev.Value); err != nil {
				c.unreadable(ev, err)
				m.bad = true
			}
		}
		d.marks[k.Ref.Shard] = m
	case store.KindRevised:
		d.revised[k.Ref.Shard] = !ev.Deleted
	case store.KindEntry:
		e := &entryChange{key: ev.Key, mod: ev.ModRevision, create: ev.CreateRevision, gone: ev.Deleted}
		if !ev.Deleted {
			var err error
			if e.entry, err = store.DecodeEntry(ev.Value); err != nil {
				c.note("entry %s cannot be read and has no ticks", k.Ref)
				c.bad(ev, true)
				e.bad = true
			}
		}
		d.entries[k.Ref] = e
	case store.KindQueued:
		c.parseQueued(d, k, ev)
	case store.KindEnded, store.KindPart:
		c.parseEnded(d, k, ev)
	case store.KindDead:
		c.parseDead(d, k, ev)
	}
}

func (c *checker) parseQueued(d *delta, k store.ShardKey, ev Event) {
	r := d.run(k.Ref, k.Run)
	r.queueKey = ev.Key
	if ev.Deleted {
		r.dequeued = true
		return
	}
	w, err := store.DecodeWaiting(k, ev.Value)
	if err != nil {
		c.unreadable(ev, err)
		return
	}
	r.queued = &w
}

func (c *checker) parseEnded(d *delta, k store.ShardKey, ev Event) {
	if ev.Deleted && k.Kind == store.KindPart {
		r := d.run(k.Ref, k.Run)
		r.partGone, r.partKey = true, ev.Key
		return
	}
	if ev.Deleted {
		return // a trim, a purge, or with its task: it takes no outcome back
	}
	e, err := store.DecodeEnded(k, ev.Value)
	if err != nil {
		c.unreadable(ev, err)
		return
	}
	r := d.run(k.Ref, k.Run)
	if k.Late {
		r.late, r.lateKey = append(r.late, e), ev.Key
		return
	}
	r.ended, r.endedKey, r.endedText = &e, ev.Key, string(ev.Value)
}
