package audit

import (
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// snapshot is what the audit remembers of the cluster's records as the first read saw
// them. The judge that reads a record fills it in; later judges compare with it.
type snapshot struct {
	shards  int // of the cluster; 0: its record is missing or cannot be read
	nodes   map[string]nodeState
	owners  map[int]record.Owner
	cleared map[string]time.Time // when an instance was proved dead
	freezes task.Freezes
	specs   specSet
	active  map[uint64]bool // hashes of the tasks with attempts in inboxes
}

func newSnapshot() *snapshot {
	return &snapshot{
		nodes: map[string]nodeState{}, owners: map[int]record.Owner{}, cleared: map[string]time.Time{},
		active: map[uint64]bool{},
	}
}

// nodeState is a node's record.
type nodeState struct {
	task.Node
	mod int64
}

// shardState is what the audit knows of one shard while it is read.
type shardState struct {
	id           int
	watermark    record.Watermark
	watermarkMod int64 // 0: there is none, or none that can be read
	entries      map[string]entryState
}

// entryState is what the audit knows of an entry while its shard is read.
type entryState struct {
	uid        string
	mod        int64
	target     task.Target
	needsKey   bool // its attempts read a secret
	unreadable bool
}
