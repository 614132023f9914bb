package kv

import (
	"slices"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestCheckVersion_Table(t *testing.T) {
	for version, ok := range map[string]bool{
		"3.4.30": false, "3.5.21": false, "3.6.0": false, "3.6.13": false,
		"3.6.14": true, "3.6.20": true, "3.6.14-rc.0": false,
		"3.7.0": false, "3.7.0-rc.1": false, "3.7.1-alpha.0": false, "3.7.1": true, "3.7.3": true,
		"3.8.0": true, "4.0.0": true,
		"": false, "3": false, "three": false,
	} {
		if err := VersionFault(version); (err == nil) != ok {
			t.Errorf("version %q: %v", version, err)
		}
	}
}

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
