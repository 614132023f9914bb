package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/daemon"
	"github.com/carillonhq/carillon/pkg/internal/oidclogin"
	"github.com/carillonhq/carillon/pkg/task"
)

// Verifies: G49
func TestConfig_RefusesWhatCannotBe(t *testing.T) {
	good := func() daemon.Config {
		c := daemon.Defaults()
		c.EtcdEndpoints = []string{"http://127.0.0.1:2379"}
		return c
	}
	if c := good(); c.Validate() != nil {
		t.Fatalf("the defaults with an etcd are refused: %v", c.Validate())
	}
	for _, tc := range []struct {
		field  string
		change func(*daemon.Config)
	}{
		{"name", func(c *daemon.Config) { c.Name = "Web 1" }},
		{"name", func(c *daemon.Config) { c.Name = "a/b" }},
		{"labels", func(c *daemon.Config) { c.Labels = map[string]string{"a b": "c"} }},
		{"prefix", func(c *daemon.Config) { c.Prefix = "carillon" }},
		{"prefix", func(c *daemon.Config) { c.Prefix = "/carillon/" }},
		{"data_dir", func(c *daemon.Config) { c.DataDir = "" }},
		{"listen", func(c *daemon.Config) { c.Listen = "7070" }},
		{"listen", func(c *daemon.Config) { c.Listen = "0.0.0.0:7070" }},
		{"listen", func(c *daemon.Config) { c.Listen = "10.0.0.7:7070" }},
		{"listen", func(c *daemon.Config) { c.Listen = ":7070" }},
		{"metrics_listen", func(c *daemon.Config) { c.MetricsListen = "7071" }},
		{"metrics_listen", func(c *daemon.Config) { c.MetricsListen = "0.0.0.0:7071" }},
		{"metrics_listen", func(c *daemon.Config) { c.MetricsListen = "127.0.0.1:7070" }},
		{"metrics_listen", func(c *daemon.Config) { c.MetricsListen = "localhost:7070" }},
		{"advertise", func(c *daemon.Config) { c.Advertise = "10.0.0.7:7070" }},
		{"http_allow[1]", func(c *daemon.Config) { c.HTTPAllow = []string{"127.0.0.1:8080", "127.0.0.1:0"} }},
		{"http_allow[0]", func(c *daemon.Config) { c.HTTPAllow = []string{"http://127.0.0.1"} }},
		{"sendmail", func(c *daemon.Config) { c.Sendmail = "sendmail" }},
		{"mail_to[1]", func(c *daemon.Config) { c.MailTo = []string{"*@example.com", "[a"} }},
		{"alarm_command", func(c *daemon.Config) { c.AlarmCommand = "page" }},
		{"alarm_command", func(c *daemon.Config) { c.AlarmCommand = "/nonexistent/page" }},
		{"alarm_command", func(c *daemon.Config) { c.AlarmCommand = "/etc/passwd" }},
		{"alarm_command", func(c *daemon.Config) { c.AlarmCommand = "/etc" }},
		{"default_user", func(c *daemon.Config) {
			c.Roles, c.AlarmCommand, c.DefaultUser = []string{"api"}, "/bin/true", "no-such-user"
		}},
		{"etcd_endpoints", func(c *daemon.Config) { c.EtcdEndpoints = nil }},
		{"etcd_endpoints", func(c *daemon.Config) { c.Embedded = true }},
		{"etcd_endpoints", func(c *daemon.Config) { c.EtcdEndpoints = []string{"nonsense"} }},
		{"etcd_endpoints", func(c *daemon.Config) { c.EtcdEndpoints = []string{"http://10.0.0.1"} }},
		{"etcd_quota", func(c *daemon.Config) { c.EtcdQuota = 1 << 30 }},
		{"etcd_quota", func(c *daemon.Config) { c.Embedded, c.EtcdEndpoints, c.EtcdQuota = true, nil, 1<<20 }},
		{"etcd_quota", func(c *daemon.Config) { c.Embedded, c.EtcdEndpoints, c.EtcdQuota = true, nil, -1 }},
		{"initial_cluster", trio(func(c *daemon.Config) { c.InitialCluster["n1"] = "" })},
		{"initial_cluster", trio(func(c *daemon.Config) { c.InitialCluster["n2"] = c.InitialCluster["n1"] })},
		{"initial_cluster", trio(func(c *daemon.Config) { c.InitialCluster["n2"] = "10.0.0.2:2380" })},
		{"initial_cluster", trio(func(c *daemon.Config) { c.InitialCluster["n2"] = "http://10.0.0.2:2380" })},
		{"initial_cluster", trio(func(c *daemon.Config) { c.InitialCluster["n2"] = "https://10.0.0.2" })},
		{"initial_cluster", trio(func(c *daemon.Config) { c.InitialCluster["N 2"] = "https://10.0.0.2:2380" })},
		{"initial_cluster", trio(func(c *daemon.Config) { c.InitialCluster = map[string]string{"n1": c.InitialCluster["n1"]} })},
		{"initial_cluster", trio(func(c *daemon.Config) { c.Embedded, c.EtcdEndpoints = false, []string{"http://10.0.0.1:2379"} })},
		// Without TLS, anyone who reaches the port is root. On loopback that is every user of the host. --insecure
		// applies only to the API.
		{"initial_cluster", plain(trio(func(c *daemon.Config) {}))},
		{"initial_cluster", plain(trio(func(c *daemon.Config) { c.Insecure = true }))},
		{"initial_cluster", trio(func(c *daemon.Config) { c.InsecurePeers = true })},
		{"insecure_peers", func(c *daemon.Config) { c.InsecurePeers = true }},
		{"insecure_peers", plain(trio(func(c *daemon.Config) {
			c.InsecurePeers, c.EtcdPeerCert, c.EtcdPeerKey, c.EtcdPeerCA = true, "/c.pem", "/k.pem", "/ca.pem"
		}))},
		{"initial_cluster", trio(func(c *daemon.Config) { c.InitialCluster, c.InitialClusterState = nil, "existing" })},
		{"initial_cluster_state", trio(func(c *daemon.Config) { c.InitialClusterState = "old" })},
		{"initial_cluster_state", func(c *daemon.Config) { c.InitialClusterState = "old" }},
		{"etcd_listen_peer", trio(func(c *daemon.Config) { c.EtcdListenPeer = "http://0.0.0.0:2380" })},
		{"etcd_listen_peer", trio(func(c *daemon.Config) { c.EtcdListenPeer = "https://host-a:2380" })},
		{"etcd_listen_peer", trio(func(c *daemon.Config) { c.InitialCluster, c.EtcdListenPeer = nil, "https://127.0.0.1:2380" })},
		{"etcd_peer_cert", trio(func(c *daemon.Config) { c.EtcdPeerCert = "/c.pem" })},
		{"roles", func(c *daemon.Config) { c.Roles = nil }},
		{"roles", func(c *daemon.Config) { c.Roles = []string{"leader"} }},
		{"slots", func(c *daemon.Config) { c.Slots = 0 }},
		{"weight", func(c *daemon.Config) { c.Weight = -1 }},
		{"shards", func(c *daemon.Config) { c.Shards = 100_000 }},
		{"lease_ttl", func(c *daemon.Config) { c.LeaseTTL = task.Duration(time.Second) }},
		{"drain_timeout", func(c *daemon.Config) { c.DrainTimeout = -1 }},
		{"trusted_proxies[1]", func(c *daemon.Config) { c.TrustedProxies = []string{"10.0.0.5", "0.0.0.0/0"} }},
		{"ui_origin", func(c *daemon.Config) { c.UIOrigin = "carillon.example.com" }},
		{"ui_origin", func(c *daemon.Config) { c.UIOrigin = "https://carillon.example.com/" }},
		{"ui_origin", func(c *daemon.Config) { c.UIOrigin = "https://ann@carillon.example.com" }},
		{"ui_origin", func(c *daemon.Config) { c.UIOrigin = "ftp://carillon.example.com" }},
		{"ui_origin", func(c *daemon.Config) { withOIDC(c); c.Listen, c.Insecure = "0.0.0.0:7070", true }},
		{"oidc[0].issuer", func(c *daemon.Config) { withOIDC(c); c.OIDC[0].Issuer = "http://login.example.com" }},
		{"oidc[1].name", func(c *daemon.Config) { withOIDC(c); c.OIDC = append(c.OIDC, c.OIDC[0]) }},
		{"log_format", func(c *daemon.Config) { c.LogFormat = "xml" }},
		{"log_level", func(c *daemon.Config) { c.LogLevel = "loud" }},
	} {
		c := good()
		tc.change(&c)
		var e *task.Error
		if err := c.Validate(); !errors.As(err, &e) || !strings.HasPrefix(e.Field, tc.field) {
			t.Errorf("%s: got %v", tc.field, err)
		}
	}
	c := good()
	c.Listen, c.Insecure = "0.0.0.0:7070", true
	if err := c.Validate(); err != nil {
		t.Errorf("--insecure does not help: %v", err)
	}
}

