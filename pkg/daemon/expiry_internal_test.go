package daemon

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/pkg/internal/certs"
)

// An expiring certificate is logged once at thirty days, once at seven, and once when it has expired. A new
// certificate ends that.
func TestExpiry_IsToldInTime(t *testing.T) {
	const day = 24 * time.Hour
	dir, begin := t.TempDir(), time.Now()
	ca, _, err := certs.NewAuthority(certs.Request{Name: "CA", For: 1000 * day, Now: begin})
	if err != nil {
		t.Fatal(err)
	}
	issue := func(until time.Duration) {
		t.Helper()
		p, err := ca.Issue(certs.Request{Kind: certs.KindNode, Name: "n", For: until, Now: begin})
		if err == nil {
			err = p.Write(dir, "n")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	issue(100 * day)
	cert, key := certs.Paths(dir, "n")
	source, err := certs.Open(certs.Files{Cert: cert, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	now, registry := begin, prometheus.NewRegistry()
	core, logs := observer.New(zap.InfoLevel)
	e := newCertExpiryMonitor(certSources{api: source}, Environment{Now: func() time.Time { return now }}, registry, zap.New(core))
	for _, step := range []struct {
		at    time.Duration
		level zapcore.Level // the expected level; Debug: nothing is logged
		soon  int
	}{
		{0, zap.DebugLevel, 0},
		{69 * day, zap.DebugLevel, 0},
		{71 * day, zap.WarnLevel, 1},
		{80 * day, zap.DebugLevel, 1},
		{94 * day, zap.ErrorLevel, 1},
		{95 * day, zap.DebugLevel, 1},
		{101 * day, zap.ErrorLevel, 1},
		{102 * day, zap.DebugLevel, 1},
	} {
		now = begin.Add(step.at)
		e.checkFiles()
		got := logs.TakeAll()
		if len(got) > 1 || (len(got) == 1) != (step.level != zap.DebugLevel) || len(got) == 1 && got[0].Level != step.level {
			t.Errorf("day %d: %v", step.at/day, got)
		}
		if soon := e.expiringSoon(); len(soon) != step.soon || step.soon == 1 && soon[0].Setting != "tls_cert" {
			t.Errorf("day %d: %v", step.at/day, soon)
		}
	}
	issue(500 * day)
	e.checkFiles()
	if got := logs.TakeAll(); len(got) != 1 || got[0].Level != zap.InfoLevel || len(e.expiringSoon()) != 0 {
		t.Errorf("replaced: %v, %v", got, e.expiringSoon())
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	ends := begin.Add(-time.Hour).Truncate(time.Second).Add(500 * day).Unix()
	if m := families[0].GetMetric(); len(families) != 1 || len(m) != 1 || int64(m[0].GetGauge().GetValue()) != ends {
		t.Errorf("the metric: %v, want %d", families, ends)
	}
}
