package record

import (
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// Dead is a run whose last attempt failed, timed out or was lost, and that has no
// attempt left: it waits for a person, who has it run again or dismisses it.
type Dead struct {
	task.Waiting
	Mod int64 // mod revision of its record
}

// deadTail is how much of a dead run's output is kept with it, in bytes: the rest
// is in its history and on its node.
const deadTail = 256

// NeedsDeadLetter reports whether a run that ended so, with no attempt to follow, is dead.
// One that somebody wanted to end is not: nobody waits for it. Nor is a part: the run
// is that it belongs to.
func NeedsDeadLetter(h Held, end task.Run) bool {
	return !h.CancelRequested && !task.IsPart(h.ID) && (end.State == task.Failed || end.State == task.TimedOut || end.State == task.Lost)
}

// EncodeDead encodes the record of a dead run, with the end of its output.
func EncodeDead(h Held, end task.Run) []byte {
	if n := len(end.OutputTail); n > deadTail {
		end.OutputTail = strings.ToValidUTF8(end.OutputTail[n-deadTail:], "")
	}
	return EncodeWaiting(task.Waiting{Run: end, Env: h.Env})
}

// DecodeDead reads the record of a dead run; false if it is none, or cannot be read.
func DecodeDead(keys Keys, e *mvccpb.KeyValue) (Dead, bool) {
	k, ok := keys.ParseShard(string(e.Key))
	if !ok || k.Kind != KindDead {
		return Dead{}, false
	}

	w, err := DecodeWaiting(k, e.Value)
	return Dead{Waiting: w, Mod: e.ModRevision}, err == nil
}
