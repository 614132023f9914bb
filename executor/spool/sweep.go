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

// What belongs to an output, by the ends of the names.
const (
	endLog    = ".log"         // what was printed, as it was
	endPacked = ".log.zst"     // the same, compressed
	endTimes  = ".times"       // see times
	endKeep   = ".keep"        // empty: it is kept until its modification time, if the spool keeps it so long
	endRaw    = ".raw"         // empty: it is not compressed, as its task wants, or because that saves nothing
	endTemp   = ".log.zst.tmp" // what becomes the compressed one
)

var fileEndings = []string{endTemp, endPacked, endLog, endTimes, endKeep, endRaw}

func packedPath(log string) string { return strings.TrimSuffix(log, endLog) + endPacked }
func timesOf(log string) string    { return strings.TrimSuffix(log, endLog) + endTimes }
func keepOf(log string) string     { return strings.TrimSuffix(log, endLog) + endKeep }
func rawOf(log string) string      { return strings.TrimSuffix(log, endLog) + endRaw }

// outputOf is the path of the output that a file of the spool belongs to.
func outputOf(path string) (log, end string, ok bool) {
	for _, end := range fileEndings {
		if base, is := strings.CutSuffix(path, end); is {
			return base + endLog, end, true
		}
	}

	return "", "", false
}

// onDisk is what a file takes on disk.
func onDisk(size int64) int64 { return (size + blockSize - 1) / blockSize * blockSize }

// Run removes old output, and compresses what ended, until ctx ends.
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

		// Not more often than this: a sweep reads the whole spool.
		if !clock.Sleep(ctx, sweepPause) {
			return nil
		}
	}
}

// spooled is an output of the spool with all its files.
type spooled struct {
	path  string // of its log, which need not be there
	log   int64  // bytes of it
	size  int64  // of all on disk
	at    time.Time
	until time.Time // zero: by its age
	raw   bool
}

// Sweep removes what is older than MaxAge at now, or than its task wants, and, oldest
// first, what exceeds Total, down to nine tenths of it.
func (s *Spool) Sweep(ctx context.Context, now time.Time) {
	files, used := s.endedOutputs(ctx)
	slices.SortFunc(files, func(a, b spooled) int { return a.at.Compare(b.at) })

	goal := used
	if used > s.cfg.Total {
		goal = s.cfg.Total / 10 * 9
	}

	removed := 0
	for _, f := range files {
		if ctx.Err() != nil {
			break
		}

		if used <= goal && !s.isOutdated(f, now) {
			if f.log > blockSize && !f.raw {
				s.toPack(f.path) // its daemon had no time for that
			}
			continue
		}

		if s.removeOutput(f.path) {
			used -= f.size
			removed++
		}
	}

	s.used.Store(used)
	s.removed.Add(float64(removed))

	if removed > 0 {
		s.log.Info("removed old output", zap.Int("files", removed), zap.Int64("bytes", used))
	}
}

// isOutdated reports whether an output is to be removed for its age. One of which only
// what is beside it was found may have been compressed meanwhile: that is seen to at the
// next sweep.
func (s *Spool) isOutdated(f spooled, now time.Time) bool {
	if f.at.IsZero() {
		if _, err := os.Lstat(packedPath(f.path)); err == nil {
			return false
		}
	}

	return now.Sub(f.at) > s.cfg.MaxAge || !f.until.IsZero() && now.After(f.until)
}

// endedOutputs lists the outputs of attempts that ended, and what they take on disk.
func (s *Spool) endedOutputs(ctx context.Context) (list []spooled, used int64) {
	err := filepath.WalkDir(s.root, func(path string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return fs.SkipAll
		}

		log, end, ok := outputOf(path)
		if err != nil || d.IsDir() || !ok {
			return nil // what cannot be read today is read at the next sweep
		}

		info, err := d.Info()
		if err != nil {
			return nil
		}

		if n := len(list); n == 0 || list[n-1].path != log { // an output's files come one after the other
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
		case endTimes, endTemp:
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

// removeOutput removes an output, and its directories if they are empty now.
func (s *Spool) removeOutput(log string) bool {
	s.mu.Lock() // an attempt of that name must not begin in between
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
