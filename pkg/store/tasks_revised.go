package store

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/task"
)

// An owner decides by the entries that its watch has delivered, and the watch may be late.
// If an entry loses ticks meanwhile, the commit that decides one of them compares the entry
// and fails (G7). If an entry gains ticks, no commit compares it, and the watermark passes
// the new ticks, which then count as decided although they have no outcome (G4).
//
// Therefore each write that may give an entry ticks also puts the key shards/<k>/revised.
// The key has no value; only its mod revision matters. A commit that moves the watermark's
// time compares it, and fails if the owner has not received the edit.
//
// A new task does not need this: the field seen of the watermark shows that the owner had
// not received its entry.

// BeginsTicks reports whether an edit may give an entry ticks that it did not have. A false
// positive only costs a commit that is decided again; a false negative would lose ticks.
func BeginsTicks(old, edited task.Entry) bool {
	if !edited.Ticks() {
		return false
	}

	oldSilence, _ := old.Silence()
	silence, _ := edited.Silence()

	switch {
	case old.UID != edited.UID: // the entry was absent or unreadable
		return true
	case !old.Timing().Same(edited.Timing()), !old.Anchor.Equal(edited.Anchor.Time):
		return true
	case !old.From.Equal(edited.From.Time):
		return true
	case old.Paused && (!edited.Paused || !old.Ticks() || silence.Before(oldSilence.Time)):
		return true
	case old.MaxRuns != 0 && (edited.MaxRuns == 0 || edited.MaxRuns > old.MaxRuns):
		return true
	}

	return old.Shadow && !edited.Shadow
}

// revisionPuts returns the puts of the keys revised for the shards whose tasks may get new
// ticks, one for each shard. They must come after the puts of the entries in a transaction.
// Then the watch delivers the entries first, so an owner that has received the key also has the
// edits to which it belongs.
func (s Tasks) revisionPuts(changes ...Change) []clientv3.Op {
	var ops []clientv3.Op
	done := map[int]bool{}

	for _, c := range changes {
		shard := c.New.Ref.Shard
		if c.Old != nil && !done[shard] && BeginsTicks(c.Old.Entry, c.New.Entry) {
			done[shard] = true
			ops = append(ops, clientv3.OpPut(s.keys.Revised(shard), ""))
		}
	}

	return ops
}
