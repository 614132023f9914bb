package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// The ends of the names of files.
const (
	dataSuffix     = ".db.zst"
	fileSuffix     = ".zst" // a single file
	manifestSuffix = ".json"
	tempSuffix     = ".tmp"
	bareSuffix     = ".db" // a snapshot of etcdctl
)

// A stream begins with skippable frames of zstd: a magic number, the length of the content, and the content. Decoders ignore such
// frames. The one with the manifest is the last of them.
const (
	paddingMagic = 0x184D2A50
	frameMagic   = 0x184D2A5C // the manifest
	problemMagic = 0x184D2A5E // why there is no backup
	zstdMagic    = 0xFD2FB528 // the compressed snapshot
	frameHeader  = 8
)

// maxWindow is the largest window of zstd that Unpack accepts. It bounds the memory that a hostile file can make it use.
const maxWindow = 64 << 20

// Stored is a backup that is stored in files.
type Stored struct {
	Name     string    // how to name it: DIR/ID or the path of its file
	Path     string    // the file with the snapshot
	Manifest *Manifest // nil: a snapshot that etcdctl has made

	offset int64 // where the compressed snapshot begins in the file
}

// Open opens the backup with a name: DIR/ID, also with the suffix of one of its two files, the path of a file that contains its
// manifest, or that of a snapshot that etcdctl has made. It reads the manifest, but does not verify the snapshot: Unpack does.
func Open(name string) (*Stored, error) {
	s, err := openStored(name)
	if err != nil {
		return nil, fmt.Errorf("backup %s: %w", name, err)
	}
	return s, nil
}

// openStored is Open with errors that do not name the backup.
func openStored(name string) (*Stored, error) {
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return nil, task.Invalid(task.CodeBadValue, "", "it is a directory: add the ID of a backup, as `carillon backup list` prints it")
	}

	base := strings.TrimSuffix(strings.TrimSuffix(name, manifestSuffix), dataSuffix)
	text, err := readFileLimited(base+manifestSuffix, maxManifest)

	switch {
	case err == nil:
		m, err := ParseManifest(text)
		if err != nil {
			return nil, err
		}

		s := &Stored{Name: base, Path: base + dataSuffix, Manifest: m}

		return s, s.checkFile()
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}

	// There is no manifest beside it, so it must be a file.
	s, err := openFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		s, err = openFile(base + dataSuffix)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, task.ErrNotFound
	}

	return s, err
}

// errNoManifest is the error for a compressed snapshot whose manifest is missing.
var errNoManifest = fmt.Errorf("%w: it has no manifest, so it was not stored completely", ErrDamaged)

// openFile opens a single file.
func openFile(path string) (*Stored, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}

	defer f.Close()

	var head [frameHeader]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return nil, cutShort(err)
	}

	s := &Stored{Name: path, Path: path}
	switch binary.LittleEndian.Uint32(head[:]) {
	case zstdMagic:
		return nil, errNoManifest
	case frameMagic, paddingMagic, problemMagic:
		if s.Manifest, s.offset, err = ReadFrame(io.MultiReader(bytes.NewReader(head[:]), f)); err != nil {
			return nil, err
		}
		return s, s.checkFile()
	}

	return s, nil
}

// checkFile checks that the file has the size that the manifest says.
func (s *Stored) checkFile() error {
	info, err := os.Stat(s.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s is missing", ErrDamaged, filepath.Base(s.Path))
	case err != nil:
		return err
	case info.Size() != s.offset+s.Manifest.PackedSize:
		return fmt.Errorf("%w: the file has %d bytes instead of %d", ErrDamaged, info.Size(), s.offset+s.Manifest.PackedSize)
	}

	return nil
}

// readFileLimited reads a file of at most limit bytes.
func readFileLimited(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}

	defer f.Close()

	return io.ReadAll(io.LimitReader(f, limit+1))
}

// EncodeFrame returns the frame with the manifest with which a stream begins.
func EncodeFrame(m *Manifest) ([]byte, error) {
	text, err := m.Encode()
	if err != nil {
		return nil, err
	}

	return appendFrame(frameMagic, text), nil
}

// Padding is a frame that says nothing. A stream may begin with such frames, so that its reader knows that the sender is alive while it
// makes the backup.
func Padding() []byte { return binary.LittleEndian.AppendUint64(nil, paddingMagic) }

// EncodeProblem returns a frame that says why a backup that has begun to be sent cannot be made.
func EncodeProblem(p client.Problem) ([]byte, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode a problem: %w", err)
	}

	return appendFrame(problemMagic, text), nil
}

func appendFrame(magic uint32, content []byte) []byte {
	frame := binary.LittleEndian.AppendUint32(nil, magic)
	frame = binary.LittleEndian.AppendUint32(frame, uint32(len(content)))

	return append(frame, content...)
}

// ReadFrame reads the manifest at the beginning of a stream, and returns it with the length of everything before the compressed
// snapshot. If the sender could not make the backup, the error is a *client.Error with the reason.
func ReadFrame(r io.Reader) (*Manifest, int64, error) {
	var n int64
	for {
		magic, content, err := readOneFrame(r)
		if err != nil {
			return nil, 0, err
		}
		n += frameHeader + int64(len(content))

		switch magic {
		case paddingMagic:
		case frameMagic:
			m, err := ParseManifest(content)
			return m, n, err
		case problemMagic:
			var p client.Problem
			if err := json.Unmarshal(content, &p); err != nil {
				return nil, 0, fmt.Errorf("%w: it does not begin with a manifest", ErrDamaged)
			}
			return nil, 0, &client.Error{Status: p.Status, Code: p.Code, Message: p.Detail, Hint: p.Hint}
		default:
			return nil, 0, fmt.Errorf("%w: it does not begin with a manifest", ErrDamaged)
		}
	}
}

