// Package auditlog is a node's part in keeping the audit records of the cluster. [Late] keeps the records that a full
// etcd could not store beside their changes, until etcd accepts them. [Sink] copies all records of the cluster to a file
// or to syslog. [Sweeper], which the leader runs, removes old records from etcd, and tokens that expired long ago.
//
// Guaranteed: [Late.Keep] returns when its record is on disk. A sink neither repeats nor omits records over restarts of
// the node. Not guaranteed: after a crash or a failed write a sink may repeat some records, and it omits those that were
// removed from etcd before it read them. If the disk refuses a late record, or too many of them wait, only the log has
// it.
//
// The package reads and deletes keys below audit/ and access/tokens/. In the data directory it has one file for late records, and one
// for the position of each sink.
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
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// sinkPage is how many records a sink reads at a time when it catches up.
	sinkPage = 1000
	// sinkPause is the pause after a failed write to a sink.
	sinkPause = 5 * time.Second
	// sinkLogEvery is the minimum interval between two log lines about failed writes.
	sinkLogEvery = time.Minute
	// sinkSave is the interval at which the position of a sink is written to disk, if it has changed. A crash repeats
	// the records of that time.
	sinkSave = time.Second
)

// target is where a sink writes audit records.
type target interface {
	// writeRecords writes records, each on its own line, and returns when they are safe.
	writeRecords(ctx context.Context, lines [][]byte) error
}

// Sink copies all audit records of the cluster to a target. Its position is kept in the data directory, so a
// restart neither repeats nor omits records; after a crash or a failed write some may be repeated.
//
// The position is a revision of etcd and not the id of a record, because ids follow the clocks of the nodes, and a late
// record has an old id. If etcd is restored from a snapshot, its revisions begin again: then the highest id counts.
//
// One goroutine follows etcd and fills a queue, and another one writes it to the target. If the target is slower
// than the cluster, or does not answer, the queue fills up. Then the sink stops to follow etcd until the queue is
// empty, and continues with what etcd has after its position. So its memory is bounded, and no record is lost that
// is still in etcd.
type Sink struct {
	name    string // of the position's file, for logs and metrics
	dir     string // the data directory
	client  *kv.Client
	keys    record.Keys
	epoch   int // of the cluster
	target  target
	log     *zap.Logger
	pause   time.Duration // sinkPause, except in tests
	queue   *queue
	failed  prometheus.Counter
	dropped prometheus.Counter

	queued position // only the goroutine that follows etcd uses it

	mu    sync.Mutex
	at    position // what is written
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
	// Registerer registers the metrics of the sinks; nil disables them.
	Registerer prometheus.Registerer
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
	labels := prometheus.Labels{"sink": strings.TrimPrefix(name, "audit-")}
	s := &Sink{
		name: name, dir: cfg.Dir, client: cfg.Client, keys: cfg.Keys, epoch: cfg.Epoch, target: to,
		log: cfg.Logger.Named("audit").With(zap.String("sink", name)), pause: sinkPause, queue: newQueue(queueRecords, queueBytes),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_audit_sink_failures_total", Help: "Writes of audit records to a file or syslog that failed and were tried again.", ConstLabels: labels,
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_audit_sink_dropped_total", Help: "Records of refused logins that were dropped, because the sink did not take them in time.", ConstLabels: labels,
		}),
	}

	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(s.failed, s.dropped, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "carillon_audit_sink_queued_records", Help: "Audit records in memory that a sink has to write. More wait in etcd.", ConstLabels: labels,
		}, func() float64 { return float64(s.queue.recordCount()) }))
	}

	return s
}

// Offer writes a record that is not in etcd, such as a refused login. It never waits: if the queue is full, the
// record is dropped and counted.
func (s *Sink) Offer(r task.AuditRecord) {
	if !s.queue.tryPush(entry{lines: [][]byte{encodeLine(r)}}) {
		s.dropped.Inc()
	}
}

