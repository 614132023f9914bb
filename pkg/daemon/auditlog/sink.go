package auditlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/syslog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
)

const (
	// sinkPage is how many records a sink reads at a time when it catches up.
	sinkPage = 1000
	// sinkPause is the pause after a failed write to a sink.
	sinkPause = 5 * time.Second
	// sinkSave is the interval at which the position of a sink is written to disk, if it has changed. A crash repeats
	// the records of that time.
	sinkSave = time.Second
)

// target is where a sink writes audit records.
type target interface {
	// writeRecords writes records, each on a line of its own, and returns when they are safe.
	writeRecords(ctx context.Context, lines [][]byte) error
}

// Sink copies all audit records of the cluster to a target. Its position is kept in the data directory, so a
// restart neither repeats nor omits records; after a crash or a failed write some may be repeated.
//
// The position is a revision of etcd and not the id of a record, because ids follow the clocks of the nodes, and a late
// record has an old id. If etcd is restored from a snapshot, its revisions begin again: then the highest id counts.
type Sink struct {
	name   string // of the position's file, and for logs
	dir    string // the data directory
	client *kv.Client
	keys   record.Keys
	epoch  int // of the cluster
	target target
	log    *zap.Logger
	pause  time.Duration // sinkPause, except in tests

	mu    sync.Mutex
	at    position // only the goroutine of Run changes it
	saved position // as it is on disk
}

// position says which records a sink has written.
type position struct {
	Epoch    int    `json:"epoch"`
	Revision int64  `json:"revision"` // all records up to this revision
	ID       string `json:"id"`       // the highest id among them
}

// SinkConfig configures the sinks of a node.
type SinkConfig struct {
	Dir    string // the data directory, for the position
	Client *kv.Client
	Keys   record.Keys
	Epoch  int // of the cluster
	Logger *zap.Logger
}

// NewFileSink returns a sink that appends each record as a line to a file.
func NewFileSink(cfg SinkConfig, path string) *Sink {
	return newSink(cfg, "audit-file", fileTarget(path))
}

// NewSyslogSink returns a sink that sends each record to the host's syslog.
func NewSyslogSink(cfg SinkConfig) *Sink {
	return newSink(cfg, "audit-syslog", &syslogTarget{})
}

func newSink(cfg SinkConfig, name string, to target) *Sink {
	return &Sink{
		name: name, dir: cfg.Dir, client: cfg.Client, keys: cfg.Keys, epoch: cfg.Epoch, target: to,
		log: cfg.Logger.Named("audit").With(zap.String("sink", name)), pause: sinkPause,
	}
}

// Run copies records until ctx ends. A target that fails is tried again, so records wait in etcd meanwhile.
func (s *Sink) Run(ctx context.Context) error {
	s.load()

	var saving sync.WaitGroup
	saving.Go(func() {
		for clock.Sleep(ctx, sinkSave) {
			s.save()
		}
	})
	defer func() {
		saving.Wait()
		s.save() // what was written since
	}()

	prefix, end := kv.Prefix(s.keys.AuditRecords())
	for {
		err := kv.Follow(ctx, s.client, kv.FollowConfig{
			Key: prefix, End: end, PageSize: sinkPage, Background: true, Relist: time.Hour, Name: s.name, Logger: s.log.Named("kv"),
		}, func(b kv.Batch) error { return s.copyBatch(ctx, b) })

		if ctx.Err() != nil {
			return ctx.Err()
		}

		s.log.Error("cannot write audit records; retrying", zap.Error(err))

		if !clock.Sleep(ctx, s.pause) {
			return ctx.Err()
		}
	}
}

