package backup

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The buckets and keys of etcd's database that a Database reads.
var (
	keyBucket     = []byte("key")
	metaBucket    = []byte("meta")
	clusterBucket = []byte("cluster")
	authBucket    = []byte("auth")

	finishedCompact  = []byte("finishedCompactRev")
	scheduledCompact = []byte("scheduledCompactRev")
	storageVersion   = []byte("storageVersion")
	clusterVersion   = []byte("clusterVersion")
	authEnabled      = []byte("authEnabled")
)

// The key of a record in the bucket is its revision: eight bytes of the transaction, '_', eight bytes of the operation in it. 't' follows
// if the record is a tombstone.
const (
	revisionBytes  = 17
	tombstoneBytes = 18
	tombstoneMark  = 't'
)

// Database reads etcd's database in a snapshot that was unpacked. The caller should have verified the file: a damaged database results
// in an error, but not all damages can be detected.
type Database struct {
	Revision       int64  // etcd's revision
	StorageVersion string // empty before etcd 3.6
	ClusterVersion string // empty if etcd had not decided it
	AuthEnabled    bool   // etcd had authentication turned on

	path    string
	db      *bbolt.DB
	onClose func() error // removes a temporary file; nil: there is none
	calls   bool         // a function of the caller runs
}

// lockTimeout bounds how long OpenDatabase waits for a process that has the database open for writing.
const lockTimeout = 2 * time.Second

// OpenDatabase opens a database for reading. It does not change the file.
func OpenDatabase(path string) (*Database, error) {
	d := &Database{path: path}
	err := d.guard(func() (err error) {
		d.db, err = bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockTimeout})
		switch {
		case errors.Is(err, bbolterrors.ErrTimeout):
			return errors.New("another process has it open")
		case err != nil:
			var file *os.PathError
			if errors.As(err, &file) {
				return err
			}
			return fmt.Errorf("%w: it is not a database of etcd: %v", ErrDamaged, err)
		}

		return d.db.View(d.readMeta)
	})

	if err != nil {
		if d.db != nil {
			_ = d.db.Close() // it was open for reading
		}
		return nil, err
	}

	return d, nil
}

// Close closes the file.
func (d *Database) Close() error {
	err := d.db.Close()
	if d.onClose != nil {
		err = errors.Join(err, d.onClose())
	}

	return err
}

// guard calls read, and returns an error if the file is so damaged that bbolt panics, or refers to addresses outside the file.
func (d *Database) guard(read func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))

	defer func() {
		if d.calls {
			return
		}
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
		if err != nil {
			err = fmt.Errorf("database %s: %w", d.path, err)
		}
	}()

	return read()
}

// readMeta reads the fields of d.
func (d *Database) readMeta(tx *bbolt.Tx) error {
	keys, meta := tx.Bucket(keyBucket), tx.Bucket(metaBucket)
	if keys == nil || meta == nil {
		return fmt.Errorf("%w: it is not a database of etcd", ErrDamaged)
	}

	// etcd's revision is that of the last record, or of the last compaction, which may have removed it.
	last, _ := keys.Cursor().Last()
	for _, revision := range [][]byte{last, meta.Get(finishedCompact), meta.Get(scheduledCompact)} {
		if len(revision) >= revisionBytes {
			d.Revision = max(d.Revision, int64(binary.BigEndian.Uint64(revision)))
		}
	}

	d.StorageVersion = string(meta.Get(storageVersion))
	if bucket := tx.Bucket(clusterBucket); bucket != nil {
		d.ClusterVersion = string(bucket.Get(clusterVersion))
	}

	if bucket := tx.Bucket(authBucket); bucket != nil {
		enabled := bucket.Get(authEnabled)
		d.AuthEnabled = len(enabled) == 1 && enabled[0] == 1
	}

	return nil
}

// Each calls f with every key that exists at the database's revision and begins with prefix. The keys come in the reverse order of
// their mod revisions. f must not keep kv, but may keep its key and value. An error of f ends Each.
//
// A record is superseded by a later record of its key. Each therefore reads the newest revision first, and remembers the keys of records
// that can supersede others: tombstones, and changes of a key that existed. A record that created its key supersedes nothing but what a
// tombstone before it supersedes as well. So the memory does not grow with records that are written once, such as those of history, and
// is about 40 bytes for each other key.
func (d *Database) Each(ctx context.Context, prefix string, f func(kv *mvccpb.KeyValue) error) error {
	return d.guard(func() error {
		return d.db.View(func(tx *bbolt.Tx) error {
			return eachLive(ctx, tx, prefix, func(kv *mvccpb.KeyValue) error {
				d.calls = true // a panic of f is not that of a damaged database
				err := f(kv)
				d.calls = false

				return err
			})
		})
	})
}

func eachLive(ctx context.Context, tx *bbolt.Tx, prefix string, f func(kv *mvccpb.KeyValue) error) error {
	seen := newKeySet()
	var kv mvccpb.KeyValue

	cursor, n := tx.Bucket(keyBucket).Cursor(), 0
	for revision, value := cursor.Last(); revision != nil; revision, value = cursor.Prev() {
		if n++; n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}

		if len(revision) != revisionBytes && len(revision) != tombstoneBytes {
			return fmt.Errorf("%w: %x is not a revision", ErrDamaged, revision)
		}

		// Most records are not decoded if only a few keys are wanted. A key that is not at its usual place is decoded.
		if key, ok := leadingKey(value); ok && !bytes.HasPrefix(key, []byte(prefix)) {
			continue
		}

		if err := proto.Unmarshal(value, &kv); err != nil {
			return fmt.Errorf("%w: the record of revision %x: %v", ErrDamaged, revision, err)
		}

		// etcdutl adds a record without a key when it raises the revision.
		key := kv.GetKey()
		if len(key) == 0 || !strings.HasPrefix(string(key), prefix) {
			continue
		}

		switch {
		case len(revision) == tombstoneBytes:
			seen.Add(key)
			continue
		case seen.Contains(key):
			continue
		case kv.GetVersion() > 1:
			seen.Add(key)
		}

		if err := f(&kv); err != nil {
			return err
		}
	}

	return nil
}

// leadingKey returns the key of a record if it is the first field, as etcd encodes it. It is a part of the record.
func leadingKey(record []byte) ([]byte, bool) {
	number, kind, n := protowire.ConsumeTag(record)
	if n < 0 || number != 1 || kind != protowire.BytesType {
		return nil, false
	}

	key, m := protowire.ConsumeBytes(record[n:])

	return key, m >= 0
}

// keySet is a set of keys. It stores 128 bits of two hashes with random seeds instead of each key: two of 10⁸ keys have the same ones
// with a probability below 10⁻²².
type keySet struct {
	seeds  [2]maphash.Seed
	hashes map[[2]uint64]struct{}
}

func newKeySet() keySet {
	return keySet{[2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, map[[2]uint64]struct{}{}}
}

func (s keySet) hashOf(key []byte) [2]uint64 {
	return [2]uint64{maphash.Bytes(s.seeds[0], key), maphash.Bytes(s.seeds[1], key)}
}

// Add adds a key.
func (s keySet) Add(key []byte) { s.hashes[s.hashOf(key)] = struct{}{} }

// Contains reports whether a key was added.
func (s keySet) Contains(key []byte) bool {
	_, ok := s.hashes[s.hashOf(key)]
	return ok
}
