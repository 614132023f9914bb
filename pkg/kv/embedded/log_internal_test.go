package embedded

import (
	"fmt"
	"testing"
	"time"

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