// Run copies records until ctx ends. A target that fails is tried again.
func (s *Sink) Run(ctx context.Context) error {
	s.loadPosition()

	var parts sync.WaitGroup
	parts.Go(func() {
		for clock.Sleep(ctx, sinkSave) {
			s.savePosition()
		}
	})
	parts.Go(func() { s.writeQueue(ctx) })
	defer func() {
		parts.Wait()
		s.savePosition() // what was written since
	}()

	// The records of gaps come right before the audit records.
	gaps, _ := kv.Prefix(s.keys.AuditGaps())
	_, end := kv.Prefix(s.keys.AuditRecords())
	for {
		s.queued = s.writtenPosition()

		err := kv.Follow(ctx, s.client, kv.FollowConfig{
			Key: gaps, End: end, PageSize: sinkPage, Background: true, Relist: time.Hour, Name: s.name, Logger: s.log.Named("kv"),
		}, func(b kv.Batch) error { return s.queueBatch(ctx, b) })
		if ctx.Err() != nil {
			return ctx.Err()
		}

		s.log.Warn("the sink is slower than the cluster; it continues from etcd when it has written what it has", zap.Error(err))

		if err := s.queue.awaitEmpty(ctx); err != nil {
			return err
		}
	}
}

// errQueueFull ends Follow, whose events would otherwise wait in memory without a limit.
var errQueueFull = errors.New("the queue is full")

// queueBatch queues the records of a batch that were not written or queued before. For the pages of a list it waits
// until there is room, because nothing arrives meanwhile.
func (s *Sink) queueBatch(ctx context.Context, b kv.Batch) error {
	var lines [][]byte
	highest := s.queued.ID

	add := func(e *mvccpb.KeyValue) {
		if strings.HasPrefix(string(e.Key), s.keys.AuditGaps()) {
			if r := s.keys.DecodeAuditGap(e); !s.isQueued(e, r.ID) {
				lines = append(lines, encodeLine(r))
			}
			return
		}

		r := s.keys.DecodeAudit(e)
		if s.isQueued(e, r.ID) {
			return
		}

		lines, highest = append(lines, encodeLine(r)), max(highest, r.ID)
	}

	for _, e := range b.KVs {
		add(e)
	}

	for _, ev := range b.Events {
		if ev.IsCreate() || ev.IsModify() {
			add(ev.Kv)
		}
	}

	for _, r := range s.findTampering(b.Events) {
		s.log.Error("audit records were changed by something other than Carillon", zap.String("operation", r.Operation), zap.Int64("rev", r.Revision),
			zap.Int("records", len(r.Objects)))
		lines = append(lines, encodeLine(r))
	}

	// The pages of a list are in the order of ids, so only after the last one everything up to a revision is written.
	next := position{Epoch: s.epoch, Revision: max(b.Revision, s.queuedRevision()), ID: highest}
	e := entry{lines: lines}
	if !b.More {
		e.mark = &next
	}

	switch {
	case len(lines) == 0 && e.mark == nil:
		return nil
	case b.Reset:
		if err := s.queue.push(ctx, e); err != nil {
			return err
		}
	case !s.queue.tryPush(e):
		return errQueueFull
	}

	if !b.More {
		s.queued = next
	}

	return nil
}

// writeQueue writes what is queued to the target until ctx ends.
func (s *Sink) writeQueue(ctx context.Context) {
	var logged time.Time

	for {
		e, err := s.queue.awaitFirst(ctx)
		if err != nil {
			return
		}

		for len(e.lines) > 0 {
			err := s.target.writeRecords(ctx, e.lines)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return
			}

			s.failed.Inc()
			if time.Since(logged) >= sinkLogEvery {
				logged = time.Now()
				s.log.Error("cannot write audit records; retrying", zap.Error(err))
			}

			if !clock.Sleep(ctx, s.pause) {
				return
			}
		}

		if e.mark != nil {
			s.mu.Lock()
			s.at = *e.mark
			s.mu.Unlock()
		}
		s.queue.removeFirst()
	}
}

// encodeLine encodes a record as a line without its end.
func encodeLine(r task.AuditRecord) []byte {
	line, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("auditlog: encode an audit record: %v", err))
	}
	return line
}

// writtenPosition returns the position up to which everything is written.
func (s *Sink) writtenPosition() position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// queuedRevision returns the revision up to which everything is queued, or 0 if the position is from another history of
// etcd.
func (s *Sink) queuedRevision() int64 {
	if s.queued.Epoch != s.epoch {
		return 0
	}
	return s.queued.Revision
}

