package store

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// NewestFormat is the newest format of records that this version understands.
// There is one format so far.
//
// The cluster's record has the format in force: no node writes records that take
// a newer one to understand, and no node joins that does not understand it. So
// versions can run side by side, and a cluster can be upgraded node by node.
//
// The next format is needed when this version would misread a record. A field
// that it may ignore needs none: fields that a version does not know survive its
// writes. Who adds a format
//
//   - raises NewestFormat, reads the records of both formats, and writes those of
//     the newer one only when Store.Format says so;
//   - has the API refuse what only the newer format can record until then;
//   - has Formats.WaitsFor report what is left of the newer format, so that a
//     downgrade waits until an older version has nothing to misread.
//
// A decision must not depend on the format that is in force at the moment: what
// is written is to follow from the decision alone.
const NewestFormat = 1

// ErrFormat means that the cluster's records have a format that this version, or
// another one in the cluster, does not understand.
var ErrFormat = errors.New("format of records")

// formats are what a store understands, and what it writes.
type formats struct {
	understood int
	writes     atomic.Int32
	cluster    atomic.Int64 // mod revision of the cluster's record by which it does; 0: not known
}

// inUse is the format that is written.
func (f *formats) inUse() int { return int(f.writes.Load()) }

// Understanding is the same Store, but as a version that understands formats up
// to newest. Its Batching and it share what they write. A test plays the next
// version with NewestFormat + 1.
func (s *Store) Understanding(newest int) *Store {
	u := *s.conn
	u.format = &formats{understood: newest}
	u.format.writes.Store(int32(newest))

	return newOverConn(&u)
}

// Understands is the newest format that the store reads.
func (s Cluster) Understands() int { return s.format.understood }

// Format is the format that the store writes. Without a cluster's record
// (Bootstrap, Obey) it is the newest.
func (s Cluster) Format() int { return s.format.inUse() }

// Obey writes by what the cluster's record says from now on, unless a later one
// is known. ErrFormat if it takes a newer version to read what others may write.
func (s Cluster) Obey(c ClusterRecord) error {
	if c.Mod < s.format.cluster.Load() {
		return nil
	}
	return s.obeyRecord(c)
}

func (s Cluster) obeyRecord(c ClusterRecord) error {
	if f := c.InForce(); f > s.format.understood {
		return fmt.Errorf("%w: the cluster's records have format %d, and this version understands no newer one than %d: "+
			"run a newer version, or `carillon cluster downgrade --to-format %d` by one", ErrFormat, f, s.format.understood, s.format.understood)
	}

	s.format.writes.Store(int32(c.Written()))
	s.format.cluster.Store(c.Mod)

	return nil
}
