package kv

import "time"

// PendingDiffs holds keys whose listed state differs from what the watch had reported before the list. For each of them
// there are two possibilities: either the event is still in flight and will be replayed (see Batch.Replayed), or the
// watch has lost it. A key that stays different for too long is counted as lost.
//
// The zero value is empty. PendingDiffs must be used by one goroutine at a time.
type PendingDiffs struct {
	keys map[string]pendingDiff
}

// pendingDiff describes one key whose listed state the watch has not reported.
type pendingDiff struct {
	first int64     // an event of the key at this revision or later resolves the difference
	since time.Time // when the list found the difference
}

// Add records that the listed state of key differs. An event of the key at revision first or later resolves it.
func (d *PendingDiffs) Add(key string, first int64) {
	if d.keys == nil {
		d.keys = map[string]pendingDiff{}
	}
	d.keys[key] = pendingDiff{first, time.Now()}
}

// Resolve processes an event that the watch replays after a list. It resolves the difference of the key if the event
// explains it.
func (d *PendingDiffs) Resolve(key string, revision int64) {
	if known, ok := d.keys[key]; ok && revision >= known.first {
		delete(d.keys, key)
	}
}

// Clear removes all differences. It is called when a new watch begins, because that watch replays none of the events.
func (d *PendingDiffs) Clear() { d.keys = nil }

// Lost removes the differences that are at least as old as patience, and returns their number. Their events are lost.
func (d *PendingDiffs) Lost(patience time.Duration) (n int) {
	for key, known := range d.keys {
		if time.Since(known.since) >= patience {
			delete(d.keys, key)
			n++
		}
	}

	return n
}
