package auditlog

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

var testNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// site is an etcd with audit records, and a data directory.
type site struct {
	*testing.T
	etcd  *kv.Client
	store *store.Store
	dir   string
}

func newSite(t *testing.T) *site {
	t.Helper()
	etcd := kvtest.Memory(t)
	keys, err := record.NewKeys("/carillon")
	if err != nil {
		t.Fatal(err)
	}

	return &site{t, etcd, store.New(etcd, kv.Direct(etcd), keys), t.TempDir()}
}

// put stores a record of an instant.
func (s *site) put(operation string, at time.Time) {
	s.Helper()
	if err := s.store.RecordAudit(s.Context(), task.AuditRecord{ID: record.NewAuditID(at), Time: task.At(at), Operation: operation}); err != nil {
		s.Fatal(err)
	}
}

// startSink runs a sink until the returned function is called.
func (s *site) startSink(to target, epoch int) (stop func()) {
	_, stop = s.startSinkWith(to, epoch, queueRecords)
	return stop
}

// startSinkWith is startSink with a queue of at most a number of records.
func (s *site) startSinkWith(to target, epoch, records int) (sink *Sink, stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	sink = newSink(SinkConfig{Dir: s.dir, Client: s.etcd, Keys: s.store.Keys(), Epoch: epoch, Logger: zap.NewNop()}, "audit-file", to)
	sink.pause, sink.queue = time.Millisecond, newQueue(records, queueBytes)
	ended := make(chan error, 1)
	go func() { ended <- sink.Run(ctx) }()

	return sink, func() {
		s.Helper()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			s.Errorf("the sink has ended by itself: %v", err)
		}
	}
}

// written returns the operations of the records in a file, once there are n, or after a while.
func (s *site) written(path string, n int) (operations string) {
	s.Helper()
	for range 500 {
		b, err := os.ReadFile(path)
		if err == nil && bytes.Count(b, []byte("\n")) >= n {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}

	f, err := os.Open(path)
	if err != nil {
		s.Fatal(err)
	}

	defer f.Close()

	var list []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r task.AuditRecord
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil || r.ID == "" || r.Revision == 0 {
			s.Errorf("line %q: %v", lines.Text(), err)
		}
		list = append(list, r.Operation)
	}

	return strings.Join(list, " ")
}

// Verifies: G36
func TestAuditSink_NeitherRepeatsNorOmitsRecords(t *testing.T) {
	s := newSite(t)
	path := filepath.Join(s.dir, "audit.log")
	s.put("before", testNow)

	stop := s.startSink(fileTarget(path), 1)
	if got := s.written(path, 1); got != "before" {
		t.Fatalf("wrote %q", got)
	}
	s.put("live", testNow.Add(time.Minute))
	s.put("slower-clock", testNow.Add(30*time.Second))
	if got := s.written(path, 3); got != "before live slower-clock" {
		t.Fatalf("wrote %q", got)
	}
	stop()

	// While it is down, a record with a new id and a late one with an old id arrive.
	s.put("down", testNow.Add(2*time.Minute))
	s.put("late", testNow.Add(-time.Hour))
	stop = s.startSink(fileTarget(path), 1)
	if got := s.written(path, 5); got != "before live slower-clock late down" {
		t.Fatalf("after a restart: %q", got)
	}
	stop()

	s.startSink(fileTarget(path), 1)()
	if got := s.written(path, 5); got != "before live slower-clock late down" {
		t.Errorf("after another restart: %q", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}

	// The revisions of another epoch say nothing, but the ids do.
	s.put("epoch", testNow.Add(time.Hour))
	stop = s.startSink(fileTarget(path), 2)
	defer stop()
	if got := s.written(path, 6); !strings.HasSuffix(got, "down epoch") {
		t.Errorf("in another epoch: %q", got)
	}
}

// flakyTarget fails a number of times.
type flakyTarget struct {
	target
	fails int
}

func (f *flakyTarget) writeRecords(ctx context.Context, lines [][]byte) error {
	if f.fails > 0 {
		f.fails--
		return errors.New("no space left on device")
	}
	return f.target.writeRecords(ctx, lines)
}

func TestAuditSink_TriesAgain(t *testing.T) {
	s := newSite(t)
	path := filepath.Join(s.dir, "audit.log")
	s.put("a", testNow)
	s.put("b", testNow.Add(time.Second))

	stop := s.startSink(&flakyTarget{fileTarget(path), 3}, 1)
	defer stop()
	if got := s.written(path, 2); got != "a b" {
		t.Errorf("wrote %q", got)
	}
}

// stuckTarget does not take records until it is released.
type stuckTarget struct {
	target
	released chan struct{}
}

func (t *stuckTarget) writeRecords(ctx context.Context, lines [][]byte) error {
	select {
	case <-t.released:
	case <-ctx.Done():
		return ctx.Err()
	}
	return t.target.writeRecords(ctx, lines)
}

// While a target does not answer, the records wait in etcd and not in memory. Afterwards each of them is written once.
//
// Verifies: G36
func TestAuditSink_BoundsWhatWaitsForAStuckTarget(t *testing.T) {
	const most = 10
	s := newSite(t)
	path := filepath.Join(s.dir, "audit.log")
	stuck := &stuckTarget{fileTarget(path), make(chan struct{})}
	sink, stop := s.startSinkWith(stuck, 1, most)
	defer stop()

	var want []string
	for i := range 20 * most {
		want = append(want, fmt.Sprint(i))
		s.put(want[i], testNow.Add(time.Duration(i)*time.Second))
		for range 500 { // the sink has listed etcd, and follows it
			if i > 0 || sink.queue.recordCount() > 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := sink.queue.recordCount(); n > most {
			t.Fatalf("%d records wait in memory, at most %d may", n, most)
		}
	}

	// What is not in etcd is dropped and counted.
	for range 2 * most {
		sink.Offer(task.AuditRecord{ID: "refused", Operation: "refused", Revision: 1})
	}
	var counted dto.Metric
	if err := sink.dropped.Write(&counted); err != nil {
		t.Fatal(err)
	}
	dropped := counted.GetCounter().GetValue()
	if dropped < most {
		t.Errorf("%v refused logins are counted as dropped", dropped)
	}

	close(stuck.released)
	refused := 2*most - int(dropped)
	got := strings.Fields(s.written(path, len(want)+refused))
	got = slices.DeleteFunc(got, func(o string) bool { return o == "refused" })
	if !slices.Equal(got, want) {
		t.Errorf("wrote %q", got)
	}

	s.put("after", testNow.Add(time.Hour))
	if got := s.written(path, len(want)+refused+1); !strings.HasSuffix(got, "after") {
		t.Errorf("wrote %q", got)
	}
}

// Deletions of old records have no lines to write and only move the position. They must not fill the memory either.
func TestAuditSink_BoundsEntriesWithoutRecords(t *testing.T) {
	const most = 10
	q := newQueue(most, queueBytes)
	for range 10 * most {
		q.tryPush(entry{mark: &position{}})
	}
	if n := q.length(); n > most {
		t.Errorf("%d entries wait in memory, at most %d may", n, most)
	}
}

// A record that is not in etcd is written beside the others, and does not move the position.
func TestAuditSink_WritesRefusedLogins(t *testing.T) {
	s := newSite(t)
	path := filepath.Join(s.dir, "audit.log")
	sink, stop := s.startSinkWith(fileTarget(path), 1, queueRecords)
	s.put("a", testNow)
	if got := s.written(path, 1); got != "a" {
		t.Fatalf("wrote %q", got)
	}

	for range 500 { // the position moves after the write
		if sink.writtenPosition().ID != "" {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	at := sink.writtenPosition()
	sink.Offer(task.AuditRecord{ID: "r", Operation: "login", Outcome: task.AuditRefused, Revision: 1})
	if got := s.written(path, 2); got != "a login" {
		t.Errorf("wrote %q", got)
	}
	if sink.writtenPosition() != at {
		t.Error("the position has moved")
	}
	stop()
}

// Verifies: G36
func TestAuditFile_EndsATornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte(`{"torn`), 0o640); err != nil {
		t.Fatal(err)
	}

	for _, line := range []string{"a", "b"} {
		if err := fileTarget(path).writeRecords(t.Context(), [][]byte{[]byte(line)}); err != nil {
			t.Fatal(err)
		}
	}

	if got, _ := os.ReadFile(path); string(got) != "{\"torn\na\nb\n" {
		t.Errorf("%q", got)
	}
}

func TestAuditFile_IsAFile(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "other"), link); err != nil {
		t.Fatal(err)
	}

	for _, path := range []string{dir, link, "/dev/null"} {
		if err := fileTarget(path).writeRecords(t.Context(), [][]byte{[]byte("a")}); err == nil {
			t.Errorf("%s is written to", path)
		}
	}
}

