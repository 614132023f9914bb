package store

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/task"
)

// An owner decides by the entries that its watch has told of. The watch may be late.
// If an entry loses ticks meanwhile, the commit that decides one of them compares
// the entry and fails. If an entry gains ticks, no commit would compare it, and the
// watermark would pass them: they would count as decided without an outcome.
//
// So each write that may give an entry ticks also puts the key shards/<k>/revised.
// It has no value; what counts is its mod revision. A commit that moves the
// watermark's time compares it, and fails if the owner has not heard of the edit.
//
// A new task needs none of this: the watermark's seen says that its owner had not
// heard of it.

// BeginsTicks reports whether an edit may give an entry ticks that it did not have.
func BeginsTicks(old, edited task.Entry) bool {
	if !edited.Ticks() {
		return false
	}

	oldSilence, _ := old.Silence()
	silence, _ := edited.Silence()

	switch {
	case old.UID != edited.UID: // the entry was missing, or could not be read
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

// revisionPuts are the puts that say which shards have tasks with new ticks, one for each
// shard. They come after the entries, so that who follows the shard is not told of
// them before it is told of what they are about.
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
