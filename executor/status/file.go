package status

import (
	"bytes"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	readLimit = 64 << 10 // bytes read at a look
	maxLine   = 8 << 10  // of a line, at most
	maxFile   = 16 << 20 // of disk that the file may take: it is emptied then
	traceLen  = 64       // of what was read last, to notice that the file was written anew
)

// File says where an attempt reports.
type File struct {
	Dir  int    // the descriptor of the directory that it is in
	Name string // its name there
	UID  uint32 // the user that it must belong to
}

// reader is the file that CARILLON_STATUS_FILE names, as it is read: what is behind what
// was read before. It may be anything: only a plain file of the attempt's own user
// that has no other name is read, and of that no more than a bit at a time.
type reader struct {
	*File                // nil: it is not read any more
	seen     unix.Stat_t // when it was looked at last
	at       int64       // up to there it is read
	trace    []byte      // the bytes before at
	skipping bool        // the rest of a line that is too long
	refused  bool        // counted, of the file that seen is
}

// readNew gives what is new to s. last: the attempt has ended, its last line needs no end.
func (t *reader) readNew(s *report, last bool) (progress bool, err error) {
	var st unix.Stat_t
	err = unix.Fstatat(t.Dir, t.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT {
		t.startOver(unix.Stat_t{})
		return false, nil
	}

	if err != nil {
		return false, err
	}

	if st.Ino != t.seen.Ino || st.Dev != t.seen.Dev {
		t.startOver(st)
	} else if st.Size == t.seen.Size && st.Mtim == t.seen.Mtim && st.Ctim == t.seen.Ctim && !last {
		return false, nil
	}

	t.seen = st
	if !t.mayRead(&st) {
		return false, t.refuseFile(s)
	}

	flags := unix.O_RDONLY
	if st.Blocks*512 > maxFile {
		flags = unix.O_RDWR
	}

	fd, err := unix.Openat(t.Dir, t.Name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}

	f := os.NewFile(uintptr(fd), t.Name)
	defer f.Close()

	if err := unix.Fstat(fd, &st); err != nil { // it may be another by now
		return false, err
	}
	if !t.mayRead(&st) {
		return false, t.refuseFile(s)
	}

	progress, err = t.readFrom(f, st.Size, s, last)
	if flags == unix.O_RDWR && err == nil {
		err = f.Truncate(0)
		t.at, t.trace, t.skipping = 0, nil, false
	}

	return progress, err
}

func (t *reader) startOver(st unix.Stat_t) { *t = reader{File: t.File, seen: st} }

func (t *reader) mayRead(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 1 && st.Uid == t.UID
}

// refuseFile counts what is no file of the attempt as a bad line, once.
func (t *reader) refuseFile(s *report) error {
	if !t.refused {
		t.refused = true
		s.bad++
	}
	return nil
}

// readFrom reads a file of that size on, or, if it is not the one that was read before,
// from its beginning.
func (t *reader) readFrom(f io.ReaderAt, size int64, s *report, last bool) (progress bool, err error) {
	if n := int64(len(t.trace)); size < t.at || n > 0 && !t.isUnchangedBefore(f, n) {
		t.at, t.trace, t.skipping = 0, nil, false
	}

	if size-t.at > readLimit { // too much at once: what it said last counts
		if last {
			t.at = max(t.at, size-16*readLimit)
		} else {
			t.at = size - readLimit
		}

		s.bad, t.skipping, t.trace = s.bad+1, true, nil
	}

	buf := make([]byte, min(size-t.at, readLimit))

	for t.at < size {
		n, rerr := f.ReadAt(buf[:min(size-t.at, int64(len(buf)))], t.at)
		if n == 0 {
			if errors.Is(rerr, io.EOF) { // it became shorter meanwhile
				rerr = nil
			}
			return progress, rerr
		}

		b := buf[:n]
		end := t.at+int64(n) >= size
		taken := t.consume(b, s, last && end, &progress)
		t.at += int64(taken)
		if taken > 0 { // else what was read last is what it was
			t.trace = append(t.trace[:0], b[max(0, taken-traceLen):taken]...)
		}

		if taken < n && (end || taken == 0) {
			break // a line that is being written, or a file that was cut
		}
	}

	return progress, nil
}

// consume gives what is read to s, and reports how much of it need not be read again.
func (t *reader) consume(b []byte, s *report, last bool, progress *bool) (taken int) {
	whole := len(b)

	if t.skipping {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return whole
		}
		b, t.skipping = b[i+1:], false
	}

	rest, p := s.addLines(b)
	*progress = *progress || p

	switch {
	case len(rest) > maxLine:
		s.bad, t.skipping = s.bad+1, true
	case last && len(rest) > 0:
		*progress = s.addLine(rest) || *progress
	default:
		return whole - len(rest)
	}

	return whole
}

// isUnchangedBefore reports whether the n bytes before at are what they were.
func (t *reader) isUnchangedBefore(f io.ReaderAt, n int64) bool {
	b := make([]byte, n)
	_, err := f.ReadAt(b, t.at-n)
	return err == nil && bytes.Equal(b, t.trace)
}
