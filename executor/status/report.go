package status

import (
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/task"
)

// report is what an attempt has reported so far. Its lines are
//
//	0.4 text         progress as a fraction of 1, or
//	40% text         in percent; the text is optional
//	name=value       a result
//	checkpoint text  a text that the next attempt receives
//
// Its size is bounded: results beyond the limits and lines that are not understood are only
// counted.
type report struct {
	percent    *float64          // 0 to 100; nil: no progress was reported
	text       string            // the text of the progress
	results    map[string]string // nil: none
	bytes      int               // total length of the names and values in results
	checkpoint string            // the latest; "": none
	bad        int               // number of lines that were ignored

	mask func(string) string // hides values of secrets in the progress and the results; nil: there are none
}

var (
	isProgress = regexp.MustCompile(`^(\d{1,3}(?:\.\d{0,20})?|\.\d{1,20})(%?)(?:[ \t]+(.*))?$`)
	isResult   = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_.-]{0,63})=(.*)$`)
)

// reportBefore returns the report with which an attempt begins: the results, the checkpoint and the number of bad lines
// of the run's previous attempts.
func reportBefore(r *task.Run) report {
	s := report{checkpoint: r.Checkpoint, bad: r.BadLines}
	for name, value := range r.Results {
		s.addResult(name, value)
	}
	return s
}

// addLine adds one line, without its line break. It reports whether the line changed the progress.
func (r *report) addLine(b []byte) (progress bool) {
	line := strings.TrimSpace(string(b))
	if line == "" {
		return false
	}

	if !utf8.ValidString(line) || strings.Contains(line, "\x00") {
		r.bad++
		return false
	}

	if word, value, _ := strings.Cut(line, " "); word == "checkpoint" {
		if value = strings.TrimSpace(value); len(value) > task.MaxCheckpoint {
			r.bad++ // a truncated checkpoint would mislead the next attempt
			return false
		}

		r.checkpoint = value

		return false
	}

	if r.mask != nil {
		line = r.mask(line)
	}

	if m := isProgress.FindStringSubmatch(line); m != nil {
		n, err := strconv.ParseFloat(m[1], 64)
		if m[2] == "" {
			n *= 100
		}

		if err == nil && n <= 100 {
			r.percent, r.text = &n, cutText(m[3], task.MaxProgressText)
			return true
		}
	}

	if m := isResult.FindStringSubmatch(line); m == nil || m[1] == "checkpoint" || !r.addResult(m[1], m[2]) {
		r.bad++
	}

	return false
}

// addResult sets a result. It returns false if the results would exceed their limits.
func (r *report) addResult(name, value string) bool {
	before, there := r.results[name]
	size := r.bytes + len(name) + len(value)
	if there {
		size -= len(name) + len(before)
	}

	if size > task.MaxResultBytes || !there && len(r.results) == task.MaxResults {
		return false
	}

	if r.results == nil {
		r.results = map[string]string{}
	}

	r.results[name], r.bytes = value, size

	return true
}

// cutText cuts a text to at most most bytes, without splitting a character.
func cutText(s string, most int) string {
	if len(s) <= most {
		return s
	}

	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}

	return s[:most]
}

// addLines adds all complete lines in b. It returns the rest after the last line break, and whether the progress
// changed.
func (r *report) addLines(b []byte) (rest []byte, progress bool) {
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return b, progress
		}

		progress = r.addLine(b[:i]) || progress
		b = b[i+1:]
	}
}

const (
	readLimit = 64 << 10 // bytes that one read processes
	maxLine   = 8 << 10  // maximum length of a line in bytes
	maxFile   = 16 << 20 // disk space in bytes at which the file is truncated
	traceLen  = 64       // number of bytes before the position that are compared, to detect that the file was rewritten
)

// File identifies the status file of an attempt.
type File struct {
	Dir  int    // the descriptor of its directory
	Name string // its name in the directory
	UID  uint32 // the user that it must belong to
}

// reader reads a status file incrementally, from where the previous read ended. The attempt
// can put anything in its place, so only a regular file of the attempt's user with one
// link is read, and at most readLimit bytes at a time while the attempt runs.
type reader struct {
	*File                // nil: it is not read any more
	seen     unix.Stat_t // the state of the file at the last read
	at       int64       // the position up to which it was read
	trace    []byte      // the bytes before at
	skipping bool        // the rest of a line that is too long is skipped
	refused  bool        // the file in seen was counted as a bad line
}

// readNew adds new lines to s and reports whether they changed the progress. last means that the attempt has ended, so its
// last line may have no line break.
func (r *reader) readNew(s *report, last bool) (progress bool, err error) {
	var st unix.Stat_t
	err = unix.Fstatat(r.Dir, r.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT {
		r.startOver(unix.Stat_t{})
		return false, nil
	}

	if err != nil {
		return false, err
	}

	if st.Ino != r.seen.Ino || st.Dev != r.seen.Dev {
		r.startOver(st)
	} else if st.Size == r.seen.Size && st.Mtim == r.seen.Mtim && st.Ctim == r.seen.Ctim && !last {
		return false, nil
	}

	r.seen = st
	if !r.mayRead(&st) {
		return false, r.refuseFile(s)
	}

	// The file may be too large. If so, it is truncated after it was read.
	flags := unix.O_RDONLY
	if st.Blocks*512 > maxFile {
		flags = unix.O_RDWR
	}

	fd, err := unix.Openat(r.Dir, r.Name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}

	f := os.NewFile(uintptr(fd), r.Name)
	defer f.Close()

	// The attempt may have replaced the file between the two calls, so check what was opened.
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	if !r.mayRead(&st) {
		return false, r.refuseFile(s)
	}

	progress, err = r.readFrom(f, st.Size, s, last)
	if flags == unix.O_RDWR && err == nil {
		err = f.Truncate(0)
		r.at, r.trace, r.skipping = 0, nil, false
	}

	return progress, err
}

// startOver forgets the position, because the file is another one or is gone.
func (r *reader) startOver(st unix.Stat_t) { *r = reader{File: r.File, seen: st} }

// mayRead reports whether the file is a regular file of the attempt's user with one link. A hard link could be to
// another user's file.
func (r *reader) mayRead(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 1 && st.Uid == r.UID
}

// refuseFile counts a file that must not be read as a bad line, once.
func (r *reader) refuseFile(s *report) error {
	if !r.refused {
		r.refused = true
		s.bad++
	}
	return nil
}

// readFrom reads a file of the given size from the position on, or from its beginning if the content before the position
// has changed.
func (r *reader) readFrom(f io.ReaderAt, size int64, s *report, last bool) (progress bool, err error) {
	if n := int64(len(r.trace)); size < r.at || n > 0 && !r.isUnchangedBefore(f, n) {
		r.at, r.trace, r.skipping = 0, nil, false
	}

	if size-r.at > readLimit { // too much for one read; skip to the last lines
		if last {
			r.at = max(r.at, size-16*readLimit)
		} else {
			r.at = size - readLimit
		}

		s.bad, r.skipping, r.trace = s.bad+1, true, nil
	}

	buf := make([]byte, min(size-r.at, readLimit))

	for r.at < size {
		n, rerr := f.ReadAt(buf[:min(size-r.at, int64(len(buf)))], r.at)
		if n == 0 {
			if errors.Is(rerr, io.EOF) { // the file was truncated meanwhile
				rerr = nil
			}
			return progress, rerr
		}

		b := buf[:n]
		end := r.at+int64(n) >= size
		taken := r.consume(b, s, last && end, &progress)
		r.at += int64(taken)
		if taken > 0 { // otherwise the position and the trace remain
			r.trace = append(r.trace[:0], b[max(0, taken-traceLen):taken]...)
		}

		if taken < n && (end || taken == 0) {
			break // an incomplete line, or a truncated file
		}
	}

	return progress, nil
}

// consume adds the lines in b to s and returns the number of bytes that need not be read again. An incomplete line at the
// end is left for the next read, unless last is set.
func (r *reader) consume(b []byte, s *report, last bool, progress *bool) (taken int) {
	whole := len(b)

	if r.skipping {
		// Skip up to the end of a line that was too long.
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return whole
		}
		b, r.skipping = b[i+1:], false
	}

	rest, p := s.addLines(b)
	*progress = *progress || p

	switch {
	// An incomplete line that is already too long is counted, and its rest is skipped by the next read.
	case len(rest) > maxLine:
		s.bad, r.skipping = s.bad+1, true
	case last && len(rest) > 0:
		*progress = s.addLine(rest) || *progress
	default:
		return whole - len(rest)
	}

	return whole
}

// isUnchangedBefore reports whether the n bytes before the position are unchanged.
func (r *reader) isUnchangedBefore(f io.ReaderAt, n int64) bool {
	b := make([]byte, n)
	_, err := f.ReadAt(b, r.at-n)
	return err == nil && bytes.Equal(b, r.trace)
}
