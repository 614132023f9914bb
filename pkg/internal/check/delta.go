package check

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// delta is what one revision changes, decoded.
type delta struct {
	nodes      map[string]*nodeSession // nil: gone
	leaders    map[string]candidate
	owners     map[int]*record.Owner
	watermarks map[int]*watermarkChange
	revised    map[int]bool // shards of which an edit says that tasks may have new ticks
	entries    map[record.Ref]*entryChange
	specs      map[record.Ref]*specChange // by name, see nameOf
	runs       map[runRef]*runChange
	freezes    *freezeState
	shardCount int // 0: the record of the cluster does not change
	keptChanges
}

// watermarkChange is a change of a shard's watermark.
type watermarkChange struct {
	watermark           record.Watermark
	mod, create         int64
	key                 string
	deleted, unreadable bool
}

// entryChange is a change of a task's entry in its shard.
type entryChange struct {
	entry task.Entry
	mod   int64
	// create tells a rewritten entry from a new one.
	create              int64
	key                 string
	deleted, unreadable bool
}

// runRef names a run.
type runRef struct {
	ref record.Ref
	id  string
}

// runChange is what a revision does to one run, wherever it is on record.
type runChange struct {
	runRef
	puts        []inboxPut
	removedFrom []string // the nodes from whose inboxes it went
	removedKey  string
	queued      *task.Waiting
	queueKey    string
	dequeued    bool
	ended       *task.Run
	endedKey    string
	endedText   string
	late        []task.Run
	lateKey     string
	partDeleted bool // the record of its end, of a part
	partKey     string
}

// inboxPut is a record that is written into a node's inbox.
type inboxPut struct {
	task.Assigned
	node        string
	create, mod int64
	key         string
}

// compareRefs orders tasks by shard, then by name.
func compareRefs(a, b record.Ref) int {
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

// runChangeOf returns the change of a run, which it begins at need.
func (d *delta) runChangeOf(ref record.Ref, id string) *runChange {
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
		nodes: map[string]*nodeSession{}, leaders: map[string]candidate{}, owners: map[int]*record.Owner{},
		watermarks: map[int]*watermarkChange{}, revised: map[int]bool{}, entries: map[record.Ref]*entryChange{}, specs: map[record.Ref]*specChange{},
		runs: map[runRef]*runChange{}, keptChanges: newKeptChanges(),
	}
}

// recordedRun is whatever the change puts on record for the run; nil: nothing.
func (ch *runChange) recordedRun() (*task.Run, string) {
	switch {
	case ch.ended != nil:
		return ch.ended, ch.endedKey
	case len(ch.puts) > 0:
		return &ch.puts[0].Run, ch.puts[0].key
	case ch.queued != nil:
		return &ch.queued.Run, ch.queueKey
	}

	return nil, ""
}

// specChange is what a revision does to a spec.
type specChange struct {
	key        string
	value      []byte // nil: gone
	uid        string
	generation int64
}

// keptChanges is what a revision changes of what is kept of the past, but for the specs.
type keptChanges struct {
	versions   map[versionRef]*versionChange
	tombstones map[record.Ref]*tombstoneChange
	dead       map[runRef]*deadChange
}

// versionRef names a former version of a spec.
type versionRef struct {
	ref        record.Ref
	generation int64
}

// versionChange is a former version that is put, or deleted.
type versionChange struct {
	key   string
	value []byte // nil: gone
}

// tombstoneChange is a tombstone that is put, or deleted.
type tombstoneChange struct {
	tombstone
	key     string
	deleted bool
}

// deadChange is the record of a dead-letter run that is put, or deleted.
type deadChange struct {
	key   string
	state task.State // "": gone
	// by is who takes it off the list, if the record says so: it goes in the next
	// revision that has it.
	by string
}

func newKeptChanges() keptChanges {
	return keptChanges{map[versionRef]*versionChange{}, map[record.Ref]*tombstoneChange{}, map[runRef]*deadChange{}}
}