// isQueued reports whether a record was written or queued before.
func (s *Sink) isQueued(e *mvccpb.KeyValue, id string) bool {
	if s.queued.Epoch != s.epoch {
		return id <= s.queued.ID
	}
	return e.ModRevision <= s.queued.Revision
}

func (s *Sink) positionFile() string { return filepath.Join(s.dir, s.name+".json") }

// loadPosition reads the position. Without one, the sink begins with the oldest record that etcd has.
func (s *Sink) loadPosition() {
	b, err := os.ReadFile(s.positionFile())
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

// savePosition writes the position to disk if it has changed.
func (s *Sink) savePosition() {
	at := s.writtenPosition()
	if at == s.saved {
		return
	}

	b, err := json.Marshal(at)
	if err != nil {
		panic(fmt.Sprintf("auditlog: encode a position: %v", err))
	}

	if err := datadir.WriteSynced(s.positionFile(), append(b, '\n'), 0o600); err != nil {
		s.log.Error("cannot store the position of the audit sink; a restart would repeat records", zap.Error(err))
		return
	}

	s.saved = at
}

// fileTarget is a file with a record on each line. It is opened for each batch, so that it can be moved away at any
// time.
type fileTarget string

// writeRecords appends lines and syncs the file. After an error the file is as it was, as far as possible.
func (t fileTarget) writeRecords(_ context.Context, lines [][]byte) error {
	f, err := os.OpenFile(string(t), os.O_CREATE|os.O_RDWR|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}

	defer f.Close()

	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", string(t))
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

// writeRecords sends a message for each record. A syslog daemon that hangs holds up the sink, but not the end of
// ctx. After that the target cannot be used any more.
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

// The operations of records with which a sink reports changes of audit records in etcd. Only sinks receive them.
const (
	operationDeleted   = "audit-records-deleted"
	operationRewritten = "audit-records-rewritten"
)

// maxNamed is how many audit records such a report names.
const maxNamed = 100

// findTampering reports audit records that were rewritten, which Carillon never does, and those that were deleted without a
// gap that says so. A sweep deletes records and writes their gap in one transaction, so that both have the same revision. The
// events of a revision are never in two batches.
func (s *Sink) findTampering(events []*clientv3.Event) (reports []task.AuditRecord) {
	for begin := 0; begin < len(events); {
		rev := events[begin].Kv.ModRevision
		end := begin
		for end < len(events) && events[end].Kv.ModRevision == rev {
			end++
		}

		var deleted, rewritten []task.AuditObject
		announced := int64(0)
		for _, ev := range events[begin:end] {
			id, isRecord := strings.CutPrefix(string(ev.Kv.Key), s.keys.AuditRecords())
			switch {
			case !isRecord && ev.Type != clientv3.EventTypeDelete:
				announced += s.keys.DecodeAuditGap(ev.Kv).Gap.Removed
			case isRecord && ev.Type == clientv3.EventTypeDelete:
				deleted = append(deleted, task.AuditObject{Kind: "audit-record", Name: id, Change: "delete"})
			case isRecord && ev.IsModify():
				rewritten = append(rewritten, task.AuditObject{Kind: "audit-record", Name: id, Change: "put"})
			}
		}

		if int64(len(deleted)) > announced {
			reports = append(reports, tamperingReport(operationDeleted, rev, deleted))
		}
		if len(rewritten) > 0 {
			reports = append(reports, tamperingReport(operationRewritten, rev, rewritten))
		}

		begin = end
	}

	return reports
}

// tamperingReport returns a report with the time of the first record, because the sink does not know when etcd was changed.
func tamperingReport(operation string, rev int64, objects []task.AuditObject) task.AuditRecord {
	r := task.AuditRecord{ID: objects[0].Name + "-" + operation, Operation: operation, Objects: objects[:min(len(objects), maxNamed)], Revision: rev}
	if at, err := record.ParseAuditTime(objects[0].Name); err == nil {
		r.Time = task.At(at)
	}

	return r
}
