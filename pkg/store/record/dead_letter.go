package record

import (
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// Dead is a dead run: its last attempt failed, timed out or was lost, and no attempt is left.
// It waits for a person, who repeats or dismisses it.
type Dead struct {
	task.Waiting
	Mod int64 // mod revision of the record
}

// deadTail is how much of the output is kept in the record of a dead run, in bytes. The history
// and the node have more.
const deadTail = 256

// NeedsDeadLetter reports whether a run that ended with end, and has no further attempt,
// becomes a dead run. A run that somebody requested to end does not, because nobody waits for
// it. A part does not either; the run to which it belongs does.
func NeedsDeadLetter(h Held, end task.Run) bool {
	return !h.CancelRequested && !task.IsPart(h.ID) && (end.State == task.Failed || end.State == task.TimedOut || end.State == task.Lost)
}

// EncodeDead encodes the record of a dead run. It keeps the last deadTail bytes of the output.
func EncodeDead(h Held, end task.Run) []byte {
	if n := len(end.OutputTail); n > deadTail {
		end.OutputTail = strings.ToValidUTF8(end.OutputTail[n-deadTail:], "")
	}
	return EncodeWaiting(task.Waiting{Run: end, Env: h.Env})
}

// DecodeDead decodes the record of a dead run. It returns false if the key is not that of a
// dead run, or the record cannot be read.
func DecodeDead(keys Keys, e *mvccpb.KeyValue) (Dead, bool) {
	k, ok := keys.ParseShard(string(e.Key))
	if !ok || k.Kind != KindDead {
		return Dead{}, false
	}

	w, err := DecodeWaiting(k, e.Value)
	return Dead{Waiting: w, Mod: e.ModRevision}, err == nil
}
