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

// judge holds what all judges share. A judge is responsible for one group of records. It compares each of them with
// the records that were read before, and adds a suspect for what does not fit together.
//
// A judge stores in the snapshot what later judges need to know about its records. It keeps what only it needs in
// its own fields.
type judge struct {
	*suspects
	reader  *reader   // reads at the audit's revision
	cluster *snapshot // what the stages so far have read
	keys    record.Keys
	ref     func(namespace, name string) record.Ref // returns the shard of a task
}

// checkFunc judges one record. An error ends the audit.
type checkFunc func(context.Context, *mvccpb.KeyValue) error

// seenRecord returns the key and the mod revision of a record, for later comparison.
func seenRecord(e *mvccpb.KeyValue) store.Seen {
	return store.Seen{Key: string(e.Key), Mod: e.ModRevision}
}

// suspectUnreadable suspects a record that cannot be decoded.
func (j judge) suspectUnreadable(e *mvccpb.KeyValue, what string, err error) {
	reason := strings.TrimPrefix(err.Error(), task.ErrInvalid.Error()+": ")
	j.addSuspect(kindUnreadable.newFinding(what+" cannot be read: "+reason, string(e.Key)), seenRecord(e))
}

// suspectUnknownKey suspects a key whose form Carillon does not use.
func (j judge) suspectUnknownKey(e *mvccpb.KeyValue) {
	j.addSuspect(kindUnknownKey.newFinding("not a key of Carillon", string(e.Key)), seenRecord(e))
}

// checkNoLease checks that a permanent record has no lease.
func (j judge) checkNoLease(e *mvccpb.KeyValue) {
	if e.Lease != 0 {
		j.addSuspect(kindLeased.newFinding(fmt.Sprintf("the record is attached to lease %x", e.Lease), string(e.Key)), seenRecord(e))
	}
}

// hasTask reports whether a record with this uid belongs to an entry of its shard, or to a spec without an entry. A
// missing entry is a separate finding, and a repair must not delete the other records of that task.
func (j judge) hasTask(s *shardState, ref record.Ref, uid string) bool {
	entry, ok := s.entries[ref.String()]
	return ok && (entry.unreadable || entry.uid == uid) || j.cluster.specs.mayBe(ref, uid)
}

// clearedPrefix is the prefix of the records of instances that are proved dead.
func clearedPrefix(keys record.Keys) string { return keys.Root() + "cleared/" }

// movesPrefix is the prefix of the records of handovers, one key for each shard.
func movesPrefix(keys record.Keys) string { return keys.Root() + "moves/" }

// versionsPrefix is the prefix of the former versions of all tasks.
func versionsPrefix(keys record.Keys) string { return keys.Root() + "versions/" }
