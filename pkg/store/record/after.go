package record

import (
	"cmp"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// Subscriber is the record that makes a task a dependent of a source. The mod revision of its key says since when: ends with a
// smaller create revision start nothing.
type Subscriber struct {
	UID        string    `json:"uid"`               // of the dependent
	Generation int64     `json:"generation"`        // of the dependent when the link was written last
	When       task.When `json:"when,omitempty"`    // which ends match
	Results    []string  `json:"results,omitempty"` // which results of the source the trigger gets
}

// Dependent is a subscriber with the name of its task and the mod revision of its record.
type Dependent struct {
	Subscriber
	Name string
	Mod  int64
}

// DecodeDependent decodes the record of a subscriber. It returns false if the key is not that of one.
func DecodeDependent(keys Keys, e *mvccpb.KeyValue) (d Dependent, ok bool, err error) {
	k, ok := keys.ParseShard(string(e.Key))
	if !ok || k.Kind != KindSubscriber {
		return Dependent{}, false, nil
	}

	d.Name, d.Mod = k.Peer, e.ModRevision
	if d.Subscriber, err = Decode[Subscriber](e.Value); err == nil && (d.UID == "" || d.Generation < 1) {
		err = fmt.Errorf("%w: unreadable record: a subscriber must have a uid and a generation", task.ErrInvalid)
	}

	return d, true, err
}

// Cursor is the value of Keys.Sent: the last ended run of a source for which all triggers were sent. Ends are ordered by the
// create revision of their history record, then by their run.
type Cursor struct {
	Create int64  `json:"create"`
	Run    string `json:"run,omitempty"` // empty: all ends with this create revision
}

// Compare orders two positions.
func (c Cursor) Compare(d Cursor) int {
	if c.Create != d.Create || c.Run == d.Run {
		return cmp.Compare(c.Create, d.Create)
	}

	// No run is the last one of its revision.
	switch "" {
	case c.Run:
		return 1
	case d.Run:
		return -1
	}

	return strings.Compare(c.Run, d.Run)
}

// DecodeCursor decodes a cursor. A cursor without a revision is damaged: read as a position, it would send every kept end again.
func DecodeCursor(value []byte) (Cursor, error) {
	c, err := Decode[Cursor](value)
	if err == nil && c.Create < 1 {
		err = fmt.Errorf("%w: unreadable record: a cursor must have a revision", task.ErrInvalid)
	}

	return c, err
}

// Pending is a trigger with what its key contains.
type Pending struct {
	task.Trigger
	Ref         Ref    // the dependent
	Source, Run string // the ended run
	Create, Mod int64  // the revisions of the record
}

// Key returns the key of the trigger.
func (p Pending) Key(keys Keys) string { return keys.Trigger(p.Ref, p.Source, p.Run) }

// DecodePending decodes a trigger whose key was parsed. If the value cannot be read, the result has what the key contains.
func DecodePending(k ShardKey, e *mvccpb.KeyValue) (p Pending, err error) {
	p = Pending{Ref: k.Ref, Source: k.Peer, Run: k.Run, Create: e.CreateRevision, Mod: e.ModRevision}
	if p.Trigger, err = Decode[task.Trigger](e.Value); err == nil && (p.UID == "" || p.At.IsZero()) {
		err = fmt.Errorf("%w: unreadable record: a trigger must have a uid and a time", task.ErrInvalid)
	}

	p.Cause.Task, p.Cause.Run = k.Peer, k.Run // the key is right, whatever the value says

	return p, err
}
