package executor

import (
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

	Uncompressed bool // outputs stay as they were written

	Logger     *zap.Logger           // nil: none
	Registerer prometheus.Registerer // nil: none
}

// Spool keeps what attempts print, in one file each:
//
//	<dir>/spool/<namespace>/<task>/<run>.<attempt>.log
//
// A file appears with the first byte of output. Of each attempt the first Limit
// bytes are kept, or fewer if its task wants that, then a line says that the rest is
// not. Beside it may stand when its parts came (see times). Run compresses what has
// ended (see pack), removes what is too old, and the oldest of what is too much, but
// never the output of an attempt that has not ended. A disk that is full costs
// output, not attempts.
type Spool struct {
	cfg   SpoolConfig
	root  string
	log   *zap.Logger
	look  chan struct{} // one slot: there may be too much
	packs chan string   // outputs to be compressed

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
		look: make(chan struct{}, 1), packs: make(chan string, packQueue), active: map[string]*output{}, followers: map[string][]chan struct{}{},
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
	return filepath.Join(s.root, namespace, name, run+"."+strconv.Itoa(attempt)+endLog), nil
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
	switch {
	case err == nil:
		return f, nil
	case !errors.Is(err, fs.ErrNotExist):
	case s.isActive(path):
		return empty{strings.NewReader("")}, nil
	default:
		var p *packedReader
		if p, err = openPacked(packed(path)); err == nil {
			return p, nil
		}
	}
	return nil, fmt.Errorf("open output: %w", err)
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
