package httpaction

import (
	"bytes"
	"errors"
	"io"
	"os"
)

// memoryLimit is how much of a response is kept in memory. The rest of one that is judged or stored as a whole is in a
// temporary file.
const memoryLimit = 64 << 10

// bodyBuffer keeps a response until it has been judged.
type bodyBuffer struct {
	dir  string // of the temporary file; "": the system's
	mem  bytes.Buffer
	file *os.File // what did not fit into mem; nil: nothing
}

func (b *bodyBuffer) Write(p []byte) (int, error) {
	if b.file == nil && b.mem.Len()+len(p) <= memoryLimit {
		return b.mem.Write(p)
	}

	if b.file == nil {
		f, err := os.CreateTemp(b.dir, "response-*")
		if err != nil {
			return 0, err
		}

		// Without a name, the file cannot outlive this process.
		if err := os.Remove(f.Name()); err != nil {
			return 0, errors.Join(err, f.Close())
		}
		b.file = f
	}

	return b.file.Write(p)
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
	return b.file.Close()
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
