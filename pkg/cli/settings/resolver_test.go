package settings

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Verifies: G39
func TestServer_IsTheHostsSocketForWhoMayOpenIt(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "api.sock")
	server := func(edit func(*testEnv)) string {
		t.Helper()
		d := newTestEnv()
		d.HostSocketPath = socket

		if edit != nil {
			edit(d)
		}

		s, err := d.Settings()
		if err != nil {
			t.Fatal(err)
		}

		return d.ServerSetting(s).Value
	}

	if got := server(nil); got != "" {
		t.Errorf("without a socket: %s", got)
	}

	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	if got := server(nil); got != "" {
		t.Errorf("with a file in its place: %s", got)
	}

	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}

	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}

	defer l.Close()

	if got := server(nil); got != "unix://"+socket {
		t.Errorf("with a socket: %s", got)
	}

	if got := server(func(d *testEnv) { d.ServerFlag = "http://127.0.0.1:1" }); got != "http://127.0.0.1:1" {
		t.Errorf("with --server: %s", got)
	}

	if got := server(func(d *testEnv) { d.env["CARILLON_SERVER"] = "https://a" }); got != "https://a" {
		t.Errorf("with CARILLON_SERVER: %s", got)
	}
}

// The package, the daemon's settings and the command line agree on the socket.
func TestServer_SocketIsThatOfThePackage(t *testing.T) {
	for file, line := range map[string]string{"carillon.socket": "ListenStream=" + HostSocket, "agent.yaml": "socket: " + HostSocket} {
		b, err := os.ReadFile(filepath.Join("..", "..", "..", "scripts", "deb", file))
		if err != nil {
			t.Fatal(err)
		}

		if !strings.Contains(string(b), "\n"+line+"\n") {
			t.Errorf("%s does not have %s", file, line)
		}
	}
}

// Verifies: G39
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

// The files of a user are where other programs of the system have theirs.
func TestUsualDir_IsThatOfTheSystem(t *testing.T) {
	for _, c := range []struct{ goos, config, cache string }{
		{"linux", "HOME .config", "HOME .cache"},
		{"darwin", "HOME Library/Application Support", "HOME Library/Caches"},
		{"windows", "AppData ", "LocalAppData "},
	} {
		for dir, want := range map[string]string{ConfigDir: c.config, CacheDir: c.cache} {
			if variable, below := usualDir(c.goos, dir); variable+" "+below != want {
				t.Errorf("%s of %s: %s %s, want %s", dir, c.goos, variable, below, want)
			}
		}
	}

	// On this system, they are where package os has them.
	r := Resolver{Env: os.Getenv}
	for dir, where := range map[string]func() (string, error){ConfigDir: os.UserConfigDir, CacheDir: os.UserCacheDir} {
		if want, err := where(); err != nil || r.UserDirFile(dir, "x") != filepath.Join(want, "carillon", "x") {
			t.Errorf("%s: %s, want it in %s (%v)", dir, r.UserDirFile(dir, "x"), want, err)
		}
	}
}
