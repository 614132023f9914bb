package spool

import (
	"bytes"
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
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/mask"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// MaxTail is the maximum size in bytes of the output's end in its attempt's record.
	MaxTail = 2 << 10
	// tailMemory is the size in bytes of the output's end that is kept in memory while the attempt runs.
	tailMemory = 2 * MaxTail
)

// Output receives what one attempt prints and writes it to the spool. The goroutines that read the pipes and
// callers of Spool.Times share it; mu guards the shared fields. The methods Summary and Close may only be called when
// no pipe is read any more.
type Output struct {
	spool *Spool
	path  string
	wants task.Output // the task's settings for its output
	limit int64       // maximum number of bytes in the file, without marks
	// isResponse is set for the responses of HTTP actions, which together use only a part of the spool.
	isResponse bool

	followed atomic.Bool // followers must be woken after each write

	mu        sync.Mutex
	file      *os.File // nil before the first byte
	null      *os.File // /dev/null, to which output that is not stored is moved; nil: not opened yet
	times     times
	bytes     int64  // number of bytes printed
	kept      int64  // number of these bytes in the file
	size      int64  // size of the file, with the line about the limit
	truncated bool   // not all output is in the file
	broken    error  // the error after which nothing more is written; nil: none
	last      []byte // the end of what was printed

	// By stream. Each belongs to the goroutine that reads the stream, without mu.
	matcher LineMatcher     // receives all lines; nil: none
	lines   [3]lineSplitter // split the lines for the matcher
	masks   []*mask.Writer  // hide values of secrets; nil: there are none
}

// NewOutput begins the output of an attempt at a path from Path. The attempt counts as active until Close.
func (s *Spool) NewOutput(path string, wants task.Output) *Output {
	o := s.buildOutput(path, wants)
	s.activateOutput(o)

	return o
}

// keepFormer renames the files of an earlier attempt with the same number, if there are any. It is one of a history that was lost when
// etcd was restored from a backup. Its output must not be taken for that of the attempt that begins, even if that prints nothing.
// The renamed files expire as they would have.
//
// If the process ends in the middle, the next call renames the remaining files to the same name, so that all files of the earlier
// attempt stay together.
func (s *Spool) keepFormer(log string) {
	if len(formerRenames(log)) == 0 {
		return
	}

	s.mu.Lock() // the packer must not replace the log meanwhile
	defer s.mu.Unlock()

	for _, r := range formerRenames(log) {
		if err := os.Rename(r.from, r.to); err != nil {
			s.log.Warn("cannot rename the output of an earlier attempt", zap.String("path", r.from), zap.Error(err))
			continue
		}
		s.log.Info("an earlier attempt has this number, so its output was renamed", zap.String("path", r.to))
	}
}

// formerOrder is the order in which keepFormer renames files. It has all of fileEndings but endTemp, which the packer removes.
var formerOrder = []string{endResponse, endRaw, endKeep, endTimes, endMail, endPacked, endLog}

type rename struct{ from, to string }

// formerRenames returns what keepFormer does. The new name has the time of the file that is renamed last. So it is the same after an
// interruption.
func formerRenames(log string) (list []rename) {
	base := strings.TrimSuffix(log, endLog)

	var at time.Time
	for _, end := range formerOrder {
		if info, err := os.Lstat(base + end); err == nil {
			list, at = append(list, rename{from: base + end}), info.ModTime()
		}
	}

	// A file is never replaced. Only two attempts that ended in the same nanosecond need another name.
	for {
		former := base + endFormer + at.UTC().Format("20060102T150405.000000000Z")
		taken := false
		for i := range list {
			list[i].to = former + strings.TrimPrefix(list[i].from, base)
			taken = taken || unix.Access(list[i].to, unix.F_OK) == nil
		}
		if !taken {
			return list
		}
		at = at.Add(time.Nanosecond)
	}
}

// buildOutput returns an output that is not active yet.
func (s *Spool) buildOutput(path string, wants task.Output) *Output {
	if s.cfg.MayRepeat == nil || s.cfg.MayRepeat() {
		s.keepFormer(path)
	}

	o := &Output{spool: s, path: path, wants: wants, limit: s.cfg.Limit, times: times{path: timesOf(path)}}
	if wants.Limit > 0 {
		o.limit = min(o.limit, int64(wants.Limit))
	}

	return o
}

// MatchLines passes all lines that are printed to a matcher, each stream separately. It must be called before anything
// is read.
func (o *Output) MatchLines(m LineMatcher) {
	o.matcher = m
	o.lines = [...]lineSplitter{{matcher: m}, {matcher: m}, {matcher: m}}
}

