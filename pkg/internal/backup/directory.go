package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/task"
)

// Listed is a backup in a directory, or what is left of one.
type Listed struct {
	Name     string    // the ID, or the name of the file
	Manifest *Manifest // nil: Problem says why
	Problem  string    // empty: the manifest is right, and the file has its size. Only Unpack proves that the content is right
	Size     int64     // of the file with the snapshot; 0 if it is missing
	ModTime  time.Time // of that file
}

// List lists the backups in a directory in the order of history, the latest last: by epoch and revision, not by the times of files. Those
// of several stopped members are in the order of raft.
// Those whose place in the history is unknown come first, in the order of their names.
func List(dir string) ([]Listed, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}

	list := map[string]Listed{}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}

		l, ok := newListed(e.Name())
		if !ok && isSingle(filepath.Join(dir, e.Name())) {
			l, ok = Listed{Name: e.Name()}, true
		}
		if ok {
			list[l.Name] = l
		}
	}

	for name, l := range list {
		list[name] = l.read(dir)
	}

	return sortListed(list), nil
}

// sortListed returns backups in the order of List.
func sortListed(list map[string]Listed) []Listed {
	sorted := slices.SortedFunc(maps.Values(list), func(a, b Listed) int {
		switch {
		case a.Manifest != nil && b.Manifest != nil:
			return CompareHistory(a.Manifest, b.Manifest)
		case a.Manifest != nil:
			return 1
		case b.Manifest != nil:
			return -1
		}
		return strings.Compare(a.Name, b.Name)
	})

	for from, to := 0, 0; from < len(sorted); from = to {
		for to = from + 1; to < len(sorted) && areOfOneEtcd(sorted[to-1].Manifest, sorted[to].Manifest); to++ {
		}
		copy(sorted[from:to], orderMembers(sorted[from:to]))
	}

	return sorted
}

// orderMembers orders the backups of one etcd, which are sorted by their revisions. Those of stopped members are in the order of raft.
// What a node or etcd itself has backed up was acknowledged, so it follows each member whose log ends before it, whatever a member that
// was cut off has beyond that.
func orderMembers(list []Listed) []Listed {
	var ordered []Listed
	for _, l := range list {
		if l.Manifest != nil && l.Manifest.RaftTerm > 0 {
			ordered = append(ordered, l)
		}
	}
	slices.SortFunc(ordered, func(a, b Listed) int { return compareMembers(a.Manifest, b.Manifest) })

	for _, l := range list {
		if l.Manifest != nil && l.Manifest.RaftTerm > 0 {
			continue
		}

		at := len(ordered)
		for at > 0 && ordered[at-1].Manifest.RaftTerm > 0 && ordered[at-1].Manifest.Revision >= l.Manifest.Revision {
			at--
		}
		ordered = slices.Insert(ordered, at, l)
	}

	return ordered
}

// newListed returns the backup to which a file belongs, or false if the file is not one of a backup.
func newListed(file string) (Listed, bool) {
	if strings.HasSuffix(file, tempSuffix) {
		base, _, _ := strings.Cut(file, "Z.")
		_, isID := ParseID(base + "Z")
		return Listed{Name: file, Problem: "incomplete: it is being written, or writing it was interrupted"}, isID
	}

	if base, ok := strings.CutSuffix(file, dataSuffix); ok {
		return Listed{Name: base}, true
	}

	if base, ok := strings.CutSuffix(file, manifestSuffix); ok {
		_, isID := ParseID(base)
		return Listed{Name: base}, isID
	}

	return Listed{Name: file, Problem: "a snapshot without a manifest"}, strings.HasSuffix(file, bareSuffix)
}

// isSingle reports whether a file begins with a manifest. Other programs may store other files of zstd in a directory.
func isSingle(path string) bool {
	if !strings.HasSuffix(path, fileSuffix) {
		return false
	}

	f, err := os.Open(path)
	if err != nil {
		return false
	}

	defer f.Close()

	var head [frameHeader]byte
	_, err = io.ReadFull(f, head[:])

	return err == nil && binary.LittleEndian.Uint32(head[:]) == frameMagic
}

// read adds what the files say.
func (l Listed) read(dir string) Listed {
	path := filepath.Join(dir, l.Name)
	if l.Problem == "" {
		s, err := openStored(path)
		if err != nil {
			l.Problem = err.Error()
		} else {
			l.Manifest = s.Manifest
		}

		if !strings.HasSuffix(path, fileSuffix) {
			path += dataSuffix
		}
	}

	if info, err := os.Stat(path); err == nil {
		l.Size, l.ModTime = info.Size(), info.ModTime()
	}

	return l
}

