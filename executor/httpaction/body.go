package httpaction

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/mask"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

// memoryLimit is how much of a response is kept in memory. The rest of one that is judged or stored as a whole is in a
// temporary file.
const memoryLimit = 64 << 10

// diskLimit is how much of all responses the temporary files contain. Without a limit, 512 requests to one bad target
// would need 8 GiB, on the disk on which the data of the node is.
const diskLimit = 1 << 30

// errDiskLimit means that an attempt ended while it waited for space in the temporary files.
var errDiskLimit = fmt.Errorf("the responses that this node is judging take %s already, and no space became free in time", task.Size(diskLimit))

// bodyBuffer keeps a response until it has been judged.
type bodyBuffer struct {
	dir string // of the temporary file; "": the system's
	// reserve is called before the file is created. It waits until the file may have its maximum size. free returns it.
	reserve func() error
	free    func()
	mem     bytes.Buffer
	file    *os.File // what did not fit into mem; nil: nothing
}

func (b *bodyBuffer) Write(p []byte) (int, error) {
	if b.file == nil && b.mem.Len()+len(p) <= memoryLimit {
		return b.mem.Write(p)
	}

	if b.file == nil {
		if err := b.reserve(); err != nil {
			return 0, err
		}

		f, err := newTempFile(b.dir)
		if err != nil {
			b.free()
			return 0, err
		}
		b.file = f
	}

	return b.file.Write(p)
}

// newTempFile creates a file without a name, which cannot outlive this process.
func newTempFile(dir string) (*os.File, error) {
	dir = cmp.Or(dir, os.TempDir())
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), dir), nil
	}

	// Not every file system has such files.
	f, err := os.CreateTemp(dir, "response-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}

	return f, nil
}

// isSmall reports whether all of it is in memory.
func (b *bodyBuffer) isSmall() bool { return b.file == nil }

// reader returns a reader from the beginning. Nothing may be written afterwards.
func (b *bodyBuffer) reader() (io.Reader, error) {
	if b.file == nil {
		return bytes.NewReader(b.mem.Bytes()), nil
	}

	if _, err := b.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}

	return io.MultiReader(bytes.NewReader(b.mem.Bytes()), b.file), nil
}

// Close releases the file.
func (b *bodyBuffer) Close() error {
	if b.file == nil {
		return nil
	}

	err := b.file.Close()
	b.free()

	return err
}

// tailWriter keeps the last bytes that are written.
type tailWriter struct {
	most int
	last []byte
}

func (t *tailWriter) Write(p []byte) (int, error) {
	n := len(p)
	if len(p) >= t.most {
		t.last = append(t.last[:0], p[len(p)-t.most:]...)
		return n, nil
	}

	if over := len(t.last) + len(p) - t.most; over > 0 {
		t.last = append(t.last[:0], t.last[over:]...)
	}
	t.last = append(t.last, p...)

	return n, nil
}

// keptBody masks secrets in a response, keeps its tail for the attempt's record and, if configured, spools all of it.
type keptBody struct {
	mask.Writer
	tail   tailWriter
	out    *spool.Output // nil: it is not stored
	counts int64         // bytes that were written, after masking
	isCut  bool          // the response was longer
}

// begin makes k ready for a response. out may be nil.
func (k *keptBody) begin(values *mask.Masker, out *spool.Output, stores bool) {
	*k = keptBody{tail: tailWriter{most: tailBytes}}
	if stores {
		k.out = out
	}

	k.Writer.Begin(values, masked{k})
}

// masked receives what a keptBody keeps.
type masked struct{ to *keptBody }

func (m masked) Write(b []byte) (int, error) {
	k := m.to
	k.counts += int64(len(b))
	if k.out != nil {
		_, _ = k.out.Write(b) // never fails; see spool.Output.Summary
	}

	return k.tail.Write(b)
}

// copyFrom keeps a response that has been buffered.
func (k *keptBody) copyFrom(b *bodyBuffer) error {
	r, err := b.reader()
	if err != nil {
		return err
	}

	buf := readBuffers.Get().(*[]byte)
	defer readBuffers.Put(buf)
	_, err = io.CopyBuffer(struct{ io.Writer }{k}, struct{ io.Reader }{r}, *buf)

	return err
}

// end returns the end of the response, its length, and whether parts of it were not stored. Nothing may be written
// afterwards.
func (k *keptBody) end() (tail []byte, length int64, truncated bool) {
	if k.isCut {
		k.MaskCut()
	}
	_ = k.Close() // masked has no errors

	if k.out == nil {
		return k.tail.last, k.counts, k.counts > keptOfSuccess
	}

	return k.tail.last, k.counts, k.out.Summary().Truncated
}
