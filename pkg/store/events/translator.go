package events

import (
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Change is the change of one key by one revision. A nil value means that the key was, or is,
// absent.
type Change struct {
	Key           string
	Before, After *mvccpb.KeyValue
}

// Translator derives events from the changes of a revision. They depend only on these changes
// and on who leads, owns and is present, which it keeps up to date from a few keys. So the
// events are the same wherever a reader begins.
type Translator struct {
	keys    record.Keys
	leaders map[string]candidate // the keys of the election
	owners  map[int]string       // the owner of each shard
	present map[string]bool      // the nodes that are present
	clocks  map[string]task.Time // the clocks that they have announced last
}

// candidate is a node that takes part in the election of the leader.
type candidate struct {
	node   string
	create int64 // create revision of its key: its term if it is elected
}

// New returns a Translator that begins with the given keys: those from leader/ to owners/ at a
// revision.
func New(keys record.Keys, all []*mvccpb.KeyValue) *Translator {
	t := &Translator{keys: keys, leaders: map[string]candidate{}, owners: map[int]string{}, present: map[string]bool{}, clocks: map[string]task.Time{}}
	for _, e := range all {
		t.noteState(string(e.Key), e)
	}
	return t
}

// noteState updates the state of the cluster with a key. now is its present value, or nil.
func (t *Translator) noteState(key string, now *mvccpb.KeyValue) {
	if strings.HasPrefix(key, t.keys.Leader()) {
		delete(t.leaders, key)
		if now != nil {
			t.leaders[key] = candidate{string(now.Value), now.CreateRevision}
		}
		return
	}

	if name, ok := strings.CutPrefix(key, t.keys.Nodes()); ok {
		if now == nil {
			delete(t.present, name)
			delete(t.clocks, name)
			return
		}
		t.present[name], t.clocks[name] = true, nodeOf(now).Clock
		return
	}

	if shard, ok := t.keys.ParseOwner(key); ok {
		t.owners[shard] = ownerOf(now).Node
	}
}

// electedCandidate returns the candidate that has won the election: the one whose key is the
// oldest. It returns the zero value if there is none.
func (t *Translator) electedCandidate() candidate {
	var first candidate
	for _, c := range t.leaders {
		if first.create == 0 || c.create < first.create {
			first = c
		}
	}

	return first
}

// leaderOfTerm returns the node of a term, if its key still exists, otherwise an empty string.
func (t *Translator) leaderOfTerm(create int64) string {
	for _, c := range t.leaders {
		if c.create == create {
			return c.node
		}
	}

	return ""
}

// latestClock returns the latest clock of the nodes that are present, or zero. Nodes announce theirs every few seconds, so
// it is little earlier than the next revision. Like everything else in the Translator, it is the same wherever a reader begins.
func (t *Translator) latestClock() (latest task.Time) {
	for _, c := range t.clocks {
		if c.After(latest.Time) {
			latest = c
		}
	}

	return latest
}

// unreadableRecord is the detail of an event whose record cannot be decoded.
const unreadableRecord = "the record cannot be read"