// HideValues replaces values of secrets in the stored output. A LineMatcher receives the original lines. HideValues must be called
// before anything is read.
func (o *Output) HideValues(m *mask.Masker) {
	if m.IsEmpty() {
		return
	}

	for from := range stream(len(o.lines)) {
		o.masks = append(o.masks, m.Writer(maskedStream{o, from}))
	}
}

// maskedStream receives what one stream has printed, without the values of secrets.
type maskedStream struct {
	to   *Output
	from stream
}

func (m maskedStream) Write(b []byte) (int, error) {
	m.to.storeBytes(b, m.from)
	return len(b), nil
}

// EndStreams passes on the held back ends of the streams: last lines without a line break, and bytes that might have been the
// beginning of the value of a secret. It is called after the last read.
func (o *Output) EndStreams() {
	for i := range o.lines {
		o.lines[i].flushLine()
	}
	for _, m := range o.masks {
		_ = m.Close() // a maskedStream has no errors
	}
}

// Summary describes the output in the record of its attempt.
type Summary struct {
	Bytes     int64  // number of bytes printed, stored or not, after values of secrets were replaced
	Truncated bool   // not all output is stored
	Tail      []byte // the end of what was printed, up to 4 KiB; may not be valid UTF-8
	Err       error  // why output was not stored; nil: it was, up to the limit
}

// Summary returns the summary. It is called when nothing is read any more.
func (o *Output) Summary() Summary {
	return Summary{Bytes: o.bytes, Truncated: o.truncated, Tail: o.last, Err: o.broken}
}

// addOutput processes bytes that one stream has printed. It returns without an error in any case: a failure is kept in
// o.broken, and the attempt must not notice it.
func (o *Output) addOutput(b []byte, from stream) {
	o.lines[from].addBytes(b) // without mu, because matching may take long

	if o.masks == nil {
		o.storeBytes(b, from)
		return
	}

	// A maskedStream has no errors. Followers must not wait for more output to see this one.
	_, _ = o.masks[from].Write(b)
	_ = o.masks[from].Flush()
}

