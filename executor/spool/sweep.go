package spool

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
)

// The files of an output differ in the ends of their names.
const (
	endLog    = ".log"         // the output as it was printed
	endPacked = ".log.zst"     // the same, compressed
	endTimes  = ".times"       // see times
	endKeep   = ".keep"        // an empty file: the output is kept until its modification time, but no longer than MaxAge
	endRaw    = ".raw"         // an empty file: the output is not compressed, by its task or because that saves nothing
	endTemp   = ".log.zst.tmp" // a compressed output that is being written
	// endResponse is the end of an empty file: the output is the response of an HTTP action.
	endResponse = ".http"
	// endMail is the end of an empty file: a mail with the output was sent, or was about to be.
	endMail = ".mail"
	// endFormer, and a time, come before the end of the files of an earlier attempt with the same number (keepFormer). It sorts before
	// all other ends, because endedOutputs finds the files of an output one after the other.
	endFormer = ".former-"
)

// fileEndings contains each ending before any other that is its suffix.
var fileEndings = []string{endTemp, endPacked, endLog, endTimes, endKeep, endRaw, endResponse, endMail}

// packedPath, timesOf, keepOf and rawOf return the paths of the other files of an output, given that of its log.
func packedPath(log string) string { return strings.TrimSuffix(log, endLog) + endPacked }
func timesOf(log string) string    { return strings.TrimSuffix(log, endLog) + endTimes }
func keepOf(log string) string     { return strings.TrimSuffix(log, endLog) + endKeep }
func rawOf(log string) string      { return strings.TrimSuffix(log, endLog) + endRaw }

// responseOf is like rawOf for the marker of responses.
func responseOf(log string) string { return strings.TrimSuffix(log, endLog) + endResponse }

// outputOf returns the path of the output to which a file of the spool belongs, and the end of the file's name.
func outputOf(path string) (log, end string, ok bool) {
	for _, end := range fileEndings {
		if base, is := strings.CutSuffix(path, end); is {
			return base + endLog, end, true
		}
	}

	return "", "", false
}

// onDisk returns the disk space of a file in bytes.
func onDisk(size int64) int64 { return (size + blockSize - 1) / blockSize * blockSize }

// Run removes old outputs and compresses those of attempts that have ended, until ctx ends. It always returns nil.
func (s *Spool) Run(ctx context.Context) error {
	var packer sync.WaitGroup
	packer.Go(func() { s.runPacker(ctx) })
	defer packer.Wait()

	t := time.NewTicker(sweepEvery)
	defer t.Stop()

	for {
		s.Sweep(ctx, time.Now())

		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			continue
		case <-s.sweep:
		}

		// A sweep reads the whole spool, so wait before the next one.
		if !clock.Sleep(ctx, sweepPause) {
			return nil
		}
	}
}

// spooled is an output that has ended, with all its files.
type spooled struct {
	path  string    // the path of its log, which may not exist
	log   int64     // size of the log in bytes; 0: it does not exist
	size  int64     // disk space of all its files in bytes
	at    time.Time // when it was last written
	until time.Time // when it expires; zero: MaxAge after at
	raw   bool      // it must not be compressed
	// isResponse is set for the response of an HTTP action.
	isResponse bool
}

// Sweep removes outputs that have expired at now. If the spool uses more than Total, it also removes the oldest outputs
// until nine tenths of Total are left, so that not every further output causes a sweep. The same applies to responses
// and their share.
func (s *Spool) Sweep(ctx context.Context, now time.Time) {
	files, used := s.endedOutputs(ctx)
	slices.SortFunc(files, func(a, b spooled) int { return a.at.Compare(b.at) })

	goal := used
	if used > s.cfg.Total {
		goal = s.cfg.Total / 10 * 9
	}

	responses, shareGoal := s.shareOf(files)
	removed := 0
	for _, f := range files {
		if ctx.Err() != nil {
			break
		}

		if used <= goal && !(f.isResponse && responses > shareGoal) && !s.isOutdated(f, now) {
			if f.log > blockSize && !f.raw {
				s.toPack(f.path) // the queue was full when it ended, or its daemon died
			}
			continue
		}

		if s.removeOutput(f.path) {
			used -= f.size
			removed++
			if f.isResponse {
				responses -= f.size
			}
		}
	}

	s.used.Store(used)
	s.responses.Store(responses + s.activeResponses())
	s.removed.Add(float64(removed))

	if removed > 0 {
		s.log.Info("removed old output", zap.Int("files", removed), zap.Int64("bytes", used))
	}
}

// isOutdated reports whether an output has expired. If the listing contains only its marker files, the output may have
// been replaced by its compressed file meanwhile; the next sweep decides.
func (s *Spool) isOutdated(f spooled, now time.Time) bool {
	if f.at.IsZero() {
		if _, err := os.Lstat(packedPath(f.path)); err == nil {
			return false
		}
	}

	return now.Sub(f.at) > s.cfg.MaxAge || !f.until.IsZero() && now.After(f.until)
}

// endedOutputs returns the outputs of attempts that have ended, and their disk space in bytes.
func (s *Spool) endedOutputs(ctx context.Context) (list []spooled, used int64) {
	err := filepath.WalkDir(s.root, func(path string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return fs.SkipAll
		}

		log, end, ok := outputOf(path)
		if err != nil || d.IsDir() || !ok {
			return nil // the next sweep tries again
		}

		info, err := d.Info()
		if err != nil {
			return nil
		}

		if n := len(list); n == 0 || list[n-1].path != log { // WalkDir sorts names, so an output's files follow each other
			if s.isActive(log) {
				return nil
			}
			list = append(list, spooled{path: log})
		}

		f := &list[len(list)-1]
		f.size += onDisk(info.Size())
		used += onDisk(info.Size())

		switch end {
		case endLog:
			f.log = info.Size()
			f.at = info.ModTime()
		case endPacked:
			f.at = info.ModTime()
		case endKeep:
			f.until = info.ModTime()
		case endRaw:
			f.raw = true
		case endResponse:
			f.isResponse = true
		case endTimes, endTemp, endMail:
			if f.at.IsZero() {
				f.at = info.ModTime()
			}
		}

		return nil
	})

	if err != nil {
		s.log.Warn("cannot read the spool", zap.Error(err))
	}

	return list, used
}

// removeOutput removes the files of an output, and its directories if they are empty. It returns false if the attempt is
// active, or after an error.
func (s *Spool) removeOutput(log string) bool {
	s.mu.Lock() // no attempt with this path may begin between the check and the removal
	defer s.mu.Unlock()

	if _, ok := s.active[log]; ok {
		return false
	}

	base := strings.TrimSuffix(log, endLog)

	for _, end := range fileEndings {
		if err := os.Remove(base + end); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("cannot remove old output", zap.String("path", base+end), zap.Error(err))
			return false
		}
	}

	for dir := filepath.Dir(log); dir != s.root && os.Remove(dir) == nil; dir = filepath.Dir(dir) {
	}

	return true
}
