package record

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// Held is an attempt in an inbox, with the revisions that a write compares.
type Held struct {
	task.Assigned
	Mod    int64 // mod revision
	Create int64 // create revision, which is the fencing token (G11)
}

// Ref returns the task of the attempt.
func (h Held) Ref() Ref { return Ref{Namespace: h.Namespace, Name: h.Task, Shard: h.Shard} }

// DecodeHeld decodes an inbox record.
func DecodeHeld(keys Keys, e *mvccpb.KeyValue) (h Held, err error) {
	err = DecodeHeldInto(keys, string(e.Key), e, &h)
	return h, err
}

// DecodeHeldInto is like DecodeHeld for a caller that has the key as a string, and memory for
// the result.
func DecodeHeldInto(keys Keys, key string, e *mvccpb.KeyValue, h *Held) error {
	k, ok := keys.ParseRun(key)
	if !ok {
		return fmt.Errorf("%w: %q is not the key of a run", task.ErrInvalid, key)
	}

	h.Mod, h.Create = e.ModRevision, e.CreateRevision
	return decodeHeld(k, e.CreateRevision, e.Value, &h.Assigned)
}

// DecodeAllHeld decodes inbox records. It omits those that cannot be read.
func DecodeAllHeld(keys Keys, all []*mvccpb.KeyValue) []Held {
	var list []Held
	for _, e := range all {
		if h, err := DecodeHeld(keys, e); err == nil {
			list = append(list, h)
		}
	}

	return list
}

// DecodeRun decodes a record of the queue, the history or the ended parts. It returns false for
// late results and unreadable records.
func DecodeRun(keys Keys, e *mvccpb.KeyValue) (task.Run, bool) {
	k, ok := keys.ParseShard(string(e.Key))
	if !ok || k.Late {
		return task.Run{}, false
	}

	switch k.Kind {
	case KindQueued:
		w, err := DecodeWaiting(k, e.Value)
		return w.Run, err == nil
	case KindEnded, KindPart:
		r, err := DecodeEnded(k, e.Value)
		return r, err == nil
	}

	return task.Run{}, false
}

// NewestRun returns the last of the records that DecodeRun accepts, or nil if there is none.
func NewestRun(keys Keys, all []*mvccpb.KeyValue) *task.Run {
	for _, e := range slices.Backward(all) {
		if run, ok := DecodeRun(keys, e); ok {
			return &run
		}
	}

	return nil
}

// ByTime is a comparison that orders runs from the newest to the oldest.
func ByTime(a, b task.Run) int {
	return cmp.Or(b.ScheduledTime.Compare(a.ScheduledTime.Time), strings.Compare(b.ID, a.ID))
}

// SortRuns returns the runs from the newest to the oldest.
func SortRuns(byID map[string]task.Run) []task.Run {
	runs := make([]task.Run, 0, len(byID))
	for _, r := range byID {
		runs = append(runs, r)
	}

	slices.SortFunc(runs, ByTime)

	return runs
}
