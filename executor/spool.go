package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/task"
)

// The spool's defaults.
const (
	DefaultOutputLimit = 10 << 20
	DefaultSpoolTotal  = 1 << 30
	DefaultSpoolAge    = 7 * 24 * time.Hour
)

const (
	block      = 4 << 10 // what a small file takes on disk
	spoolLook  = 30 * time.Second
	spoolSweep = time.Hour
)

// SpoolConfig says where output is kept, how much of it and for how long.
type SpoolConfig struct {
	Dir    string        // the data directory; the spool is below it
	Limit  int64         // bytes kept of one attempt; 0 is DefaultOutputLimit
	Total  int64         // bytes of disk kept of all that ended; 0 is DefaultSpoolTotal
	MaxAge time.Duration // 0 is DefaultSpoolAge

	Logger     *zap.Logger           // nil: none
	Registerer prometheus.Registerer // nil: none
}

// Spool keeps what attempts print, in one file each:
//
//	<dir>/spool/<namespace>/<task>/<run>.<attempt>.log
//
// A file appears with the first byte of output. Of each attempt the first Limit
// bytes are kept, then a line says that the rest is not. Run removes what is too
// old, and the oldest of what is too much, but never the output of an attempt
// that has not ended. A disk that is full costs output, not attempts.
type Spool struct {
	cfg  SpoolConfig
	root string
	log  *zap.Logger
	look chan struct{} // one slot: there may be too much

	used atomic.Int64 // bytes of disk, as far as known

	mu        sync.Mutex
	active    map[string]*output // by path
	followers map[string][]chan struct{}

	dropped  prometheus.Counter
	failures prometheus.Counter
	removed  prometheus.Counter
}

// NewSpool makes a spool. It touches no disk.
func NewSpool(cfg SpoolConfig) *Spool {
	s := &Spool{
		cfg: cfg, root: filepath.Join(cfg.Dir, "spool"), log: orNop(cfg.Logger).Named("spool"),
		look: make(chan struct{}, 1), active: map[string]*output{}, followers: map[string][]chan struct{}{},
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_spool_dropped_bytes_total", Help: "Output that was not kept: beyond the limit, or the disk refused it."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_spool_failures_total", Help: "Attempts whose output could not be written to disk."}),
		removed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_spool_removed_files_total", Help: "Outputs removed because of their age or the spool's size."}),
	}
	s.cfg.Limit = orDefault(cfg.Limit, DefaultOutputLimit)
	s.cfg.Total = orDefault(cfg.Total, DefaultSpoolTotal)
	s.cfg.MaxAge = orDefault(cfg.MaxAge, DefaultSpoolAge)
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(s.dropped, s.failures, s.removed, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "carillon_spool_bytes", Help: "Disk that kept output takes."}, func() float64 { return float64(s.used.Load()) }))
	}
	return s
}

// isRun reports whether a run's id is words of letters, digits, "_" and "-" with
// single dots between, and begins with a letter or a digit.
func isRun(id string) bool {
	last := byte('.')
	for i := range len(id) {
		c := id[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case (c == '_' || c == '-') && i > 0:
		case c == '.' && last != '.':
		default:
			return false
		}
		last = c
	}
	return last != '.' && len(id) <= 200
}

// path is where the output of an attempt is kept. Records come from etcd, where
// anybody may have written them, so names are checked once more.
func (s *Spool) path(namespace, name, run string, attempt int) (string, error) {
	if err := errors.Join(task.CheckName("namespace", namespace), task.CheckName("task", name)); err != nil {
		return "", err
	}
	if !isRun(run) || attempt < 0 {
		return "", task.Invalid(task.CodeBadName, "run", "%s is not a run's id", task.Quote(run))
	}
	return filepath.Join(s.root, namespace, name, run+"."+strconv.Itoa(attempt)+".log"), nil
}

// Open opens what an attempt has printed so far. os.ErrNotExist if it printed
// nothing (see the run's output_bytes) or if it is gone; of an attempt that has
// not ended and printed nothing yet, an empty output.
func (s *Spool) Open(namespace, name, run string, attempt int) (io.ReadSeekCloser, error) {
	path, err := s.path(namespace, name, run, attempt)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && s.isActive(path) {
		return empty{strings.NewReader("")}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open output: %w", err)
	}
	return f, nil
}

type empty struct{ *strings.Reader }

func (empty) Close() error { return nil }

// Active reports whether an attempt runs here and may still print more.
func (s *Spool) Active(namespace, name, run string, attempt int) bool {
	path, err := s.path(namespace, name, run, attempt)
	return err == nil && s.isActive(path)
}

// Attempts lists the attempts of a run of which there is output here, in order.
func (s *Spool) Attempts(namespace, name, run string) ([]int, error) {
	path, err := s.path(namespace, name, run, 0)
	if err != nil {
		return nil, err
	}
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list outputs: %w", err)
	}
	attempts := []int{}
	for _, f := range files {
		rest, ok := strings.CutPrefix(f.Name(), run+".")
		if n, err := strconv.Atoi(strings.TrimSuffix(rest, ".log")); ok && err == nil {
			attempts = append(attempts, n)
		}
	}
	slices.Sort(attempts)
	return attempts, nil
}

func (s *Spool) isActive(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.active[path]
	return ok
}

func onDisk(size int64) int64 { return (size + block - 1) / block * block }

// Run removes old output until ctx ends.
func (s *Spool) Run(ctx context.Context) error {
	t := time.NewTicker(spoolSweep)
	defer t.Stop()
	for {
		s.Sweep(ctx, time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			continue
		case <-s.look:
		}
		select { // not more often than this: a sweep reads the whole spool
		case <-ctx.Done():
			return nil
		case <-time.After(spoolLook):
		}
	}
}

type spooled struct {
	path string
	size int64
	at   time.Time
}

// Sweep removes what is older than MaxAge at now and, oldest first, what exceeds
// Total, down to nine tenths of it.
func (s *Spool) Sweep(ctx context.Context, now time.Time) {
	files, used := s.ended(ctx)
	slices.SortFunc(files, func(a, b spooled) int { return a.at.Compare(b.at) })
	goal := used
	if used > s.cfg.Total {
		goal = s.cfg.Total / 10 * 9
	}
	removed := 0
	for _, f := range files {
		if ctx.Err() != nil || (used <= goal && now.Sub(f.at) <= s.cfg.MaxAge) {
			break
		}
		if s.remove(f.path) {
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

// ended lists the outputs of attempts that ended, and removes empty directories.
func (s *Spool) ended(ctx context.Context) (files []spooled, used int64) {
	err := filepath.WalkDir(s.root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return fs.SkipAll
		case err != nil || d.IsDir() || !strings.HasSuffix(path, ".log") || s.isActive(path):
			return nil // what cannot be read today is read at the next sweep
		}
		if info, err := d.Info(); err == nil {
			f := spooled{path: path, size: onDisk(info.Size()), at: info.ModTime()}
			files, used = append(files, f), used+f.size
		}
		return nil
	})
	if err != nil {
		s.log.Warn("cannot read the spool", zap.Error(err))
	}
	return files, used
}

// remove removes an output, and its directories if they are empty now.
func (s *Spool) remove(path string) bool {
	s.mu.Lock() // an attempt of that name must not begin in between
	defer s.mu.Unlock()
	if _, ok := s.active[path]; ok {
		return false
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("cannot remove old output", zap.String("path", path), zap.Error(err))
		return false
	}
	for dir := filepath.Dir(path); dir != s.root && os.Remove(dir) == nil; dir = filepath.Dir(dir) {
	}
	return true
}