// copyBatch writes the records of a batch that were not written before, and moves the position on.
func (s *Sink) copyBatch(ctx context.Context, b kv.Batch) error {
	var lines [][]byte
	highest := s.at.ID

	add := func(e *mvccpb.KeyValue) {
		r := s.keys.DecodeAudit(e)
		if s.isWritten(e, r.ID) {
			return
		}

		line, err := json.Marshal(r)
		if err != nil {
			panic(fmt.Sprintf("auditlog: encode an audit record: %v", err))
		}

		lines, highest = append(lines, line), max(highest, r.ID)
	}

	for _, e := range b.KVs {
		add(e)
	}

	for _, ev := range b.Events {
		if ev.IsCreate() || ev.IsModify() {
			add(ev.Kv)
		}
	}

	if len(lines) > 0 {
		if err := s.target.writeRecords(ctx, lines); err != nil {
			return err
		}
	}

	// The pages of a list are in the order of ids, so only after the last one everything up to a revision is written.
	if b.More {
		return nil
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	s.at = position{Epoch: s.epoch, Revision: max(b.Revision, s.revision()), ID: highest}

	return nil
}

// revision returns the revision up to which everything is written, or 0 if the position is from another history of etcd.
func (s *Sink) revision() int64 {
	if s.at.Epoch != s.epoch {
		return 0
	}
	return s.at.Revision
}

// isWritten reports whether a record was written before.
func (s *Sink) isWritten(e *mvccpb.KeyValue, id string) bool {
	if s.at.Epoch != s.epoch {
		return id <= s.at.ID
	}
	return e.ModRevision <= s.at.Revision
}

func (s *Sink) path() string { return filepath.Join(s.dir, s.name+".json") }

// load reads the position. Without one, the sink begins with the oldest record that etcd has.
func (s *Sink) load() {
	b, err := os.ReadFile(s.path())
	if err == nil {
		err = json.Unmarshal(b, &s.at)
	}

	if err != nil {
		s.at = position{Epoch: s.epoch}
		if !errors.Is(err, os.ErrNotExist) {
			s.log.Error("cannot read the position of the audit sink; repeating all records", zap.Error(err))
		}
	}

	s.saved = s.at
}

// save writes the position to disk if it has changed.
func (s *Sink) save() {
	s.mu.Lock()
	at := s.at
	s.mu.Unlock()

	if at == s.saved {
		return
	}

	b, err := json.Marshal(at)
	if err != nil {
		panic(fmt.Sprintf("auditlog: encode a position: %v", err))
	}

	if err := datadir.WriteSynced(s.path(), append(b, '\n'), 0o600); err != nil {
		s.log.Error("cannot store the position of the audit sink; a restart would repeat records", zap.Error(err))
		return
	}

	s.saved = at
}

// fileTarget is a file with a record on each line. It is opened for each batch, so that it can be moved away at any time.
type fileTarget string

// writeRecords appends lines and syncs the file. After an error the file is as it was, as far as possible.
func (path fileTarget) writeRecords(_ context.Context, lines [][]byte) error {
	f, err := os.OpenFile(string(path), os.O_CREATE|os.O_RDWR|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}

	defer f.Close()

	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", string(path))
	}

	text := append(bytes.Join(lines, []byte("\n")), '\n')

	// A crash may have torn the last line.
	if size := info.Size(); size > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, size-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			text = append([]byte("\n"), text...)
		}
	}

	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}

	if err != nil {
		return errors.Join(err, f.Truncate(info.Size()))
	}

	return nil
}

// syslogTarget is the host's syslog.
type syslogTarget struct {
	network, address string         // "": those of the host
	writer           *syslog.Writer // nil: not connected
}

// writeRecords sends a message for each record. A syslog daemon that hangs holds up the sink, but not the end of ctx.
func (s *syslogTarget) writeRecords(ctx context.Context, lines [][]byte) error {
	done := make(chan error, 1)
	go func() { done <- s.sendMessages(lines) }()

	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *syslogTarget) sendMessages(lines [][]byte) (err error) {
	if s.writer == nil {
		if s.writer, err = syslog.Dial(s.network, s.address, syslog.LOG_AUTH|syslog.LOG_NOTICE, "carillon-audit"); err != nil {
			return err
		}
	}

	for _, line := range lines {
		if _, err := s.writer.Write(line); err != nil { // it has tried to connect again
			return err
		}
	}

	return nil
}
