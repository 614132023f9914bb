package daemon_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/oidcprovider"
	"github.com/carillonhq/carillon/pkg/task"
)

// oidcSettings writes a file of settings with a provider, and a file with its client secret.
func oidcSettings(t *testing.T, issuer string) string {
	t.Helper()

	dir := t.TempDir()
	secret, settings := filepath.Join(dir, "secret"), filepath.Join(dir, "agent.yaml")
	text := fmt.Sprintf("oidc:\n- name: corp\n  issuer: %s\n  client_id: carillon\n  client_secret_file: %s\n", issuer, secret)
	for path, content := range map[string]string{secret: "swordfish\n", settings: text} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	return settings
}

// Nodes start while the provider is away, and one of them finishes the login that another one has begun.
func TestOIDC_PeopleSignInOnAnyNode(t *testing.T) {
	t.Parallel() // mostly waits
	provider := oidcprovider.New(t)
	var back atomic.Bool
	provider.Intercept = func(w http.ResponseWriter, _ *http.Request) bool {
		if !back.Load() {
			w.WriteHeader(http.StatusBadGateway)
		}
		return !back.Load()
	}

	c := newCluster(t, "--shards", "8", "--config", oidcSettings(t, provider.URL))
	c.start("n1")
	n2 := c.start("n2")
	c.start("n3")
	anyone := func(node string) *client.Client { return c.newClient(client.Config{Server: c.nodes[node].url()}) }

	list, err := anyone("n1").Logins.Providers(t.Context())
	if err != nil || len(list) != 1 || !strings.Contains(list[0].Problem, "the provider does not answer") {
		t.Fatalf("while the provider is away: %+v, %v", list, err)
	}

	back.Store(true)
	provider.Register(oidcprovider.Client{ID: "carillon", Secret: "swordfish", Redirects: []string{n2.url() + client.LoginCallbackPath("corp")}})
	if _, err := c.client("n1").Bindings.Put(t.Context(), task.Binding{Name: "ops", Role: access.RoleViewer, Subjects: []string{"group:corp/ops"}, Cluster: true}, client.Writing{}); err != nil {
		t.Fatal(err)
	}

	// n1 leaves the provider alone for a while. The others have not asked it yet.
	login, err := anyone("n2").Logins.BeginWeb(t.Context(), client.WebLoginRequest{Provider: "corp"})
	if err != nil {
		t.Fatal(err)
	}
	answer := provider.SignIn(t, login.URL, oidcprovider.User{Subject: "1", Groups: []string{"ops"}}).Query()

	session, err := anyone("n3").Logins.FinishWeb(t.Context(), "corp", login.State, answer)
	if err != nil {
		t.Fatal(err)
	}
	me, err := c.newClient(client.Config{Server: c.nodes["n3"].url(), Token: session.Secret}).Access.WhoAmI(t.Context())
	if err != nil || me.Subject != "user:corp/1" || !me.AllNamespaces {
		t.Errorf("signed in as %+v, %v", me, err)
	}

	for _, f := range c.judge(check.Options{}).Violations {
		t.Errorf("%s", f)
	}
}

func TestCheckConfig_ReadsClientSecrets(t *testing.T) {
	file := oidcSettings(t, "https://login.example.com")
	common := []string{"--config", file, "--embedded", "--data-dir", t.TempDir()}

	code, out, errs := checkConfig(t, common...)
	if code != 0 || strings.Contains(out, "swordfish") || !strings.Contains(out, "login.example.com") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}

	if err := os.Chmod(filepath.Join(filepath.Dir(file), "secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	code, _, errs = checkConfig(t, common...)
	if code != 2 || !strings.Contains(errs, "oidc[0].client_secret_file") {
		t.Errorf("with a secret that all can read: exit %d: %s", code, errs)
	}
}
