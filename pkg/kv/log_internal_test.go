package kv

import (
	"slices"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// The messages of etcd about an election before the configuration of the member has been applied are useless. Its
// other warnings pass.
func TestQuiet_LeavesOutWhatEndsAsNoiseDoes(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	lg := QuietLogger(zap.New(core), "etcd", zap.WarnLevel, "pending changes", "all of it")

	for _, m := range []string{"930c cannot campaign: pending changes", "all of it", "all of it, and more", "pending changes failed"} {
		lg.Warn(m)
	}

	lg.Info("a start")
	var told []string
	for _, l := range logs.All() {
		told = append(told, l.Message)
	}

	if want := []string{"all of it, and more", "pending changes failed"}; !slices.Equal(told, want) {
		t.Errorf("logged %q, want %q", told, want)
	}
}
