package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// MaxTail is the most of its end that is wanted of an output for its attempt's record.
	MaxTail = 2 << 10
	// tailMemory is how much of its end is kept in memory while the attempt runs.
	tailMemory = 2 * MaxTail
)

// Output takes what one attempt prints, off its pipes and into the spool. Who reads
// the pipes, and who asks for the times, share it; its other fields are others' when
// nothing is read any more.
type Output struct {
	spool *Spool
	path  string
	wants task.Output // what the attempt's task says of it
	limit int64       // bytes kept

	followed atomic.Bool // somebody is to be woken by what is written

	mu        sync.Mutex
	file      *os.File
	null      *os.File // where what is not kept goes, unread
	times     times
	bytes     int64  // printed
	kept      int64  // of these, in the file
	size      int64  // of the file, marks included
	truncated bool   // the file lacks something
	broken    error  // why nothing more is written
	last      []byte // the end of what was printed

	matcher LineMatcher     // looks at all that is printed; nil: none does
	lines   [3]lineSplitter // by stream: of each, the line that has not ended; its reader's, without mu
}

// NewOutput begins the output of an attempt, at a path from Path. Until its Close the attempt counts as active.
func (s *Spool) NewOutput(path string, wants task.Output) *Output {
	o := &Output{spool: s, path: path, wants: wants, limit: s.cfg.Limit, times: times{path: timesOf(path)}}
	if wants.Limit > 0 {
		o.limit = min(o.limit, int64(wants.Limit))
	}

	s.activateOutput(o)

	return o
}

// MatchLines has a matcher look at all that is printed, at each stream by itself. It is called before anything is.
func (o *Output) MatchLines(m LineMatcher) {
	o.matcher = m
	o.lines = [...]lineSplitter{{matcher: m}, {matcher: m}, {matcher: m}}
}

// EndLines has the matcher look at last lines that have no end: nothing is printed any more.
func (o *Output) EndLines() {
	for i := range o.lines {
		o.lines[i].flushLine()
	}
}

// Summary is what the record of an attempt says of its output.
type Summary struct {
	Bytes     int64  // printed, kept or not
	Truncated bool   // not all is kept
	Tail      []byte // the end of what was printed, some KiB; not yet valid UTF-8
	Err       error  // why output was not kept; nil: it was, up to the limit
}

// Summary is for when nothing is printed any more.
func (o *Output) Summary() Summary {
	return Summary{Bytes: o.bytes, Truncated: o.truncated, Tail: o.last, Err: o.broken}
}

func (o *Output) addOutput(b []byte, from stream) {
	now := time.Now()
	o.lines[from].addBytes(b) // which may take its time, and is its reader's alone
	o.mu.Lock()
	defer o.mu.Unlock()

	o.bytes += int64(len(b))
	o.keepTail(b)

	if o.keepsNothing() {
		o.spool.dropped.Add(float64(len(b)))
		return
	}

	room := min(o.limit-o.kept, int64(len(b)))
	o.times.addTime(o.size, now, from)

	o.kept += o.appendBytes(b[:room])
	if room < int64(len(b)) && o.broken == nil {
		o.truncated = true
		o.times.addTime(o.size, now, mergedStream)
		o.appendBytes(fmt.Appendf(nil, "\n[carillon: output beyond %d bytes is not kept]\n", o.limit))
		o.spool.dropped.Add(float64(int64(len(b)) - room))
	}
}

// keepsNothing reports whether nothing more of the output is kept.
func (o *Output) keepsNothing() bool { return o.truncated || o.broken != nil }

// appendBytes appends to the file. After a failure (a full disk) nothing more is
// tried: output with holes would mislead.
func (o *Output) appendBytes(b []byte) int64 {
	if o.broken != nil {
		return 0
	}
	if len(b) == 0 {
		return 0
	}

	if o.file == nil {
		if o.file, o.broken = createFile(o.path); o.broken != nil {
			o.setBroken()
			return 0
		}
	}

	n, err := o.file.Write(b)
	o.size += int64(n)
	if o.followed.Load() { // a follower sets it before it reads: what it has not read wakes it
		o.spool.notifyWritten(o.path)
	}

	if err != nil {
		o.broken = err
		o.setBroken()
	}

	return int64(n)
}

func (o *Output) setBroken() {
	o.truncated = true
	o.spool.failures.Inc()
	o.spool.sweep.Send()
	o.spool.log.Warn("output is not kept", zap.String("path", o.path), zap.Error(o.broken))
}

// createFile makes the file and the directories above it, which a sweep may be
// removing at the same time.
func createFile(path string) (*os.File, error) {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	f, err := os.OpenFile(path, flags, 0o600)
	for try := 0; errors.Is(err, fs.ErrNotExist) && try < 5; try++ {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil || errors.Is(err, fs.ErrNotExist) {
			f, err = os.OpenFile(path, flags, 0o600)
		}
	}

	return f, err
}

// keepTail keeps the end of what was printed, also of what is not kept on disk.
func (o *Output) keepTail(b []byte) {
	if len(b) > tailMemory {
		b = b[len(b)-tailMemory:]
	}

	if len(o.last)+len(b) > tailMemory {
		o.last = append(o.last[:0], o.last[max(0, len(o.last)-(tailMemory-len(b))):]...)
	}

	o.last = append(o.last, b...)
}

// Close ends the output; nothing may be draining into it any more.
func (o *Output) Close() {
	o.mu.Lock()
	disk := o.times.closeIndex(o.file)

	if o.file != nil {
		if err := o.file.Close(); err != nil && o.broken == nil {
			o.broken = err
			o.setBroken()
		}

		if err := o.writeRetention(); err != nil {
			o.spool.log.Warn("cannot store the retention of output", zap.String("path", o.path), zap.Error(err))
		}
	}

	if o.null != nil {
		o.null.Close()
	}

	size := o.size
	o.mu.Unlock()

	o.spool.retireOutput(o.path, disk+onDisk(size))

	if size > blockSize && !o.wants.Raw() {
		o.spool.toPack(o.path)
	}
}

// writeRetention puts beside the file what the sweep is to know of the attempt's task.
func (o *Output) writeRetention() error {
	var errs []error
	if o.wants.Raw() {
		errs = append(errs, os.WriteFile(rawOf(o.path), nil, 0o600))
	}

	if keep := o.wants.Keep.Std(); keep > 0 && keep < o.spool.cfg.MaxAge {
		until, p := time.Now().Add(keep), keepOf(o.path)
		errs = append(errs, os.WriteFile(p, nil, 0o600), os.Chtimes(p, until, until))
	}

	return errors.Join(errs...)
}

// Tail returns the end of the output as valid UTF-8 without NULs, at most n
// bytes long.
func Tail(b []byte, n int) string {
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
