// Package record defines the keys of Carillon in etcd and the encoding of their values. No
// other package builds a key or a value.
//
// It is pure: it reads and writes no etcd. Package store contains the transactions.
//
// Guarantees:
//
//   - Parsing a key returns the parts from which it was built. A key that does not have the
//     form of a record is rejected.
//   - A value that replaces the value of a newer version of Carillon keeps the fields that this
//     version does not know.
//   - A record that cannot be read results in an error that wraps task.ErrInvalid, never in a
//     zero value that could be taken for a record (G19).
//
// Values are JSON. They do not repeat what their key contains (shard, namespace, task, run,
// node). The records of runs, audit records and watermarks are numerous, so they are encoded and
// decoded without reflection, by code that scripts/records generates from their structs. The
// JSON name of a field and omitempty apply as for encoding/json. A struct tag "record" says in
// what a field differs:
//
//	record:"-"     no record contains the field: its key does, or only answers of the API
//	record:"word"  the value is nearly always a state or a trigger, and is not copied
//	record:"hand"  this package encodes the field by hand
//
// make docs generates a page of all keys and fields from the structs.
package record

//go:generate go run ../../../scripts/records -root ../../.. -codec codec_generated.go
