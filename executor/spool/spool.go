package spool

import (
	"cmp"
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
	"github.com/carillonhq/carillon/pkg/wake"
)

// The spool's defaults.
const (
	DefaultLimit  = 10 << 20
	DefaultTotal  = 1 << 30
	DefaultMaxAge = 7 * 24 * time.Hour
)

const (
	blockSize  = 4 << 10 // what a small file takes on disk
	sweepPause = 30 * time.Second
	sweepEvery = time.Hour
)

// Config says where output is kept, how much of it and for how long.
type Config struct {
	Dir    string        // the data directory; the spool is below it
	Limit  int64         // bytes kept of one attempt; 0 is DefaultLimit
	Total  int64         // bytes of disk kept of all that ended; 0 is DefaultTotal
	MaxAge time.Duration // 0 is DefaultMaxAge

	Uncompressed bool // outputs stay as they were written

	Logger     *zap.Logger           // nil: none
	Registerer prometheus.Registerer // nil: none
}

// Spool is the spool of one node; see the package comment. A file appears with the first byte of output. Of each
// attempt the first Limit bytes are kept, or fewer if its task wants that. Run must run for outputs to be compressed
// and removed; everything else works without it.
type Spool struct {
	cfg   Config
	root  string
	log   *zap.Logger
	sweep wake.Signal // there may be too much
	packs chan string // outputs to be compressed

	used atomic.Int64 // bytes of disk, as far as known

	mu        sync.Mutex
	active    map[string]*Output // by path
	followers map[string][]wake.Signal

	dropped  prometheus.Counter
	failures prometheus.Counter
	removed  prometheus.Counter
}

// New makes a spool. It touches no disk.
func New(cfg Config) *Spool {
	s := &Spool{
		cfg: cfg, root: filepath.Join(cfg.Dir, "spool"), log: cmp.Or(cfg.Logger, zap.NewNop()).Named("spool"),
		sweep: wake.NewSignal(), packs: make(chan string, packQueue), active: map[string]*Output{}, followers: map[string][]wake.Signal{},
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_spool_dropped_bytes_total", Help: "Bytes of output that were not kept, because of the limit or of a disk error."}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_spool_failures_total", Help: "Attempts whose output could not be written to disk."}),
		removed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_spool_removed_files_total", Help: "Output files that were removed because of their age or of the size limit of the spool."}),
	}
	s.cfg.Limit = cmp.Or(cfg.Limit, DefaultLimit)
	s.cfg.Total = cmp.Or(cfg.Total, DefaultTotal)
	s.cfg.MaxAge = cmp.Or(cfg.MaxAge, DefaultMaxAge)
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(s.dropped, s.failures, s.removed, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "carillon_spool_bytes", Help: "Disk space that stored output uses."}, func() float64 { return float64(s.used.Load()) }))
	}

	return s
}

// isRunID reports whether a run's id is words of letters, digits, "_" and "-" with
// single dots between, and begins with a letter or a digit.
func isRunID(id string) bool {
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

// Path is where the output of an attempt is kept. Records come from etcd, where
// anybody may have written them, so names are checked once more.
func (s *Spool) Path(namespace, name, run string, attempt int) (string, error) {
	if err := errors.Join(task.CheckName("namespace", namespace), task.CheckName("task", name)); err != nil {
		return "", err
	}
	if !isRunID(run) || attempt < 0 {
		return "", task.Invalid(task.CodeBadName, "run", "%s is not a run's id", task.Quote(run))
	}

	return filepath.Join(s.root, namespace, name, run+"."+strconv.Itoa(attempt)+endLog), nil
}

// Open opens what an attempt has printed so far. os.ErrNotExist if it printed
// nothing (see the run's output_bytes) or if it is gone; of an attempt that has
// not ended and printed nothing yet, an empty output.
func (s *Spool) Open(namespace, name, run string, attempt int) (io.ReadSeekCloser, error) {
	path, err := s.Path(namespace, name, run, attempt)
	if err != nil {
		return nil, err
	}

	f, err := os.Open(path)
	switch {
	case err == nil:
		return f, nil
	case !errors.Is(err, fs.ErrNotExist):
	case s.isActive(path):
		return empty{strings.NewReader("")}, nil
	default:
		var p *packedReader
		if p, err = openPacked(packedPath(path)); err == nil {
			return p, nil
		}
	}

	return nil, fmt.Errorf("open output: %w", err)
}

type empty struct{ *strings.Reader }

func (empty) Close() error { return nil }

// Active reports whether an attempt runs here and may still print more.
func (s *Spool) Active(namespace, name, run string, attempt int) bool {
	path, err := s.Path(namespace, name, run, attempt)
	return err == nil && s.isActive(path)
}

// Attempts lists the attempts of a run of which there is output here, in order.
func (s *Spool) Attempts(namespace, name, run string) ([]int, error) {
	path, err := s.Path(namespace, name, run, 0)
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
		rest, _ = strings.CutSuffix(strings.TrimSuffix(rest, ".zst"), endLog)
		if n, err := strconv.Atoi(rest); ok && err == nil {
			attempts = append(attempts, n)
		}
	}

	slices.Sort(attempts)

	return slices.Compact(attempts), nil
}

func (s *Spool) isActive(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	_, ok := s.active[path]
	return ok
}
