package executor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"unicode/utf8"

	"go.uber.org/zap"
)

// How much of its output goes into an attempt's record.
const (
	tailFailed    = 2 << 10
	tailSucceeded = 256
)

// output takes what one attempt prints, off its pipe and into the spool. One
// goroutine reads; its fields are others' when that has ended.
type output struct {
	spool *Spool
	path  string
	file  *os.File

	followed atomic.Bool // somebody is to be woken by what is written

	bytes     int64  // printed
	kept      int64  // of these, in the file
	size      int64  // of the file, marks included
	truncated bool   // the file lacks something
	broken    error  // why nothing more is written
	last      []byte // the end of what was printed
	tap       *tap   // sees all that is printed; nil: nobody does
}

func (s *Spool) newOutput(path string) *output {
	o := &output{spool: s, path: path}
	s.activate(o)
	return o
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// drain reads the pipe until its end, or until its deadline, which is set when
// the attempt is over and something else still holds the other end.
func (o *output) drain(pipe *os.File) {
	rc, err := pipe.SyscallConn()
	if err != nil {
		return // only if it is closed
	}
	for more := true; more; {
		err = rc.Read(func(fd uintptr) (ready bool) {
			buf := buffers.Get().(*[]byte) // only while there is something to read: many attempts say nothing
			defer buffers.Put(buf)
			n, err := readFD(int(fd), *buf)
			if errors.Is(err, syscall.EAGAIN) {
				return false
			}
			if n > 0 {
				o.take((*buf)[:n])
			}
			more = n > 0
			return true
		})
		more = more && err == nil
	}
}

func readFD(fd int, b []byte) (int, error) {
	for {
		n, err := syscall.Read(fd, b)
		if err != syscall.EINTR {
			return n, err
		}
	}
}

func (o *output) take(b []byte) {
	o.bytes += int64(len(b))
	o.tap.take(b)
	o.remember(b)
	if room := o.spool.cfg.Limit - o.kept; !o.truncated && o.broken == nil && int64(len(b)) > room {
		o.keep(b[:room])
		o.truncated = true
		o.write(fmt.Appendf(nil, "\n[carillon: output beyond %d bytes is not kept]\n", o.spool.cfg.Limit))
		o.spool.dropped.Add(float64(int64(len(b)) - room))
		return
	}
	if o.truncated || o.broken != nil {
		o.spool.dropped.Add(float64(len(b)))
		return
	}
	o.keep(b)
}

func (o *output) keep(b []byte) {
	if len(b) == 0 {
		return
	}
	o.kept += o.write(b)
}

// write appends to the file. After a failure (a full disk) nothing more is
// tried: output with holes would mislead.
func (o *output) write(b []byte) int64 {
	if o.broken != nil {
		return 0
	}
	if o.file == nil {
		if o.file, o.broken = create(o.path); o.broken != nil {
			o.fail()
			return 0
		}
	}
	n, err := o.file.Write(b)
	o.size += int64(n)
	if o.followed.Load() { // a follower sets it before it reads: what it has not read wakes it
		o.spool.written(o.path)
	}
	if err != nil {
		o.broken = err
		o.fail()
	}
	return int64(n)
}

func (o *output) fail() {
	o.truncated = true
	o.spool.failures.Inc()
	poke(o.spool.look)
	o.spool.log.Warn("output is not kept", zap.String("path", o.path), zap.Error(o.broken))
}

// create makes the file and the directories above it, which a sweep may be
// removing at the same time.
func create(path string) (*os.File, error) {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	f, err := os.OpenFile(path, flags, 0o600)
	for try := 0; errors.Is(err, fs.ErrNotExist) && try < 5; try++ {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil || errors.Is(err, fs.ErrNotExist) {
			f, err = os.OpenFile(path, flags, 0o600)
		}
	}
	return f, err
}

// remember keeps the end of what was printed, also of what is not kept on disk.
func (o *output) remember(b []byte) {
	const most = 2 * tailFailed
	if len(b) > most {
		b = b[len(b)-most:]
	}
	if len(o.last)+len(b) > most {
		o.last = append(o.last[:0], o.last[max(0, len(o.last)-(most-len(b))):]...)
	}
	o.last = append(o.last, b...)
}

// close ends the output; nothing may be draining into it any more.
func (o *output) close() {
	if o.file != nil {
		if err := o.file.Close(); err != nil && o.broken == nil {
			o.broken = err
			o.fail()
		}
	}
	o.spool.retire(o.path, o.size)
}

// tail returns the end of the output as valid UTF-8 without NULs, at most n
// bytes long.
func tail(b []byte, n int) string {
	cut := func(b []byte) []byte {
		if len(b) <= n {
			return b
		}
		b = b[len(b)-n:]
		for i := 0; i < utf8.UTFMax-1 && len(b) > 0 && !utf8.RuneStart(b[0]); i++ {
			b = b[1:]
		}
		return b
	}
	s := strings.ToValidUTF8(string(cut(b)), "\uFFFD")
	return string(cut([]byte(strings.ReplaceAll(s, "\x00", "\uFFFD"))))
}
