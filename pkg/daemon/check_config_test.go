package daemon_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/cli"
	"github.com/carillonhq/carillon/pkg/daemon"
)

// checkConfig runs agent --check-config through the command tree.
func checkConfig(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	code = cli.Main(t.Context(), append([]string{"agent", "--check-config"}, args...),
		cli.IO{In: strings.NewReader(""), Out: &o, Err: &e, Version: "test"}, daemon.Commands()...)
	return code, o.String(), e.String()
}

func TestCheckConfig_SaysWhatResultsAndWhereFrom(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "agent.yaml")
	text := "embedded: true\nlabels: {role: db}\nslots: 3\ndrain_timeout: 1m\netcd_quota: 33554432\ndata_dir: " + dir + "/data/of/it\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CARILLON_SLOTS", "5")
	t.Setenv("CARILLON_WEIGHT", "2")
	code, out, errs := checkConfig(t, "--config", file, "--weight", "4")
	if code != 0 || errs != "" {
		t.Fatalf("exit %d: %s", code, errs)
	}
	for _, want := range []string{
		`labels\s+\{"role":"db"\}\s+` + regexp.QuoteMeta(file), `slots\s+5\s+CARILLON_SLOTS`, `weight\s+4\s+--weight`,
		`drain_timeout\s+1m\s+` + regexp.QuoteMeta(file), `name\s+\S+\s+host`, `listen\s+127.0.0.1:7070\s+default`, `advertise\s+-\s+default`,
	} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(out) {
			t.Errorf("no line %s in:\n%s", want, out)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "data")); err == nil {
		t.Error("the check made the data directory")
	}

	code, out, _ = checkConfig(t, "--config", file, "-o", "json")
	var list []struct{ Name, From string }
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != 0 || len(list) < 20 || list[0].Name != "name" {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
}

func TestCheckConfig_HidesSecrets(t *testing.T) {
	t.Setenv("CARILLON_ETCD_USER", "me")
	t.Setenv("CARILLON_ETCD_PASSWORD", "swordfish")
	for _, more := range [][]string{nil, {"-o", "json"}} {
		for _, secret := range []string{"swordfish", "shark@fish", "shark/fish:x"} { // the last one makes the endpoint an invalid URL
			for _, scheme := range []string{"http://", ""} {
				_, out, errs := checkConfig(t, append(more, "--data-dir", t.TempDir(), "--etcd-endpoints", scheme+"ann:"+secret+"@10.0.0.1:2379")...)
				if strings.Contains(out+errs, "shark") || strings.Contains(out+errs, "fish") || strings.Count(out, "(hidden)") != len(more) || !strings.Contains(errs, "etcd_endpoints: one of them has a user") {
					t.Errorf("%s%s", out, errs)
				}
			}
		}
	}
}

func TestCheckConfig_RefusesWhatTheAgentWould(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := file("plain", "no certificate")
	peers := "embedded: true\nname: n1\ninitial_cluster: {n1: 'https://10.0.0.1:2380', n2: 'https://10.0.0.2:2380', n3: 'https://10.0.0.3:2380'}\n"
	for name, tc := range map[string]struct {
		args []string
		want []string // all faults, in one run
	}{
		"no file":         {[]string{"--config", dir + "/none"}, []string{"no such file"}},
		"unknown field":   {[]string{"--config", file("f1", "embeded: true\n")}, []string{"f1:1:1", "embeded"}},
		"no etcd":         {[]string{"--data-dir", dir}, []string{"etcd_endpoints"}},
		"a wrong value":   {[]string{"--embedded", "--slots", "0", "--data-dir", dir}, []string{"slots"}},
		"data in a file":  {[]string{"--embedded", "--data-dir", plain + "/x"}, []string{"data_dir"}},
		"no certificates": {[]string{"--config", file("f2", peers+"etcd_peer_cert: "+dir+"/c\netcd_peer_key: "+dir+"/k\netcd_peer_ca: "+plain+"\n")}, []string{"etcd_peer_cert: ", "etcd_peer_ca: ", "PEM"}},
		"no trust": {[]string{"--embedded", "--data-dir", dir, "--policy", dir + "/none", "--secret-keys", plain},
			[]string{"secret_keys: " + plain + ": line 1 does not begin", "policy: " + filepath.Dir(dir)}},
	} {
		code, out, errs := checkConfig(t, tc.args...)
		if code != 2 || out != "" {
			t.Errorf("%s: exit %d: %s%s", name, code, out, errs)
		}
		for _, want := range tc.want {
			if !strings.Contains(errs, want) {
				t.Errorf("%s: no %q in: %s", name, want, errs)
			}
		}
	}
}

func TestCheckConfig_WarnsOfEndpointsOfMembers(t *testing.T) {
	code, _, errs := checkConfig(t, "--data-dir", t.TempDir(), "--etcd-endpoints", "https://n1:2379,https://n2:2380")
	if code != 0 || !strings.Contains(errs, "warning: etcd_endpoints: https://n2:2380 has the usual port of members of etcd, not of clients (2379); an etcd that is embedded in agents serves only these agents") || strings.Contains(errs, "n1:2379 has") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

func TestCheckConfig_WarnsOfOneCAForPeersAndClients(t *testing.T) {
	p := newPKI(t)
	node := p.node("n1")
	args := []string{"--data-dir", t.TempDir(), "--name", "n1", "--embedded", "--initial-cluster", "n1=https://127.0.0.1:2380,n2=https://127.0.0.1:2381",
		"--tls-cert", node.Cert, "--tls-key", node.Key, "--tls-ca", node.CA, "--tls-client-auth", "optional"}
	code, _, errs := checkConfig(t, append(args, "--etcd-peer-cert", node.Cert, "--etcd-peer-key", node.Key, "--etcd-peer-ca", node.CA)...)
	if code != 0 || !strings.HasPrefix(errs, "warning: etcd_peer_ca: ") {
		t.Errorf("exit %d: %s", code, errs)
	}

	own := newPKI(t)
	member := own.node("n1")
	code, _, errs = checkConfig(t, append(args, "--etcd-peer-cert", member.Cert, "--etcd-peer-key", member.Key, "--etcd-peer-ca", member.CA)...)
	if code != 0 || errs != "" {
		t.Errorf("members have a CA of their own: exit %d: %s", code, errs)
	}
}
