package check

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// delta is the decoded content of one revision: only what it changes.
type delta struct {
	nodes      map[string]*nodeSession  // nil: the key was deleted
	leaders    map[string]candidate     // by election key
	owners     map[int]*record.Owner    // by shard; fence 0: the key was deleted
	watermarks map[int]*watermarkChange // by shard
	revised    map[int]bool             // shards whose revised key was written: an edit may give tasks new ticks
	entries    map[record.Ref]*entryChange
	specs      map[record.Ref]*specChange // by name, without the shard (see withoutShard)
	runs       map[runRef]*runChange      // everything that happens to a run, wherever its records are
	freezes    *freezeState               // nil: the record does not change
	ledgers    map[record.Ref]*ledgerChange
	cluster    *task.Cluster              // nil: the cluster's record does not change
	alerts     map[string]*alertChange    // by key
	rules      map[string]*task.AlertRule // rules of alerts, by key; nil: deleted
	sent       map[string]*sentChange     // what was sent to receivers, by namespace and name
	boots      map[string]*bootChange     // the last boots of nodes, by node
	runData    map[runRef]*runDataChange  // the data of runs of workflows
	keptChanges
	dependentChanges
}

// watermarkChange is a change of a shard's watermark.
type watermarkChange struct {
	watermark           record.Watermark
	mod, create         int64 // equal when the watermark is created
	key                 string
	deleted, unreadable bool // the key was deleted; its value cannot be parsed
}

// entryChange is a change of a task's entry in its shard.
type entryChange struct {
	entry task.Entry
	mod   int64
	// create distinguishes a new entry (create == mod) from a rewritten one.
	create              int64
	key                 string
	deleted, unreadable bool
}

// runRef identifies a run: its task and its id.
type runRef struct {
	ref record.Ref
	id  string
}

// runChange collects what a revision does to one run, in all places that can hold it. Most steps of a run
// change two places in one revision: a finish deletes the inbox record and puts a history record.
type runChange struct {
	runRef
	puts        []inboxPut    // inbox records that are written
	removedFrom []string      // nodes whose inbox record was deleted
	removedKey  string        // the key of the last of these
	queued      *task.Waiting // the queue record that is written
	queueKey    string
	dequeued    bool      // the queue record was deleted
	ended       *task.Run // the final record that is written
	endedKey    string
	endedText   string     // that record as stored
	endedCreate int64      // its create revision, if this revision has created it, or it is listed; otherwise 0
	late        []task.Run // late results that are written
	lateKey     string
	partDeleted bool // the record of a part's end was deleted
	partKey     string
}

// inboxPut is a write of an inbox record. create == mod means a new attempt.
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

// sortedRuns returns the changed runs in a fixed order, so that equal histories give equal reports. Single
// ticks come before ranges: a range covers the ticks between its ends that the same commit does not decide
// otherwise.
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

// runChangeOf returns the change of a run, and creates it if it is new.
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
		runs: map[runRef]*runChange{}, ledgers: map[record.Ref]*ledgerChange{}, keptChanges: newKeptChanges(), dependentChanges: newDependentChanges(),
		alerts: map[string]*alertChange{}, rules: map[string]*task.AlertRule{}, sent: map[string]*sentChange{}, boots: map[string]*bootChange{},
		runData: map[runRef]*runDataChange{},
	}
}

// recordedRun returns the record that the change writes for the run, and its key; nil if it only deletes. A
// final record takes precedence over an inbox record, and that over a queue record.
func (r *runChange) recordedRun() (*task.Run, string) {
	switch {
	case r.ended != nil:
		return r.ended, r.endedKey
	case len(r.puts) > 0:
		return &r.puts[0].Run, r.puts[0].key
	case r.queued != nil:
		return &r.queued.Run, r.queueKey
	}

	return nil, ""
}

// specChange is a change of a spec.
type specChange struct {
	key        string
	value      []byte // nil: deleted
	uid        string
	generation int64
}

// keptChanges holds a revision's changes of former versions, tombstones and dead-letter runs.
type keptChanges struct {
	versions   map[versionRef]*versionChange // by task and generation
	tombstones map[record.Ref]*tombstoneChange
	dead       map[runRef]*deadChange // by task and run
}

// versionRef identifies a former version of a spec.
type versionRef struct {
	ref        record.Ref
	generation int64
}

// versionChange is a write or a deletion of a former version.
type versionChange struct {
	key   string
	value []byte // nil: deleted
}

// tombstoneChange is a write or a deletion of a tombstone.
type tombstoneChange struct {
	tombstone
	key     string
	deleted bool
}

// deadChange is a write or a deletion of the record of a dead-letter run.
type deadChange struct {
	key   string
	state task.State // "": deleted
	// create is the create revision of the record.
	create int64
	// dismissed says that the record names who dismissed the run. A dismissal writes this first and deletes the
	// record in a second transaction.
	dismissed bool
}

func newKeptChanges() keptChanges {
	return keptChanges{map[versionRef]*versionChange{}, map[record.Ref]*tombstoneChange{}, map[runRef]*deadChange{}}
}

// ledgerChange is what a revision deletes from the history of a task, and what it changes in its ledger.
type ledgerChange struct {
	deleted []deletedRecord
	chunks  []chunkChange
}

// deletedRecord is a deleted record of a history.
type deletedRecord struct {
	run        string // the run's id
	key        string
	late       bool // it is a late result of the run
	unreadable bool // the record could not be read
}

// chunkChange is a write or a deletion of a chunk.
type chunkChange struct {
	id, key string
	state   *chunkState // nil: deleted
}

// ledgerChangeOf returns the change of a task's ledger, and creates it if it is new.
func (d *delta) ledgerChangeOf(ref record.Ref) *ledgerChange {
	ch := d.ledgers[ref]
	if ch == nil {
		ch = &ledgerChange{}
		d.ledgers[ref] = ch
	}

	return ch
}

// alertChange is a write or a deletion of an alert, or of the number of alerts that have no record (kind more).
type alertChange struct {
	key   string
	ref   record.Ref
	alert *task.Alert // nil: deleted
}

// runDataChange is a write or a deletion of the data of a run.
type runDataChange struct {
	key    string
	data   *task.RunData // nil: deleted
	create bool          // the revision creates the record
}

// sentChange is a write or a deletion of what was sent to a receiver.
type sentChange struct {
	key  string
	sent *task.AlertsSent // nil: deleted
}
