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

// Defaults of Config.
const (
	DefaultLimit  = 10 << 20 // bytes
	DefaultTotal  = 1 << 30  // bytes
	DefaultMaxAge = 7 * 24 * time.Hour
)

const (
	blockSize  = 4 << 10          // the disk space in bytes that a small file uses; sizes are rounded up to it
	sweepPause = 30 * time.Second // minimum time between sweeps, because a sweep reads the whole spool
	sweepEvery = time.Hour        // maximum time between sweeps
)

// Config configures a Spool.
type Config struct {
	Dir    string        // the data directory; the spool is below it
	Limit  int64         // maximum size in bytes of one attempt's output; 0 is DefaultLimit
	Total  int64         // maximum disk space in bytes of all outputs that have ended; 0 is DefaultTotal
	MaxAge time.Duration // how long outputs are kept after their end; 0 is DefaultMaxAge

	Uncompressed bool // outputs are not compressed

	// MayRepeat reports whether a new attempt may have the number of an earlier one, because etcd was restored. nil: it may.
	MayRepeat func() bool

	Logger     *zap.Logger           // nil: none
	Registerer prometheus.Registerer // nil: none
}

// Spool is the spool of one node; see the package comment. A file is created with the first byte of output. The first
// Limit bytes of each output are stored, or fewer if its task has a lower limit. Run compresses and removes
// outputs; everything else works without it. The methods may be called from any goroutine.
type Spool struct {
	cfg   Config
	root  string // <Dir>/spool
	log   *zap.Logger
	sweep wake.Signal // set when outputs may use too much disk space
	packs chan string // paths of outputs to compress

	used atomic.Int64 // disk space in bytes, as of the last sweep, with later changes added
	// responses is the part of it that responses use, with those that are being written.
	responses atomic.Int64

	mu        sync.Mutex               // held while an output is removed or replaced, so that none becomes active meanwhile
	active    map[string]*Output       // outputs of running attempts, by path
	followers map[string][]wake.Signal // callers of Watch, by path

	dropped  prometheus.Counter
	failures prometheus.Counter
	removed  prometheus.Counter
}

// New returns a spool. It does no I/O.
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

// isRunID reports whether a run's id consists of words of letters, digits, "_" and "-" with
// single dots between them, begins with a letter or a digit, and has at most 200 characters. Such an id is safe as a
// part of a file name.
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

// Path returns the path of an attempt's output. The names come from records in etcd,
// which other programs may have written, so Path validates them. The result is always below the spool.
func (s *Spool) Path(namespace, name, run string, attempt int) (string, error) {
	if err := errors.Join(task.CheckName("namespace", namespace), task.CheckName("task", name)); err != nil {
		return "", err
	}
	if !isRunID(run) || attempt < 0 {
		return "", task.Invalid(task.CodeBadName, "run", "%s is not the ID of a run", task.Quote(run))
	}

	// The names have been checked, so there is nothing to clean, as filepath.Join does.
	const sep = string(filepath.Separator)

	return s.root + sep + namespace + sep + name + sep + run + "." + strconv.Itoa(attempt) + endLog, nil
}

// Open opens the output of an attempt as far as it has been written. It returns an error that wraps os.ErrNotExist if
// the attempt printed nothing (see the run's output_bytes) or if its output was removed. For an attempt that
// is running and has printed nothing yet, it returns an empty output.
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

// empty is an output without a file.
type empty struct{ *strings.Reader }

func (empty) Close() error { return nil }

// Active reports whether an attempt is running here and may print more.
func (s *Spool) Active(namespace, name, run string, attempt int) bool {
	path, err := s.Path(namespace, name, run, attempt)
	return err == nil && s.isActive(path)
}

func (s *Spool) isActive(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	_, ok := s.active[path]
	return ok
}

// Watch returns a channel that receives when there may be more to read of an attempt's output: after the attempt has
// begun, written or ended. The channel has one slot, so a slow reader delays
// nothing, and misses nothing if it reads everything each time. The attempt may not have begun here yet, or may
// have ended. The caller must call stop, once.
//
// A caller that calls Open and Active after Watch misses nothing: the channel reports every later
// change. Once Active returns false for an attempt that has begun, its output is complete.
func (s *Spool) Watch(namespace, name, run string, attempt int) (woken <-chan struct{}, stop func(), err error) {
	path, err := s.Path(namespace, name, run, attempt)
	if err != nil {
		return nil, nil, err
	}

	c := wake.NewSignal()
	s.mu.Lock()
	defer s.mu.Unlock()

	s.followers[path] = append(s.followers[path], c)
	if o := s.active[path]; o != nil {
		o.followed.Store(true)
	}

	return c, func() { s.removeFollower(path, c) }, nil
}

// removeFollower ends what Watch began.
func (s *Spool) removeFollower(path string, c wake.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()

	left := slices.DeleteFunc(s.followers[path], func(f wake.Signal) bool { return f == c })
	if len(left) > 0 {
		s.followers[path] = left
		return
	}

	delete(s.followers, path)

	if o := s.active[path]; o != nil {
		o.followed.Store(false)
	}
}

// activateOutput registers the output of an attempt that may write from now on, and wakes its followers.
func (s *Spool) activateOutput(o *Output) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.active[o.path] = o
	o.followed.Store(len(s.followers[o.path]) > 0)
	s.wakeFollowers(o.path)
}

// retireOutput ends what activateOutput began, and wakes the followers. size is the size of the file in bytes. It
// requests a sweep if the spool is now too large.
func (s *Spool) retireOutput(path string, size int64) {
	s.mu.Lock()
	delete(s.active, path)
	s.wakeFollowers(path)
	s.mu.Unlock()

	if s.used.Add(onDisk(size)) > s.cfg.Total {
		s.sweep.Send()
	}
}

// notifyWritten wakes the followers of an attempt.
func (s *Spool) notifyWritten(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeFollowers(path)
}

// wakeFollowers wakes the followers of an attempt. The caller holds mu.
func (s *Spool) wakeFollowers(path string) {
	for _, c := range s.followers[path] {
		c.Send()
	}
}
