package auditlog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/pkg/task"
)

// fakeRecorder stores audit records while it has space for more.
type fakeRecorder struct {
	space  int
	stored []string
}

var errNoSpace = errors.New("no space")

func (f *fakeRecorder) RecordAudit(_ context.Context, r task.AuditRecord) error {
	if len(f.stored) >= f.space {
		return errNoSpace
	}
	f.stored = append(f.stored, r.ID)
	return nil
}

func openLate(t *testing.T, dir string, to Recorder) *Late {
	t.Helper()
	l, err := OpenLate(dir, to, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}

	return l
}

func keepLate(l *Late, from, to int) {
	for i := from; i < to; i++ {
		l.Keep(task.AuditRecord{ID: fmt.Sprintf("r%d", i), Late: true})
	}
}

// Verifies: G28
func TestLateAudit_StoresRecordsOnceThereIsSpace(t *testing.T) {
	dir, etcd := t.TempDir(), &fakeRecorder{}
	l := openLate(t, dir, etcd)
	keepLate(l, 0, 3)

	if n, err := l.storeRecords(t.Context()); n != 0 || !errors.Is(err, errNoSpace) {
		t.Fatalf("stored %d in a full etcd, %v", n, err)
	}

	etcd.space = 2
	if n, err := l.storeRecords(t.Context()); n != 2 || !errors.Is(err, errNoSpace) {
		t.Fatalf("stored %d, %v; there is space for 2", n, err)
	}

	keepLate(l, 3, 4)
	etcd.space = 10
	if n, err := l.storeRecords(t.Context()); n != 2 || err != nil {
		t.Fatalf("stored %d, %v", n, err)
	}
	if got := fmt.Sprint(etcd.stored); got != "[r0 r1 r2 r3]" {
		t.Errorf("stored %s", got)
	}
	if info, err := os.Stat(l.path); err != nil || info.Size() != 0 || info.Mode().Perm() != 0o600 {
		t.Errorf("the file afterwards: %v, %v", info, err)
	}
}

// Verifies: G28
func TestLateAudit_SurvivesACrash(t *testing.T) {
	dir := t.TempDir()
	l := openLate(t, dir, &fakeRecorder{})
	keepLate(l, 0, 2)

	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = f.WriteString(`{"id":"torn`)
	f.Close()

	etcd := &fakeRecorder{space: 10}
	l = openLate(t, dir, etcd)
	keepLate(l, 2, 3)
	if n, err := l.storeRecords(t.Context()); n != 3 || err != nil || fmt.Sprint(etcd.stored) != "[r0 r1 r2]" {
		t.Errorf("stored %d, %v: %v", n, err, etcd.stored)
	}
}

// Verifies: G28
func TestLateAudit_DropsTheOldestBeyondItsLimit(t *testing.T) {
	etcd := &fakeRecorder{}
	l := openLate(t, t.TempDir(), etcd)
	core, logs := observer.New(zap.ErrorLevel)
	l.most, l.log = 3, zap.New(core)
	keepLate(l, 0, 5)

	etcd.space = 10
	if n, err := l.storeRecords(t.Context()); n != 3 || err != nil || fmt.Sprint(etcd.stored) != "[r2 r3 r4]" {
		t.Errorf("stored %d, %v: %v", n, err, etcd.stored)
	}
	if logs.Len() != 2 {
		t.Errorf("%d log lines, want one for each dropped record", logs.Len())
	}
}

// Verifies: G28
func TestLateAudit_RunsUntilTheEnd(t *testing.T) {
	l := openLate(t, t.TempDir(), &fakeRecorder{space: 1})
	l.every = time.Millisecond
	keepLate(l, 0, 1)

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()

	for {
		l.mu.Lock()
		waiting := l.waiting
		l.mu.Unlock()
		if waiting == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}

	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
