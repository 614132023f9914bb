package spool

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/task"
)

// stream is by which of its streams an attempt printed something.
type stream byte

const (
	mergedStream stream = iota // they were not told apart
	stdout
	stderr
)

func (s stream) String() string { return [...]string{"", task.Stdout, task.Stderr, ""}[s&3] }

const (
	// timesStep is how many bytes of index have a millisecond's resolution; each
	// further so many have half of that of those before.
	timesStep = 64 << 10
	// timesFlush is how much of the index, and for how long, is in memory only.
	timesFlush = 4 << 10
	timesLate  = time.Second
	// timesSmall is the longest index that is kept with the file's inode: a file of
	// its own would cost ten times as much, and a block.
	timesSmall = 64
	timesAttr  = "user.carillon.times"
)

// times is when the parts of an output came: an index beside it, which leaves the
// output itself as it was printed. For each part that came at least the resolution
// after the one before, or by another stream, it has two numbers (uvarint): the
// distance of its first byte from the last one's, and four times the milliseconds
// since that one (since 1970 for the first) plus the stream. What is cut short at the
// end counts for nothing.
//
// The index of a year has less than two MiB: see timesStep. If streams alternate so
// fast that it would be larger than the output, they are not told apart any more.
type times struct {
	path    string
	file    *os.File
	pending []byte // of the index, not yet in the file
	written int64  // in the file
	broken  bool   // the file cannot be written

	from    int64 // of the latest part
	at      int64 // ms
	stream  stream
	parts   int
	flushed time.Time
}

func (t *times) indexSize() int64 { return t.written + int64(len(t.pending)) }

// addTime says that what the output has from byte from on came now.
func (t *times) addTime(from int64, now time.Time, s stream) {
	at := max(now.UnixMilli(), t.at)

	if t.parts > 0 {
		resolution := int64(1) << min(t.indexSize()/timesStep, 40)
		other := s != t.stream && t.indexSize() < min(timesStep+from, mostTimes/2)
		if at-t.at < resolution && !other {
			return
		}
	}

	var b [2 * binary.MaxVarintLen64]byte
	n := binary.PutUvarint(b[:], uint64(from-t.from))
	n += binary.PutUvarint(b[n:], uint64(at-t.at)<<2|uint64(s))
	t.pending = append(t.pending, b[:n]...)
	t.from, t.at, t.stream = from, at, s
	if t.parts++; t.parts == 1 {
		t.flushed = now
	}

	if len(t.pending) >= timesFlush || now.Sub(t.flushed) >= timesLate && t.indexSize() > timesSmall {
		t.flushIndex(now)
	}
}

func (t *times) flushIndex(now time.Time) {
	t.flushed = now
	if t.file == nil && !t.broken {
		var err error
		t.file, err = os.OpenFile(t.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		t.broken = err != nil
	}

	if !t.broken {
		_, err := t.file.Write(t.pending)
		t.broken = err != nil
	}

	if !t.broken {
		t.written += int64(len(t.pending))
	}

	t.pending = t.pending[:0] // without the disk there are no times: they are not worth an attempt's memory
}

// closeIndex puts the index where it stays: with the output's own inode if it is small.
// It returns how much disk it takes.
func (t *times) closeIndex(output *os.File) int64 {
	if t.file == nil && output != nil && len(t.pending) > 0 && len(t.pending) <= timesSmall {
		if unix.Fsetxattr(int(output.Fd()), timesAttr, t.pending, 0) == nil {
			return 0
		}
	}

	if len(t.pending) > 0 {
		t.flushIndex(time.Time{})
	}

	if t.file != nil {
		t.file.Close() // what is lost of the index costs times, nothing else
	}

	return onDisk(t.written)
}

// mostMarks is how many marks are read at once, and mostOutput beyond any output.
const (
	mostMarks  = 1024
	mostOutput = 1 << 62
)

// readMarks reads an index: the marks of what is at or behind byte from, the one before it
// included; not all, if there are many: then those of the beginning.
func readMarks(index []byte, from int64) (list []task.Mark) {
	var m task.Mark
	var at uint64
	for len(list) < mostMarks {
		distance, n := binary.Uvarint(index)
		if n <= 0 {
			break
		}

		passed, k := binary.Uvarint(index[n:])
		if k <= 0 || distance > mostOutput-uint64(m.From) { // damaged
			break
		}

		index = index[n+k:]
		at += passed >> 2
		m.From += int64(distance)
		m.At, m.Stream = time.UnixMilli(int64(at)), stream(passed&3).String()
		if len(list) == 1 && m.From <= from {
			list = list[:0]
		}

		list = append(list, m)
	}

	return list
}

// Times tells when the parts of an attempt's output came: of what is at or behind byte
// from, as far as it has come by now. If there are very many parts, not all are told:
// ask again, from where the last one begins. Nothing is known of outputs that a former
// version has kept; that is no error.
func (s *Spool) Times(namespace, name, run string, attempt int, from int64) ([]task.Mark, error) {
	path, err := s.Path(namespace, name, run, attempt)
	if err != nil {
		return nil, err
	}

	s.mu.Lock()
	o := s.active[path]
	s.mu.Unlock()

	if o == nil {
		return readMarks(storedTimes(path), from), nil
	}

	o.mu.Lock()
	written, pending := o.times.written, append([]byte(nil), o.times.pending...)
	o.mu.Unlock()

	if written == 0 {
		return readMarks(pending, from), nil
	}

	index := readTimes(o.times.path, written)
	if int64(len(index)) < written {
		return readMarks(index, from), nil // it has been removed: what follows would be misread
	}

	return readMarks(append(index, pending...), from), nil
}

// mostTimes is more than any index has, and bounds what a damaged one costs.
const mostTimes = 16 << 20

func storedTimes(path string) []byte {
	var b [timesSmall]byte

	for _, p := range []string{path, packedPath(path)} {
		if n, err := unix.Getxattr(p, timesAttr, b[:]); err == nil {
			return b[:n]
		}
	}

	return readTimes(timesOf(path), mostTimes)
}

func readTimes(path string, most int64) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil // there are none, or none any more
	}

	defer f.Close()

	b, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}

	return b
}
