package embedded

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// A stoppedClock puts all messages of a test into one interval of the sampler.
type stoppedClock time.Time

func (c stoppedClock) Now() time.Time                       { return time.Time(c) }
func (c stoppedClock) NewTicker(time.Duration) *time.Ticker { panic("not used") }

// The etcd of a restarted member repeats a warning without a pause until it has caught up.
func TestServer_SuppressesRepeatedLinesOfEtcd(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	clock := stoppedClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	s := &Server{cfg: Config{Dir: t.TempDir(), Name: "n1", Logger: zap.New(core, zap.WithClock(clock))}}

	log := s.serverConfig().Logger

	const flood = 4000
	for range flood {
		log.Warn("failed to publish local member to cluster through raft", zap.Error(fmt.Errorf("too many requests")))
	}

	if n := logs.Len(); n != sampleLines {
		t.Errorf("%d of %d lines pass, want %d", n, flood, sampleLines)
	}

	for range 2 * sampleLines {
		log.Warn("simple token is not cryptographically signed") // messages that are dropped as noise are not counted
	}

	// Other messages of etcd pass, with the number of suppressed ones.
	log.Warn("apply request took too long")
	last := logs.All()[logs.Len()-1]
	if last.Message != "apply request took too long" || last.ContextMap()["suppressed"] != int64(flood-sampleLines) {
		t.Errorf("%s %v", last.Message, last.ContextMap())
	}

	if s.etcdLog.logSuppressed(); logs.Len() != sampleLines+1 {
		t.Errorf("reported although nothing was suppressed: %v", logs.All()[logs.Len()-1])
	}

	log.Warn("failed to publish local member to cluster through raft")
	s.etcdLog.logSuppressed()

	if last := logs.All()[logs.Len()-1]; last.ContextMap()["suppressed"] != int64(1) || last.Level != zap.WarnLevel {
		t.Errorf("%s %v", last.Message, last.ContextMap())
	}
}

// A node that stops cancels its reads. etcd logs the error of a read-only transaction although the caller gets it.
func TestServer_DoesNotLogCanceledReads(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	s, err := Start(t.Context(), Config{Dir: t.TempDir(), Logger: zap.New(core), Tick: 10 * time.Millisecond, Election: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })

	if _, err := s.Client().Put(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	read := &etcdserverpb.RangeRequest{Key: []byte("k"), Serializable: true}
	_, err = s.etcd.Txn(ctx, &etcdserverpb.TxnRequest{
		Success: []*etcdserverpb.RequestOp{{Request: &etcdserverpb.RequestOp_RequestRange{RequestRange: read}}},
	})
	if err == nil {
		t.Fatal("a canceled read has succeeded")
	}

	for _, l := range logs.FilterLevelExact(zap.ErrorLevel).All() {
		t.Errorf("logged: %s %v", l.Message, l.ContextMap())
	}
}