// withOIDC adds a provider to a configuration.
func withOIDC(c *daemon.Config) {
	c.OIDC = []oidclogin.Provider{{Name: "corp", Issuer: "https://login.example.com", ClientID: "carillon"}}
}

func TestConfig_OIDC(t *testing.T) {
	for name, change := range map[string]func(*daemon.Config){
		"on loopback": func(*daemon.Config) {},
		"with an origin": func(c *daemon.Config) {
			c.Listen, c.Insecure, c.UIOrigin = "0.0.0.0:7070", true, "https://carillon.example.com"
		},
		"without the role": func(c *daemon.Config) { c.Listen, c.Insecure, c.Roles = "0.0.0.0:7070", true, []string{"executor"} },
	} {
		c := daemon.Defaults()
		c.EtcdEndpoints = []string{"http://127.0.0.1:2379"}
		withOIDC(&c)
		change(&c)
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// trio changes a configuration of three agents with an embedded etcd.
func trio(change func(*daemon.Config)) func(*daemon.Config) {
	return func(c *daemon.Config) {
		c.Name, c.Embedded, c.EtcdEndpoints = "n1", true, nil
		c.InitialCluster = map[string]string{"n1": "https://127.0.0.1:2380", "n2": "https://10.0.0.2:2380", "n3": "https://10.0.0.3:2380"}
		change(c)
	}
}

// plain changes the members' URLs to http.
func plain(change func(*daemon.Config)) func(*daemon.Config) {
	return func(c *daemon.Config) {
		change(c)
		for name, u := range c.InitialCluster {
			c.InitialCluster[name] = strings.Replace(u, "https:", "http:", 1)
		}
	}
}

// Verifies: G49
func TestConfig_PeersHaveCertificatesOrConsent(t *testing.T) {
	files := newPKI(t).node("n1")
	for name, change := range map[string]func(*daemon.Config){
		"the agents' own certificates": func(c *daemon.Config) { c.InitialCluster["n1"] = "https://10.0.0.1:2380" },
		"consent":                      plain(trio(func(c *daemon.Config) { c.InsecurePeers = true })),
		"certificates": func(c *daemon.Config) {
			c.EtcdPeerCert, c.EtcdPeerKey, c.EtcdPeerCA = files.Cert, files.Key, files.CA
			c.InitialCluster = map[string]string{"n1": "https://127.0.0.1:2380", "n2": "https://host-b:2380"}
		},
	} {
		c := daemon.Defaults()
		trio(change)(&c)
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// agent runs an agent with invalid settings and returns its error.
func agent(t *testing.T, env []string, args ...string) string {
	t.Helper()
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience) // in case the settings are accepted
	defer cancel()

	root := program()
	root.SetArgs(append([]string{"agent"}, args...))
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	err := root.ExecuteContext(ctx)
	if err == nil {
		t.Errorf("agent %v ran", args)
		return ""
	}
	return err.Error()
}

func TestSettings_FlagsWinOverTheEnvironmentWhichWinsOverTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(file, []byte("name: FILE\nlabels: {role: db}\nlease_ttl: 15s\netcd_endpoints: [http://127.0.0.1:1]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The name is invalid, and the message quotes it, so it shows which source takes precedence.
	for _, tc := range []struct {
		env  []string
		args []string
		want string
	}{
		{nil, []string{"--config", file}, `name: "FILE"`},
		{[]string{"CARILLON_NAME=ENV"}, []string{"--config", file}, `name: "ENV"`},
		{[]string{"CARILLON_NAME=ENV"}, []string{"--config", file, "--name", "FLAG"}, `name: "FLAG"`},
		{[]string{"CARILLON_SLOTS=many"}, []string{"--config", file}, `CARILLON_SLOTS: "many"`},
		{nil, []string{"--config", file, "--name", "n1", "--lease-ttl", "1s"}, "lease_ttl: 1s is not between 2s"},
		{[]string{"CARILLON_LOST_AFTER=20s"}, []string{"--config", file}, "CARILLON_LOST_AFTER: is not a setting of agents, but of the cluster"},
		{[]string{"CARILLON_INITIAL_CLUSTER=n1=http://a:1,n1=http://b:2"}, []string{"--config", file}, `n1 is listed twice`},
		{nil, []string{"--embedded", "--name", "n4", "--initial-cluster", "n1=https://127.0.0.1:1,n2=https://127.0.0.1:2"}, `does not contain this node, "n4": add ` + "`n4=https://HOST:PORT`" + `, and the same for the other nodes; an etcd that is embedded in agents serves only these agents`},
		{[]string{"CARILLON_LABEL=a=b,c"}, []string{"--config", file}, `CARILLON_LABEL`},
	} {
		t.Run(tc.want, func(t *testing.T) { // the environment is restored after each
			if said := agent(t, tc.env, tc.args...); !strings.Contains(said, tc.want) {
				t.Errorf("%v %v: said %q, want %q", tc.env, tc.args, said, tc.want)
			}
		})
	}
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'j'; c++ { // each anchor repeats the previous one nine times
		bomb += fmt.Sprintf("%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	for text, want := range map[string]string{
		"nmae: n1\n":                "nmae: is not a field",
		"lost_after: 2m\n":          "lost_after: is not a setting of agents, but of the cluster: take it out, and set it with `carillon cluster set --lost-after DURATION`",
		"name: n1\nname: n2\n":      "name",
		"lease_ttl: soon\n":         `lease_ttl: "soon" is not a duration`,
		"slots: many\n":             "slots",
		"labels: [a, b]\n":          "labels",
		"name: n1\n\tslots: 3\n":    "agent.yaml:2:1",
		"slots: 5\n---\nslots: 6\n": "only one document",
		"labels: &a {x: y}\n":       "anchor",
		"[a, b]\n":                  "mapping",
		bomb:                        "anchor",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if said := agent(t, nil, "--config", file); !strings.Contains(said, want) {
			t.Errorf("the file %q: said %q, want %q", text, said, want)
		}
	}
}

func TestDev_IsANodeOfOnesOwnAndKeepsItsData(t *testing.T) {
	t.Parallel() // mostly waits
	home := t.TempDir()
	start := func() *process {
		p := &process{t: t, name: "dev", port: freePort(t), env: []string{"HOME=" + home, "XDG_CONFIG_HOME=", "XDG_DATA_HOME="}}
		p.launch([]string{"dev", "--listen", fmt.Sprintf("127.0.0.1:%d", p.port)})
		p.waitReady()
		return p
	}
	connect := func(p *process) *client.Client {
		token, err := os.ReadFile(filepath.Join(home, ".config/carillon/token"))
		if err != nil {
			t.Fatal(err)
		}
		c, err := client.New(client.Config{Server: p.url(), Token: strings.TrimSpace(string(token))})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	p := start()
	defer func() { p.signal(syscall.SIGTERM) }()
	data := filepath.Join(home, ".local/share/carillon/dev")
	for _, path := range []string{data, filepath.Join(data, "etcd"), filepath.Join(data, "token"), filepath.Join(home, ".config/carillon/token")} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is open to others: %v", path, info.Mode())
		}
	}
	s := spec("hello", "echo hello")
	s.Schedule = task.Schedules{"@every 500ms"}
	if _, err := connect(p).Tasks.Create(t.Context(), "default", s); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGTERM)
	if strings.Contains(p.logs.String(), "ERROR") {
		t.Errorf("it complained:\n%s", p.logs)
	}
	p = start()
	eventually(t, func() error {
		runs, err := connect(p).Runs.ListByTask(t.Context(), "default", "hello", client.RunListOptions{State: task.Succeeded})
		if err == nil && len(runs) < 3 {
			err = fmt.Errorf("%d runs", len(runs))
		}
		return err
	})
	res, err := http.Get(p.url() + "/v1/tasks")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token the API answers %s", res.Status)
	}
}
