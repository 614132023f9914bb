package store

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// NewestFormat is the newest format of records that this version understands. There is one
// format so far.
//
// The record of the cluster contains the format in force. No node writes records that require a
// newer format, and no node joins that does not understand the format in force. So different
// versions can run side by side, and a cluster can be upgraded node by node.
//
// A new format is needed when this version would misread a record. A field that this version
// may ignore needs no new format, because its writes preserve fields that it does not know. To
// add a format:
//
//   - Increase NewestFormat, read the records of both formats, and write those of the newer one
//     only when Store.Format returns it.
//   - Until then, make the API refuse what only the newer format can record.
//   - Make Formats.WaitsFor report records in the newer format, so that a downgrade waits until
//     an older version has nothing to misread.
//
// A decision must not depend on the format in force: the content of a commit follows from the
// decision alone.
const NewestFormat = 1

// ErrFormat means that the cluster's records have a format that this version, or
// another one in the cluster, does not understand.
var ErrFormat = errors.New("format of records")

// formats contains the formats that a store understands and writes. It is safe for concurrent
// use.
type formats struct {
	understood int          // the newest format that is read
	writes     atomic.Int32 // the format that is written
	cluster    atomic.Int64 // mod revision of the cluster record from which writes was taken; 0: none
}

// inUse returns the format that is written.
func (f *formats) inUse() int { return int(f.writes.Load()) }

// Understanding returns the same Store as a version of Carillon that understands formats up to
// newest. It shares the format in use with the Stores that its Batching returns. Tests emulate
// the next version with NewestFormat + 1.
func (s *Store) Understanding(newest int) *Store {
	u := *s.conn
	u.format = &formats{understood: newest}
	u.format.writes.Store(int32(newest))

	return newOverConn(&u)
}

// Understands returns the newest format that the store reads.
func (s Cluster) Understands() int { return s.format.understood }

// Format returns the format that the store writes. Until Bootstrap or Obey is called, it is the
// newest.
func (s Cluster) Format() int { return s.format.inUse() }

// Obey adopts the format of the cluster's record, unless a later record is known. It returns
// ErrFormat if other nodes may write records that this version does not understand.
func (s Cluster) Obey(c ClusterRecord) error {
	if c.Mod < s.format.cluster.Load() {
		return nil
	}
	return s.obeyRecord(c)
}

// obeyRecord is Obey without the check for a later record. A join needs it: if etcd was restored,
// the record that the join has just read may be older than the one that the node knew.
func (s Cluster) obeyRecord(c ClusterRecord) error {
	if f := c.InForce(); f > s.format.understood {
		return fmt.Errorf("%w: the cluster's records have format %d, but this version understands only formats up to %d: "+
			"run a newer version, or use one to run `carillon cluster downgrade --to-format %d`", ErrFormat, f, s.format.understood, s.format.understood)
	}

	s.format.writes.Store(int32(c.Written()))
	s.format.cluster.Store(c.Mod)

	return nil
}
