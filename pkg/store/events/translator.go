package events

import (
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store/record"
)

// Change is what one revision did to one key: nil is a key that is not there.
type Change struct {
	Key           string
	Before, After *mvccpb.KeyValue
}

// Translator makes events of the changes of a revision. They follow from these
// changes alone, and from who leads, owns and is present, which few keys tell: so
// whoever begins anywhere is told the same.
type Translator struct {
	keys    record.Keys
	leaders map[string]candidate
	owners  map[int]string
	present map[string]bool // nodes
}

type candidate struct {
	node   string
	create int64
}

// New makes a Translator that begins with the keys from leader/ to owners/ as they are at a
// revision.
func New(keys record.Keys, all []*mvccpb.KeyValue) *Translator {
	t := &Translator{keys: keys, leaders: map[string]candidate{}, owners: map[int]string{}, present: map[string]bool{}}
	for _, e := range all {
		t.noteState(string(e.Key), e)
	}
	return t
}

// noteState keeps what is known of the cluster current.
func (t *Translator) noteState(key string, now *mvccpb.KeyValue) {
	if strings.HasPrefix(key, t.keys.Leader()) {
		delete(t.leaders, key)
		if now != nil {
			t.leaders[key] = candidate{string(now.Value), now.CreateRevision}
		}
		return
	}

	if name, ok := strings.CutPrefix(key, t.keys.Nodes()); ok {
		t.present[name] = now != nil
		if now == nil {
			delete(t.present, name)
		}
		return
	}

	if shard, ok := t.keys.ParseOwner(key); ok {
		t.owners[shard] = ownerOf(now).Node
	}
}

// electedCandidate is the candidate that etcd's election has chosen: the oldest.
func (t *Translator) electedCandidate() candidate {
	var first candidate
	for _, c := range t.leaders {
		if first.create == 0 || c.create < first.create {
			first = c
		}
	}

	return first
}

// leaderOfTerm is the node that led in a term, if it still stands.
func (t *Translator) leaderOfTerm(create int64) string {
	for _, c := range t.leaders {
		if c.create == create {
			return c.node
		}
	}

	return ""
}

// unreadableRecord is the detail of an event whose record tells nothing.
const unreadableRecord = "the record cannot be read"
