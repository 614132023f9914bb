package audit

import (
	"context"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// judge is what every judge works with. A judge is responsible for one group of records:
// it compares each of them with the records that were read before, and suspects what
// does not fit together.
//
// What later judges need to know of its records it puts into the snapshot. What it has
// to remember for itself it keeps in its own fields.
type judge struct {
	*suspects
	reader  *reader
	cluster *snapshot
	keys    record.Keys
	ref     func(namespace, name string) record.Ref
}

// checkFunc judges one record.
type checkFunc func(context.Context, *mvccpb.KeyValue) error

// seenRecord is a record as it was read.
func seenRecord(e *mvccpb.KeyValue) store.Seen {
	return store.Seen{Key: string(e.Key), Mod: e.ModRevision}
}

// suspectUnreadable suspects a record that cannot be decoded.
func (j judge) suspectUnreadable(e *mvccpb.KeyValue, what string, err error) {
	reason := strings.TrimPrefix(err.Error(), task.ErrInvalid.Error()+": ")
	j.addSuspect(kindUnreadable.newFinding(what+" cannot be read: "+reason, string(e.Key)), seenRecord(e))
}

// suspectStrange suspects a key of a form that Carillon does not use.
func (j judge) suspectStrange(e *mvccpb.KeyValue) {
	j.addSuspect(kindStrange.newFinding("no key of Carillon looks so", string(e.Key)), seenRecord(e))
}

// checkNoLease checks that a record that is to stay has no lease.
func (j judge) checkNoLease(e *mvccpb.KeyValue) {
	if e.Lease != 0 {
		j.addSuspect(kindLeased.newFinding(fmt.Sprintf("the record hangs on lease %x", e.Lease), string(e.Key)), seenRecord(e))
	}
}

// hasTask reports whether a record of a task with this uid belongs to an entry of its
// shard, or to a spec that has lost its entry. A lost entry is another finding, and the
// record must not be lost with it.
func (j judge) hasTask(s *shardState, ref record.Ref, uid string) bool {
	entry, ok := s.entries[ref.String()]
	return ok && (entry.unreadable || entry.uid == uid) || j.cluster.specs.mayBe(ref, uid)
}

// clearedPrefix is where the instances are that are proved dead.
func clearedPrefix(keys record.Keys) string { return keys.Root() + "cleared/" }

// movesPrefix is where hand-overs that are under way are kept, one key a shard.
func movesPrefix(keys record.Keys) string { return keys.Root() + "moves/" }

// versionsPrefix is where the former versions of all tasks are.
func versionsPrefix(keys record.Keys) string { return keys.Root() + "versions/" }
