package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Origin is what a snapshot does not say about itself.
type Origin struct {
	Time     time.Time // before the snapshot was requested
	Source   string    // SourceAPI or another constant
	Prefix   string    // of Carillon's keys
	Carillon string    // the version of this program
	RaftTerm int64     // see Manifest
	AtLeast  int64     // a revision that the snapshot must contain; 0: any
}

// Packed is a snapshot that was compressed to a file, with its manifest.
type Packed struct {
	Manifest *Manifest
	Path     string
}

// Pack compresses a snapshot, as etcd sends it, to the file path, and makes its manifest. Meanwhile it needs the space for the snapshot
// itself, in a second file beside it. The files must not exist. If Pack fails, it removes them.
func Pack(ctx context.Context, snapshot io.Reader, path string, o Origin) (*Packed, error) {
	raw := rawPath(path)

	m, err := packTo(ctx, snapshot, raw, path)
	if err == nil {
		err = m.describe(ctx, raw, o)
	}

	if removed := os.Remove(raw); !errors.Is(removed, os.ErrNotExist) {
		err = errors.Join(err, removed)
	}
	if err != nil {
		return nil, errors.Join(err, removeExisting(path))
	}

	return &Packed{m, path}, nil
}

// rawPath is the file of the snapshot while it is packed to path.
func rawPath(path string) string { return path + bareSuffix }

// RemoveUnfinished removes what an interrupted Pack has left.
func RemoveUnfinished(path string) error {
	return errors.Join(removeExisting(path), removeExisting(rawPath(path)))
}

func removeExisting(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// packTo writes the snapshot to the file raw, and compressed to the file path. It returns a manifest with their sizes and hashes.
func packTo(ctx context.Context, snapshot io.Reader, raw, path string) (*Manifest, error) {
	rawFile, err := os.OpenFile(raw, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}

	defer rawFile.Close()

	packedFile, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}

	defer packedFile.Close()

	packed := &hashingWriter{w: packedFile, hash: sha256.New()}
	encoder, err := zstd.NewWriter(packed, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}

	// etcd appends the SHA-256 of what it has sent.
	tail := &tailHasher{hash: sha256.New()}
	all := &hashingWriter{w: io.MultiWriter(rawFile, encoder, tail), hash: sha256.New()}
	if _, err := io.Copy(all, contextReader{ctx, snapshot}); err != nil {
		return nil, errors.Join(err, encoder.Close())
	}

	if err := encoder.Close(); err != nil {
		return nil, err
	}

	if !tail.verify() {
		return nil, fmt.Errorf("%w: the snapshot does not end with its SHA-256", ErrDamaged)
	}

	m := &Manifest{Version: ManifestVersion, Size: all.n, SHA256: all.sum(), PackedSize: packed.n, PackedSHA256: packed.sum()}

	return m, errors.Join(rawFile.Close(), packedFile.Close())
}

// tailHasher hashes everything that is written but the last bytes, which are a SHA-256.
type tailHasher struct {
	hash hash.Hash
	tail []byte
}

func (t *tailHasher) Write(p []byte) (int, error) {
	t.tail = append(t.tail, p...)
	if n := len(t.tail) - sha256.Size; n > 0 {
		t.hash.Write(t.tail[:n])
		t.tail = append(t.tail[:0], t.tail[n:]...)
	}

	return len(p), nil
}

// verify reports whether the last bytes are the SHA-256 of those before them.
func (t *tailHasher) verify() bool { return bytes.Equal(t.tail, t.hash.Sum(nil)) }

// describe adds what the database in a file says.
func (m *Manifest) describe(ctx context.Context, path string, o Origin) error {
	m.RaftTerm = o.RaftTerm
	m.ID, m.Time, m.Source, m.Prefix, m.Carillon = FormatID(o.Time), task.At(o.Time), o.Source, o.Prefix, o.Carillon

	keys, err := record.NewKeys(o.Prefix)
	if err != nil {
		return err
	}

	d, err := OpenDatabase(path)
	if err != nil {
		return err
	}

	defer d.Close()

	if d.Revision < o.AtLeast {
		return fmt.Errorf("%w: the snapshot has revision %d, but etcd had acknowledged %d before", ErrDamaged, d.Revision, o.AtLeast)
	}

	m.Revision, m.StorageVersion, m.ClusterVersion, m.Users = d.Revision, d.StorageVersion, d.ClusterVersion, d.AuthEnabled

	s := newSummary(keys, m)
	if err := d.Each(ctx, "", s.add); err != nil {
		return err
	}

	s.describe()
	if m.Cluster == "" {
		return noClusterError(m.Prefix)
	}

	return m.validate()
}

func noClusterError(prefix string) error {
	return fmt.Errorf("etcd contains no cluster below %s: is it the right prefix?", prefix)
}

// summary collects what a manifest says about the content of a database.
type summary struct {
	keys       record.Keys
	m          *Manifest
	counts     map[string]*int64
	secretKeys map[string]bool
	unknown    map[string]bool
}

func newSummary(keys record.Keys, m *Manifest) *summary {
	return &summary{keys: keys, m: m, counts: map[string]*int64{}, secretKeys: map[string]bool{}, unknown: map[string]bool{}}
}

// maxUnknown is how many unknown kinds of keys a manifest lists.
const maxUnknown = 20

func (s *summary) add(kv *mvccpb.KeyValue) error {
	key := string(kv.GetKey())
	if !strings.HasPrefix(key, s.keys.Root()) {
		s.m.Other++
		return nil
	}

	kind, known := s.keys.KeyKind(key)
	if !known {
		if len(s.unknown) < maxUnknown {
			s.unknown[kind] = true
		}
		kind = "unknown"
	}

	if n := s.counts[kind]; n != nil {
		*n++
	} else {
		s.counts[strings.Clone(kind)] = new(int64(1))
	}

	switch kind {
	case "cluster":
		c, err := record.Decode[task.Cluster](kv.GetValue())
		if err != nil {
			return fmt.Errorf("the cluster's record: %w", err)
		}
		s.m.Cluster, s.m.Epoch, s.m.Format = c.ID, c.Epoch, max(c.Format, 1)
	case "nodes":
		// A node whose record cannot be read may run. So its name is listed.
		n, _ := record.DecodeNode(s.keys, kv)
		s.m.Nodes = append(s.m.Nodes, Node{n.Name, n.Address})
	case "secrets":
		if r, err := s.keys.DecodeSecret(kv); err == nil && !r.Deleted() {
			s.secretKeys[r.KeyID] = true
		}
	}

	return nil
}

// describe sets what the manifest says about all keys.
func (s *summary) describe() {
	s.m.Counts = map[string]int64{}
	for kind, n := range s.counts {
		s.m.Counts[kind] = *n
	}

	s.m.Keys = slices.AppendSeq([]string{}, maps.Keys(s.secretKeys))
	s.m.Unknown = slices.Sorted(maps.Keys(s.unknown))
	slices.Sort(s.m.Keys)
	slices.SortFunc(s.m.Nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
}
