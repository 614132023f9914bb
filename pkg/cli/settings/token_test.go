package settings

import (
	"os"
	"path/filepath"
	"testing"
)

func TestToken_OfTheHostsNodeIsForThatNodeOnly(t *testing.T) {
	dir := t.TempDir()
	file := func(name, token string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}

		if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}

		return path
	}

	node, users := file("node", "of-the-node"), file("home/carillon/token", "of-the-user")
	for _, tc := range []struct{ server, variable, flag, config, want string }{
		{want: "of-the-node"},
		{server: "http://localhost:7171", want: "of-the-node"},
		{server: "https://[::1]:7070", want: "of-the-node"},
		{server: "unix:///run/carillon/api.sock", want: ""},
		{server: "http://10.0.0.1:7070", want: ""},
		{server: "http://localhost.example.org:7070", want: ""},
		{server: "://", want: ""},
		{variable: "of-the-variable", want: "of-the-variable"},
		{flag: users, want: "of-the-user"},
		{config: filepath.Join(dir, "home"), want: "of-the-user"},
	} {
		d := newTestEnv()
		d.hostTokenFile, d.ServerFlag, d.TokenFileFlag = node, tc.server, tc.flag
		d.env["CARILLON_TOKEN"], d.env["XDG_CONFIG_HOME"] = tc.variable, tc.config
		if got, err := d.token(); got != tc.want || err != nil {
			t.Errorf("%+v: token %q, %v", tc, got, err)
		}
	}

	d := newTestEnv()
	d.hostTokenFile = filepath.Join(dir, "none")
	if got, err := d.token(); got != "" || err != nil {
		t.Errorf("without one: %q, %v", got, err)
	}
}