func TestAuditSyslog_SendsAMessageForEachRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}

	defer l.Close()

	s := &syslogTarget{network: "unixgram", address: path}
	if err := s.writeRecords(t.Context(), [][]byte{[]byte(`{"id":"1"}`), []byte(`{"id":"2"}`)}); err != nil {
		t.Fatal(err)
	}

	for i := range 2 {
		b := make([]byte, 1024)
		n, err := l.Read(b)
		if got := string(b[:n]); err != nil || !strings.HasPrefix(got, "<37>") || !strings.HasSuffix(got, fmt.Sprintf(": {\"id\":\"%d\"}\n", i+1)) {
			t.Errorf("message %q, %v", got, err)
		}
	}
}

// quotaStore is a store in an etcd with a quota.
type quotaStore struct {
	*store.Store
	quota int64
}

func (q quotaStore) Members(context.Context, time.Duration) []etcdadmin.Member {
	return []etcdadmin.Member{{}, {Quota: q.quota}, {Quota: 2 * q.quota}}
}

// Tokens stay for 30 days after their end, and are then deleted.
func TestSweeper_RemovesTokensThatExpiredLongAgo(t *testing.T) {
	s := newSite(t)
	for id, age := range map[string]time.Duration{"old": tokenAge + time.Minute, "expired": tokenAge - time.Minute, "valid": -time.Hour} {
		tok := record.Token{Token: task.Token{ID: id, Subject: "user:ann", Until: task.At(testNow.Add(-age))}}
		if err := s.store.CreateToken(t.Context(), tok); err != nil {
			t.Fatal(err)
		}
	}

	clockFault := errors.New("the clock is wrong")
	a := NewSweeper("n1", s.store, func() error { return clockFault }, func() time.Time { return testNow }, zap.NewNop())
	if n, err := a.sweepTokens(t.Context()); n != 0 || err != nil {
		t.Errorf("with a wrong clock it removes %d, %v", n, err)
	}

	clockFault = nil
	if n, err := a.sweepTokens(t.Context()); n != 1 || err != nil {
		t.Errorf("removed %d, %v", n, err)
	}
	if _, err := s.store.Token(t.Context(), "old"); !errors.Is(err, task.ErrNotFound) {
		t.Errorf("the old token: %v", err)
	}
	for _, id := range []string{"expired", "valid"} {
		if _, err := s.store.Token(t.Context(), id); err != nil {
			t.Errorf("token %s: %v", id, err)
		}
	}
}
