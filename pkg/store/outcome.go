package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/go-faster/jx"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/task"
)

// errSeen ends a reading that has what it wants.
var errSeen = errors.New("seen")

// stateField is how the records of this program have it.
var stateField = []byte(`"state":"`)

// StateOf is the state that a record of a run has, and nothing else of it: far less
// work than to read it all. Empty if it has none, or cannot be read.
//
// In JSON the text of stateField can be nothing but a field and the beginning of its
// value. It is the record's own unless an object began before it.
func StateOf(value []byte) (s task.State) {
	if i := bytes.Index(value, stateField); i > 0 && bytes.LastIndexByte(value[:i], '{') == 0 {
		rest := value[i+len(stateField):]
		for _, known := range states {
			if n := len(known); len(rest) > n && rest[n] == '"' && string(rest[:n]) == string(known) {
				return known
			}
		}
	}
	return stateOf(value)
}

// stateOf is StateOf for records that another program may have written.
func stateOf(value []byte) (s task.State) {
	d := jx.GetDecoder()
	defer jx.PutDecoder(d)
	d.ResetBytes(value)
	r := reader{d: d}
	_ = d.ObjBytes(func(d *jx.Decoder, name []byte) error {
		if string(name) != "state" {
			return d.Skip()
		}
		if d.Next() != jx.String {
			return errSeen
		}
		word(&r, &s, states)
		return errSeen
	})
	return s
}

// DeadKeys lists the keys of a shard's dead runs, as they are now, without values: a
// page of those after a key ("": from the first on). next is what to go on after; ""
// says that there are no more. It returns the revision of the reading.
func (s *Store) DeadKeys(ctx context.Context, shard int, after string) (events []ShardEvent, next string, rev int64, err error) {
	from := s.keys.Shard(shard) + "dead/"
	end := clientv3.GetPrefixRangeEnd(from)
	if after != "" {
		from = after + "\x00"
	}
	page, rev, more, err := s.keyPage(ctx, from, end, 0)
	if err != nil {
		return nil, "", 0, fmt.Errorf("list the dead runs of shard %d: %w", shard, err)
	}
	if more {
		next = string(page[len(page)-1].Key)
	}
	return s.shardEvents(page), next, rev, nil
}
