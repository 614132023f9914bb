// Package record knows where each record of Carillon is in etcd, and how it is
// encoded: the keys, and the values that are below them. No other package builds a
// key or a value.
//
// It is pure: it reads and writes nothing. Package store has the transactions.
//
// What it guarantees: a key is taken apart into what it was built from, and what is
// no key of ours is refused. A value that this version writes over that of a newer
// one keeps the fields that this version does not know. A record that cannot be
// read is an error that wraps task.ErrInvalid, and never a zero value that could be
// taken for a record.
//
// Values are JSON. What a record's key says (shard, namespace, task, run, node) is
// not repeated in its value. Records of runs, entries and watermarks, of which
// there are many, are encoded and decoded by hand.
package record
