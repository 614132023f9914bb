package audit

import (
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// snapshot holds what the audit remembers of the first read. The judge that reads a record stores it here, and
// later judges compare with it.
type snapshot struct {
	shards  int                  // number of shards; 0: the cluster's record is missing or cannot be read
	nodes   map[string]nodeState // those that are present, by name
	owners  map[int]record.Owner // by shard
	cleared map[string]time.Time // by instance: when it was proved dead
	freezes task.Freezes         // what is frozen: its waiting runs are not stuck
	specs   specSet              // which tasks exist
	changes changeSet            // when access records, secrets and specs were written last
	active  map[uint64]bool      // hashes of the tasks that have attempts in inboxes

	namespaces map[string]*task.Namespace // their node selectors decide which nodes can run tasks
	limits     []task.NodeLimit           // and so do the labels that nodes may have
}

func newSnapshot() *snapshot {
	return &snapshot{
		nodes: map[string]nodeState{}, owners: map[int]record.Owner{}, cleared: map[string]time.Time{},
		active: map[uint64]bool{}, namespaces: map[string]*task.Namespace{},
	}
}

// nodeState is a node's record and its mod revision.
type nodeState struct {
	task.Node
	mod int64
}

// shardState holds what the audit knows about a shard while it reads it.
type shardState struct {
	id           int
	watermark    record.Watermark
	watermarkMod int64                 // 0: there is no watermark that can be read
	entries      map[string]entryState // by namespace/name
	ended        map[uint64]int64      // the mod revisions of history records, by the hash of the key
}

// entryState holds what the audit knows about an entry while it reads its shard.
type entryState struct {
	uid        string
	mod        int64
	target     task.Target // for which nodes can run the task
	needsKey   bool        // its attempts read a secret, so that the node needs a key
	unreadable bool        // the owner cannot read the entry, so that nothing is compared with it
}