// readOneFrame reads a frame that is not longer than a manifest.
func readOneFrame(r io.Reader) (magic uint32, content []byte, err error) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, cutShort(err)
	}

	magic = binary.LittleEndian.Uint32(head[:])
	size := binary.LittleEndian.Uint32(head[4:])
	if magic&^0xF != paddingMagic || size > maxManifest {
		return 0, nil, fmt.Errorf("%w: it does not begin with a manifest", ErrDamaged)
	}

	content = make([]byte, size)
	if _, err := io.ReadFull(r, content); err != nil {
		return 0, nil, cutShort(err)
	}

	return magic, content, nil
}

// cutShort returns the error of a read that should have found more.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends too early", ErrDamaged)
	}
	return err
}

// Unpack writes the snapshot to w. It returns an error that wraps ErrDamaged unless all sizes and hashes are right. Until it has
// returned, the caller must not rely on what was written.
func (s *Stored) Unpack(ctx context.Context, w io.Writer) error {
	f, err := os.Open(s.Path)
	if err != nil {
		return err
	}

	defer f.Close()

	if _, err := f.Seek(s.offset, io.SeekStart); err != nil {
		return err
	}

	if s.Manifest == nil {
		err = copyBare(ctx, w, f)
	} else {
		err = unpack(ctx, w, f, s.Manifest)
	}
	if err != nil {
		return fmt.Errorf("backup %s: %w", s.Name, err)
	}

	return nil
}

// UnpackFile unpacks the snapshot to a new file of mode 0600, and syncs it. If that fails, it removes the file.
func (s *Stored) UnpackFile(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}

	err = s.Unpack(ctx, f)
	if err == nil {
		err = f.Sync()
	}

	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}

	return nil
}

// unpack decompresses r to w and verifies everything that the manifest says about both.
func unpack(ctx context.Context, w io.Writer, r io.Reader, m *Manifest) error {
	packed := &hashingReader{r: contextReader{ctx, r}, hash: sha256.New()}
	d, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return err
	}

	defer d.Close()

	out := &hashingWriter{w: w, hash: sha256.New(), limit: m.Size}
	_, err = io.Copy(out, d)

	switch {
	case out.err != nil:
		return out.err
	case packed.err != nil && !errors.Is(packed.err, io.EOF):
		return packed.err
	case err != nil:
		return fmt.Errorf("%w: it cannot be decompressed: %v", ErrDamaged, err)
	}

	// The decoder has read everything up to the end of the file.
	return errors.Join(
		compareContent("the compressed file", packed.n, packed.hash, m.PackedSize, m.PackedSHA256),
		compareContent("the snapshot", out.n, out.hash, m.Size, m.SHA256))
}

func compareContent(what string, size int64, sum hash.Hash, wantSize int64, want string) error {
	if size != wantSize {
		return fmt.Errorf("%w: %s has %d bytes instead of %d", ErrDamaged, what, size, wantSize)
	}

	if is := hex.EncodeToString(sum.Sum(nil)); is != want {
		return fmt.Errorf("%w: %s has the SHA-256 %s instead of %s", ErrDamaged, what, is, want)
	}

	return nil
}

// copyBare copies a snapshot of etcdctl, and compares the SHA-256 that etcd has appended. etcd writes whole pages, so a snapshot
// without the SHA-256, such as a copy of a member's database, has no remainder.
func copyBare(ctx context.Context, w io.Writer, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}

	size := info.Size() - sha256.Size
	if size < 0 || info.Size()%512 != sha256.Size {
		return fmt.Errorf("%w: it does not end with the SHA-256 of a snapshot of etcd", ErrDamaged)
	}

	sum := sha256.New()
	r := contextReader{ctx, f}
	if _, err := io.CopyN(io.MultiWriter(w, sum), r, size); err != nil {
		return cutShort(err)
	}

	var appended [sha256.Size]byte
	if _, err := io.ReadFull(r, appended[:]); err != nil {
		return cutShort(err)
	}

	if !bytes.Equal(sum.Sum(nil), appended[:]) {
		return fmt.Errorf("%w: it does not have the SHA-256 that etcd has appended", ErrDamaged)
	}

	_, err = w.Write(appended[:]) // etcd's own tools verify it, too

	return err
}

// hashingReader counts and hashes what is read. It keeps the first error.
type hashingReader struct {
	r    io.Reader
	hash hash.Hash
	n    int64
	err  error
}

func (h *hashingReader) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	h.hash.Write(p[:n])
	h.n += int64(n)
	if h.err == nil {
		h.err = err
	}

	return n, err
}

// hashingWriter counts and hashes what is written, and refuses more than limit bytes, if that is not 0. It keeps the first error.
type hashingWriter struct {
	w     io.Writer
	hash  hash.Hash
	n     int64
	limit int64
	err   error
}

func (h *hashingWriter) Write(p []byte) (int, error) {
	if h.limit > 0 && h.n+int64(len(p)) > h.limit {
		h.err = fmt.Errorf("%w: the snapshot has more than %d bytes", ErrDamaged, h.limit)
		return 0, h.err
	}

	n, err := h.w.Write(p)
	h.hash.Write(p[:n])
	h.n += int64(n)
	if h.err == nil {
		h.err = err
	}

	return n, err
}

// sum returns the SHA-256 of what was written, in hexadecimal digits.
func (h *hashingWriter) sum() string { return hex.EncodeToString(h.hash.Sum(nil)) }

// contextReader ends reads when ctx has ended.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