// storeBytes stores output of one stream, up to the limit.
func (o *Output) storeBytes(b []byte, from stream) {
	now := time.Now()

	o.mu.Lock()
	defer o.mu.Unlock()

	o.bytes += int64(len(b))

	if o.masks == nil || !o.masks[from].IsUnsure() {
		o.keepTail(b)
	}

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

// keepsNothing reports whether no further output is stored.
func (o *Output) keepsNothing() bool { return o.truncated || o.broken != nil }

// appendBytes appends to the file and returns the number of bytes written. After a failure, such as a full disk, it
// writes nothing more, because output with holes would be misleading. The caller holds mu.
func (o *Output) appendBytes(b []byte) int64 {
	if o.broken != nil {
		return 0
	}
	if len(b) == 0 {
		return 0
	}
	if o.isResponse && !o.spool.takeShare(int64(len(b))) {
		o.broken, o.truncated = errShareUsed, true
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
	if o.followed.Load() { // Watch sets it before the follower reads, so no write is missed
		o.spool.notifyWritten(o.path)
	}

	if err != nil {
		o.broken = err
		o.setBroken()
	}

	return int64(n)
}

// setBroken counts and logs a failure and requests a sweep, which may free disk space for other attempts.
func (o *Output) setBroken() {
	o.truncated = true
	o.spool.failures.Inc()
	o.spool.sweep.Send()
	o.spool.log.Warn("output is not kept", zap.String("path", o.path), zap.Error(o.broken))
}

// createFile creates a file, which must not exist, and its directories. It retries, because a sweep may remove the empty
// directories at the same time.
func createFile(path string) (*os.File, error) {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := os.OpenFile(path, flags, 0o600)
	for try := 0; errors.Is(err, fs.ErrNotExist) && try < 5; try++ {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil || errors.Is(err, fs.ErrNotExist) {
			f, err = os.OpenFile(path, flags, 0o600)
		}
	}

	return f, err
}

// keepTail updates the end of the output in memory, which includes output that is not stored.
func (o *Output) keepTail(b []byte) {
	if len(b) > tailMemory {
		b = b[len(b)-tailMemory:]
	}

	if len(o.last)+len(b) > tailMemory {
		o.last = append(o.last[:0], o.last[max(0, len(o.last)-(tailMemory-len(b))):]...)
	}

	o.last = append(o.last, b...)
}

// Close ends the output. No pipe may be read into it any more. The attempt is not active afterwards, and the output may
// be compressed and removed.
func (o *Output) Close() {
	o.mu.Lock()
	disk := o.times.closeIndex(o.file)

	if o.file != nil {
		if err := o.file.Close(); err != nil && o.broken == nil {
			o.broken = err
			o.setBroken()
		}

		if err := o.writeMarkers(); err != nil {
			o.spool.log.Warn("cannot store the retention of output", zap.String("path", o.path), zap.Error(err))
		}
	}

	if o.null != nil {
		o.null.Close()
	}

	size := o.size
	o.mu.Unlock()

	// Only now may a sweep see the output, because its marker files are complete.
	o.spool.retireOutput(o.path, disk+onDisk(size))
	if o.isResponse {
		o.spool.responses.Add(onDisk(size) - size)
	}

	if size > blockSize && !o.wants.Raw() {
		o.spool.toPack(o.path)
	}
}

// writeMarkers creates the marker files that tell later sweeps how long to keep the output, whether to compress it, and
// whether it is a response. The sweeps may run in another process, without the task.
func (o *Output) writeMarkers() error {
	var errs []error
	if o.isResponse {
		errs = append(errs, os.WriteFile(responseOf(o.path), nil, 0o600))
	}

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
// bytes long. It cuts before a whole character.
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

// maxLineBytes is the number of bytes of a line that a LineMatcher receives at most.
const maxLineBytes = 64 << 10

// LineMatcher receives the lines of an output. Its methods must be safe for concurrent use, because both streams of an
// attempt may call them at the same time.
type LineMatcher interface {
	// MatchLine receives a line without its line break, cut to 64 KiB. It must not keep the slice.
	MatchLine(line []byte)
	// Settled reports whether further lines cannot change the result. After that, MatchLine may not be called any more.
	Settled() bool
}

// lineSplitter splits a stream into lines for a matcher. It stores no more than the beginning of one line. Its
// zero value does nothing.
type lineSplitter struct {
	matcher LineMatcher // nil: none
	part    []byte      // the beginning of an incomplete line
}

// addBytes processes the next bytes of the stream.
func (l *lineSplitter) addBytes(b []byte) {
	if l.matcher == nil || l.matcher.Settled() {
		return
	}

	for len(b) > 0 {
		line, rest, ended := bytes.Cut(b, []byte{'\n'})
		b = rest

		if len(l.part) > 0 || !ended {
			l.part = append(l.part, line[:min(len(line), maxLineBytes-len(l.part))]...)
			line = l.part
		}

		if !ended && len(l.part) > 0 {
			return
		}

		l.matcher.MatchLine(line[:min(len(line), maxLineBytes)])
		l.part = l.part[:0]
	}
}

// flushLine passes a last line without a line break to the matcher.
func (l *lineSplitter) flushLine() {
	if len(l.part) > 0 {
		l.matcher.MatchLine(l.part)
		l.part = nil
	}
}

// Responses of HTTP actions may use 1/responseShare of the spool. Requests can be much more numerous than processes, and
// would displace their output.
const responseShare = 4

// errShareUsed means that the responses use their share of the spool. A sweep removes the oldest of them.
var errShareUsed = errors.New("the stored responses of HTTP actions use their share of the spool")

// NewResponse begins the output of an HTTP action, which its response is. It is like NewOutput, but what is stored counts
// towards the share of responses, and it is written with Write instead of from pipes.
func (s *Spool) NewResponse(path string, wants task.Output) *Output {
	o := s.buildOutput(path, wants)
	o.isResponse = true
	s.activateOutput(o)

	return o
}

// Write adds a part of a response. It never fails; see Summary for what was stored.
func (o *Output) Write(b []byte) (int, error) {
	o.addOutput(b, mergedStream)
	return len(b), nil
}

// takeShare reports whether responses may use more bytes of disk space. If they may not, it requests a sweep.
func (s *Spool) takeShare(bytes int64) bool {
	if s.responses.Add(bytes) <= s.cfg.Total/responseShare {
		return true
	}

	s.responses.Add(-bytes)
	s.sweep.Send()

	return false
}

// shareOf returns the disk space of the responses among the outputs that have ended, and how much of it a sweep leaves.
func (s *Spool) shareOf(files []spooled) (used, goal int64) {
	for _, f := range files {
		if f.isResponse {
			used += f.size
		}
	}

	goal = used
	if most := s.cfg.Total / responseShare; used > most/10*9 {
		goal = most / 10 * 9
	}

	return used, goal
}

// activeResponses returns the size of the responses that are being written.
func (s *Spool) activeResponses() int64 {
	s.mu.Lock()
	var list []*Output
	for _, o := range s.active {
		if o.isResponse {
			list = append(list, o)
		}
	}
	s.mu.Unlock()

	// An output is locked before the spool, so not while mu is held.
	sum := int64(0)
	for _, o := range list {
		o.mu.Lock()
		sum += o.size
		o.mu.Unlock()
	}

	return sum
}