// Store stores a backup in a directory. r is the compressed snapshot, without the frame with the manifest. Store syncs the file, reads
// it back, and compares its SHA-256 before it writes the manifest. If it fails, it removes what it has written.
func Store(ctx context.Context, dir string, m *Manifest, r io.Reader) (*Stored, error) {
	base := filepath.Join(dir, m.ID)
	if err := errors.Join(requireAbsent(base+manifestSuffix), requireAbsent(base+dataSuffix)); err != nil {
		return nil, err
	}

	text, err := m.Encode()
	if err != nil {
		return nil, err
	}

	if err := writeFile(ctx, base+dataSuffix, nil, packedContent(m, r)); err != nil {
		return nil, err
	}

	// Only the manifest makes the snapshot a backup.
	if err := writeFile(ctx, base+manifestSuffix, text, nil); err != nil {
		return nil, errors.Join(err, os.Remove(base+dataSuffix))
	}

	return &Stored{Name: base, Path: base + dataSuffix, Manifest: m}, nil
}

// StoreFile stores a backup in a single file, which begins with the manifest, in the same way as Store. It replaces no file.
func StoreFile(ctx context.Context, path string, m *Manifest, r io.Reader) (*Stored, error) {
	if err := requireAbsent(path); err != nil {
		return nil, err
	}

	frame, err := EncodeFrame(m)
	if err != nil {
		return nil, err
	}

	if err := writeFile(ctx, path, frame, packedContent(m, r)); err != nil {
		return nil, err
	}

	return &Stored{Name: path, Path: path, Manifest: m, offset: int64(len(frame))}, nil
}

func requireAbsent(path string) error {
	_, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}

	return fmt.Errorf("%s: %w", path, task.ErrExists)
}

// content is what a file shall contain after its head.
type content struct {
	r      io.Reader
	size   int64
	sha256 string
}

func packedContent(m *Manifest, r io.Reader) *content {
	return &content{r, m.PackedSize, m.PackedSHA256}
}

// writeFile writes a file of mode 0600: head, and then the content, if it is not nil. The file gets its name only when it is on disk
// and has been read back. If writeFile fails, it removes what it has written.
func writeFile(ctx context.Context, path string, head []byte, c *content) error {
	temp := path + tempSuffix
	f, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}

	defer f.Close()

	// A file that an interrupted command has left is overwritten, but not one that another process is writing.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("%s: %w: another process is writing it", temp, task.ErrConflict)
	}

	err = f.Truncate(0)
	if err == nil {
		err = writeContent(ctx, f, head, c)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = compareFile(ctx, f, head, c)
	}
	if err == nil {
		err = requireAbsent(path)
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}

	return SyncDir(filepath.Dir(path))
}

// writeContent writes head and the content, and verifies the content.
func writeContent(ctx context.Context, w io.Writer, head []byte, c *content) error {
	if _, err := w.Write(head); err != nil || c == nil {
		return err
	}

	out := &hashingWriter{w: w, hash: sha256.New(), limit: c.size}
	if _, err := io.Copy(out, contextReader{ctx, c.r}); err != nil {
		return cutShort(err)
	}

	return compareContent("what was received", out.n, out.hash, c.size, c.sha256)
}

// CopyStream writes a backup to a pipe: the manifest, and then the compressed snapshot from r. If it fails, the reader of the pipe has a
// stream that is not good.
func CopyStream(ctx context.Context, w io.Writer, m *Manifest, r io.Reader) error {
	frame, err := EncodeFrame(m)
	if err != nil {
		return err
	}

	return writeContent(ctx, w, frame, packedContent(m, r))
}

// compareFile reads back what writeContent has written.
func compareFile(ctx context.Context, f *os.File, head []byte, c *content) error {
	// Read from the disk what the kernel does not have to keep in memory. Not all file systems can do this.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)

	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}

	first := make([]byte, len(head))
	if _, err := io.ReadFull(f, first); err != nil {
		return cutShort(err)
	}
	if !bytes.Equal(first, head) {
		return fmt.Errorf("%w: the file does not contain the manifest that was written", ErrDamaged)
	}

	if c == nil {
		return nil
	}

	return CompareContent(ctx, "the file that was written", f, c.size, c.sha256)
}

// CompareContent reads r to its end. It returns an error that wraps ErrDamaged unless r has this size and SHA-256.
func CompareContent(ctx context.Context, what string, r io.Reader, size int64, sha256Sum string) error {
	sum := sha256.New()
	n, err := io.Copy(sum, contextReader{ctx, r})
	if err != nil {
		return err
	}

	return compareContent(what, n, sum, size, sha256Sum)
}

// SyncDir makes names in a directory durable. Some network file systems cannot sync directories.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}

	defer d.Close()

	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return err
	}

	return nil
}
