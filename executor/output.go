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
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/task"
)

// How much of its output goes into an attempt's record.
const (
	tailFailed    = 2 << 10
	tailSucceeded = 256
	// remembered is how much of its end is kept while it runs.
	remembered = 2 * tailFailed
)

// output takes what one attempt prints, off its pipes and into the spool. Who reads
// the pipes, and who asks for the times, share it; its other fields are others' when
// nothing is read any more.
type output struct {
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
	rule      *rule  // looks at all that is printed; nil: none does
	taps      [3]tap // by stream: of each, the line that has not ended; its reader's, without mu
}

func (s *Spool) newOutput(path string, wants task.Output) *output {
	o := &output{spool: s, path: path, wants: wants, limit: s.cfg.Limit, times: times{path: timesOf(path)}}
	if wants.Limit > 0 {
		o.limit = min(o.limit, int64(wants.Limit))
	}
	s.activate(o)
	return o
}

// listen has a rule look at all that is printed, at each stream by itself.
func (o *output) listen(r *rule) {
	if r.looks() {
		o.rule = r
		o.taps = [...]tap{{rule: r}, {rule: r}, {rule: r}}
	}
}

// heard ends what listen began: nothing is printed any more.
func (o *output) heard() {
	for i := range o.taps {
		o.taps[i].end()
	}
}

func (o *output) take(b []byte, from stream) {
	now := time.Now()
	o.taps[from].take(b) // which may take its time, and is its reader's alone
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bytes += int64(len(b))
	o.remember(b)
	if o.past() {
		o.spool.dropped.Add(float64(len(b)))
		return
	}
	room := min(o.limit-o.kept, int64(len(b)))
	o.times.note(o.size, now, from)
	o.kept += o.write(b[:room])
	if room < int64(len(b)) && o.broken == nil {
		o.truncated = true
		o.times.note(o.size, now, merged)
		o.write(fmt.Appendf(nil, "\n[carillon: output beyond %d bytes is not kept]\n", o.limit))
		o.spool.dropped.Add(float64(int64(len(b)) - room))
	}
}

// past reports whether nothing more of the output is kept.
func (o *output) past() bool { return o.truncated || o.broken != nil }

// write appends to the file. After a failure (a full disk) nothing more is
// tried: output with holes would mislead.
func (o *output) write(b []byte) int64 {
	if o.broken != nil {
		return 0
	}
	if len(b) == 0 {
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
	if len(b) > remembered {
		b = b[len(b)-remembered:]
	}
	if len(o.last)+len(b) > remembered {
		o.last = append(o.last[:0], o.last[max(0, len(o.last)-(remembered-len(b))):]...)
	}
	o.last = append(o.last, b...)
}

// close ends the output; nothing may be draining into it any more.
func (o *output) close() {
	o.mu.Lock()
	disk := o.times.close(o.file)
	if o.file != nil {
		if err := o.file.Close(); err != nil && o.broken == nil {
			o.broken = err
			o.fail()
		}
		if err := o.wishes(); err != nil {
			o.spool.log.Warn("cannot note how output is to be kept", zap.String("path", o.path), zap.Error(err))
		}
	}
	if o.null != nil {
		o.null.Close()
	}
	size := o.size
	o.mu.Unlock()
	o.spool.retire(o.path, disk+onDisk(size))
	if size > block && !o.wants.Raw() {
		o.spool.toPack(o.path)
	}
}

// wishes puts beside the file what the sweep is to know of the attempt's task.
func (o *output) wishes() error {
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
