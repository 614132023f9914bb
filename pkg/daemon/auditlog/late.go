package auditlog

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// maxLate is how many late audit records wait at most. Beyond that the oldest ones are dropped.
	maxLate = 10_000
	// lateEvery is the interval at which waiting records are tried again.
	lateEvery = 5 * time.Second
	// lateSlack is how many bytes of records that no longer wait the file may have before it is rewritten.
	lateSlack = 4 << 20
)

// Recorder stores an audit record. Storing the same record again changes nothing.
type Recorder interface {
	RecordAudit(ctx context.Context, r task.AuditRecord) error
}

// Late keeps the audit records that etcd could not store beside their changes, because it was full, in a file of
// the data directory, and stores them when etcd accepts them. A record is on disk when Keep returns. After a crash
// some may be stored again, which changes nothing: their keys are their ids.
type Late struct {
	path  string
	store Recorder
	log   *zap.Logger
	most  int           // maxLate, except in tests
	every time.Duration // lateEvery, except in tests

	mu      sync.Mutex
	size    int64 // of the file
	begin   int64 // the records before this offset no longer wait
	waiting int   // records from there on
}

// OpenLate returns the late records of a data directory. Former processes may have left some.
func OpenLate(dir string, store Recorder, log *zap.Logger) (*Late, error) {
	l := &Late{path: filepath.Join(dir, "late-audit"), store: store, log: log.Named("audit"), most: maxLate, every: lateEvery}

	content, err := os.ReadFile(l.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("late audit records: %w", err)
	}

	// A crash may have torn the last line. Its record was not acknowledged.
	whole := bytes.LastIndexByte(content, '\n') + 1
	if whole < len(content) {
		if err := os.Truncate(l.path, int64(whole)); err != nil {
			return nil, fmt.Errorf("late audit records: %w", err)
		}
	}

	l.size, l.waiting = int64(whole), bytes.Count(content[:whole], []byte("\n"))

	return l, nil
}

// Keep keeps a record until it is stored. It returns when the record is on disk. A record that cannot be written
// there is lost to etcd; the log has it.
func (l *Late) Keep(r task.AuditRecord) {
	line, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("auditlog: encode an audit record: %v", err))
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	if err := l.appendLine(append(line, '\n')); err != nil {
		l.log.Error("cannot keep a late audit record", zap.ByteString("record", line), zap.Error(err))
		return
	}

	for l.waiting > l.most {
		dropped, err := l.readFirst()
		if err != nil {
			l.log.Error("cannot read the late audit records", zap.Error(err))
			return
		}

		l.log.Error("too many late audit records; dropped the oldest", zap.ByteString("record", bytes.TrimSpace(dropped)))
		l.removeFirst(len(dropped))
	}
}

// appendLine appends a line and syncs the file. The caller must hold mu.
func (l *Late) appendLine(line []byte) error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}

	// At the end of the whole lines: a write that failed may have left a part of one behind them.
	_, err = f.WriteAt(line, l.size)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Truncate(l.path, l.size) // the next line replaces it in any case
		return err
	}

	l.size += int64(len(line))
	l.waiting++

	return nil
}

// readFirst returns the line of the oldest record that waits. The caller must hold mu, and some record must wait.
func (l *Late) readFirst() ([]byte, error) {
	f, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}

	defer f.Close()

	return bufio.NewReader(io.NewSectionReader(f, l.begin, l.size-l.begin)).ReadBytes('\n')
}

// removeFirst removes the oldest record, whose line has n bytes. The caller must hold mu.
func (l *Late) removeFirst(n int) {
	l.begin += int64(n)
	l.waiting--

	if l.waiting > 0 && l.begin < lateSlack {
		return
	}

	if err := l.rewriteFile(); err != nil {
		l.log.Warn("cannot shorten the file of late audit records", zap.String("file", l.path), zap.Error(err))
	}
}

// rewriteFile rewrites the file with only the records that wait. The caller must hold mu.
func (l *Late) rewriteFile() error {
	if l.waiting == 0 {
		if err := os.Truncate(l.path, 0); err != nil {
			return err
		}
		l.size, l.begin = 0, 0

		return nil
	}

	content, err := os.ReadFile(l.path)
	if err != nil {
		return err
	}

	rest := content[l.begin:l.size]
	if err := datadir.WriteSynced(l.path, rest, 0o600); err != nil {
		return err
	}
	l.size, l.begin = int64(len(rest)), 0

	return nil
}

// Run stores the records that wait until ctx ends.
func (l *Late) Run(ctx context.Context) error {
	for {
		if n, err := l.storeRecords(ctx); n > 0 {
			l.log.Info("stored late audit records", zap.Int("records", n), zap.NamedError("stopped_by", err))
		}

		if !clock.Sleep(ctx, l.every) {
			return ctx.Err()
		}
	}
}

// storeRecords stores the records that wait, the oldest first, until etcd refuses one. It returns how many it stored.
func (l *Late) storeRecords(ctx context.Context) (stored int, err error) {
	for {
		l.mu.Lock()
		if l.waiting == 0 {
			l.mu.Unlock()
			return stored, nil
		}
		begin := l.begin
		line, err := l.readFirst()
		l.mu.Unlock()

		if err != nil {
			l.log.Error("cannot read the late audit records", zap.Error(err))
			return stored, err
		}

		var r task.AuditRecord
		if err := json.Unmarshal(line, &r); err != nil || r.ID == "" {
			l.log.Error("a late audit record is damaged; removed it", zap.ByteString("record", bytes.TrimSpace(line)), zap.Error(err))
		} else if err := l.storeRecord(ctx, r); err != nil {
			return stored, err
		} else {
			stored++
		}

		l.mu.Lock()
		if l.begin == begin { // otherwise it was dropped meanwhile
			l.removeFirst(len(line))
		}
		l.mu.Unlock()
	}
}

func (l *Late) storeRecord(ctx context.Context, r task.AuditRecord) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()

	return l.store.RecordAudit(ctx, r)
}
