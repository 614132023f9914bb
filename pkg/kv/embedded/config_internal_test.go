//go:build !race

package embedded

import (
	"reflect"
	"testing"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// A version of etcd with another default, or with another setting that has one, is noticed here. No other test needs package embed, and
// it takes long to compile it and what it imports for the race detector, so this file has a build constraint.
func TestServerConfig_HasTheDefaultsOfEtcd(t *testing.T) {
	s := &Server{cfg: Config{Name: "a", Dir: t.TempDir(), Logger: zap.NewNop()}}
	c := s.serverConfig()

	ours := map[string]bool{
		"Name": true, "QuotaBackendBytes": true, "SnapshotCount": true, "SnapshotCatchUpEntries": true,
		"WarningApplyDuration": true, "WarningUnaryRequestDuration": true, "Logger": true, "ServerFeatureGate": true,
		// They are for HTTP, for which this server has no listener, and for finding other members.
		"CORS": true, "HostWhitelist": true, "EnableGRPCGateway": true, "DiscoveryCfg": true,
		// etcd parses the text of its configuration.
		"AutoCompactionRetention": true, "BackendFreelistType": true,
	}

	defaults := embed.NewConfig()
	got, want := reflect.ValueOf(c), reflect.ValueOf(*defaults)
	compared := 0

	for i := range got.NumField() {
		name := got.Type().Field(i).Name
		theirs := want.FieldByName(name)
		if ours[name] || !theirs.IsValid() {
			continue
		}

		compared++
		if g, w := got.Field(i).Interface(), theirs.Interface(); !reflect.DeepEqual(g, w) {
			t.Errorf("%s is %v, the default of etcd is %v", name, g, w)
		}
	}

	if compared < 20 {
		t.Errorf("%d settings have the same name in both, want at least 20", compared)
	}

	if c.ElectionTicks != defaults.ElectionTicks() || c.TokenTTL != defaults.AuthTokenTTL || c.MaxWALFiles != defaults.MaxWalFiles ||
		c.AutoCompactionRetention != 0 || c.BackendFreelistType != bbolt.FreelistMapType || !c.NewCluster {
		t.Errorf("a setting with another name differs from etcd: %+v", c)
	}
}
