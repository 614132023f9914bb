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

// stream is the stream on which an attempt printed something.
type stream byte

const (
	mergedStream stream = iota // both, through one pipe
	stdout
	stderr
)

// String returns the stream's name in the API, or "" if the streams are merged.
func (s stream) String() string { return [...]string{"", task.Stdout, task.Stderr, ""}[s&3] }

const (
	// timesStep is the number of bytes of the index that have a resolution of 1 ms. The resolution becomes
	// twice as coarse with each further timesStep bytes.
	timesStep = 64 << 10
	// timesFlush and timesLate are how many bytes of the index are only in memory, and for how long.
	timesFlush = 4 << 10
	timesLate  = time.Second
	// timesSmall is the maximum size of an index that is stored as an extended attribute of the output. A separate
	// file would take ten times as long to write, and a block of disk space.
	timesSmall = 64
	timesAttr  = "user.carillon.times"
)

// times is an index of when the parts of an output arrived. It is stored beside the output,
// which remains as it was printed. For each part that arrived at least one resolution
// after the previous part, or on another stream, it has two numbers (uvarint): the
// distance of the part's first byte from that of the previous part, and four times the milliseconds
// since the previous part (since 1970 for the first) plus the stream. An incomplete entry at the
// end is ignored.
//
// The index of a year of output has less than 2 MiB, because of timesStep. If the streams alternate so
// fast that the index would become larger than the output, it does not record changes of the stream any more.
type times struct {
	path    string
	file    *os.File // nil before the first flush
	pending []byte   // the end of the index, not yet in the file
	written int64    // bytes in the file
	broken  bool     // the file cannot be written

	from    int64 // first byte of the latest part
	at      int64 // when it arrived, in milliseconds since 1970; never goes back
	stream  stream
	parts   int       // number of parts
	flushed time.Time // when the index was last flushed
}

// indexSize returns the size of the index in bytes.
func (t *times) indexSize() int64 { return t.written + int64(len(t.pending)) }

// addTime records that the output from byte from on arrived now on stream s.
func (t *times) addTime(from int64, now time.Time, s stream) {
	at := max(now.UnixMilli(), t.at) // the wall clock may go back, but distances are not negative

	if t.parts > 0 {
		// A change of the stream is recorded even within the resolution, as long as the index is small against the output.
		resolution := int64(1) << min(t.indexSize()/timesStep, 40)
		other := s != t.stream && t.indexSize() < min(timesStep+from, maxTimes/2)
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

// flushIndex writes the pending entries to the file.
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

	t.pending = t.pending[:0] // also after a failure: times are not worth the memory
}

// closeIndex stores the rest of the index: as an attribute of the output if the index is small, otherwise in its file.
// It returns the disk space in bytes that the index uses.
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
		t.file.Close() // an error loses times only, so it is ignored
	}

	return onDisk(t.written)
}

// maxMarks is the maximum number of marks that one call returns. maxOutput is larger than any output.
const (
	maxMarks  = 1024
	maxOutput = 1 << 62
)

// readMarks decodes an index. It returns the marks of the parts at and after byte from, and the one before, which covers
// that byte. If there are more than maxMarks, it returns the first of them. It stops at damaged or incomplete entries.
func readMarks(index []byte, from int64) (list []task.Mark) {
	var m task.Mark
	var at uint64
	for len(list) < maxMarks {
		distance, n := binary.Uvarint(index)
		if n <= 0 {
			break
		}

		passed, k := binary.Uvarint(index[n:])
		if k <= 0 || distance > maxOutput-uint64(m.From) { // damaged
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

// Times returns when the parts of an attempt's output arrived, from the part that contains byte
// from up to the present. It returns at most 1024 marks; call it again with
// the From of the last one for more. Outputs of earlier versions have no index; the result is
// then empty, without an error.
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

	// Copy the end of the index under the lock. The part in the file does not change any more, so it is read without.
	o.mu.Lock()
	written, pending := o.times.written, append([]byte(nil), o.times.pending...)
	o.mu.Unlock()

	if written == 0 {
		return readMarks(pending, from), nil
	}

	index := readTimes(o.times.path, written)
	if int64(len(index)) < written {
		return readMarks(index, from), nil // the file was removed, so the pending entries cannot be decoded
	}

	return readMarks(append(index, pending...), from), nil
}

// maxTimes is larger than any index, and limits the memory that a damaged one takes.
const maxTimes = 16 << 20

// storedTimes reads the index of an output that has ended. It returns nil if there is none.
func storedTimes(path string) []byte {
	var b [timesSmall]byte

	for _, p := range []string{path, packedPath(path)} {
		if n, err := unix.Getxattr(p, timesAttr, b[:]); err == nil {
			return b[:n]
		}
	}

	return readTimes(timesOf(path), maxTimes)
}

// readTimes reads up to most bytes of an index file.
func readTimes(path string, most int64) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil // never written, or removed
	}

	defer f.Close()

	b, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}

	return b
}
