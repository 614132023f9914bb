package settings

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestServer_IsTheHostsSocketForWhoMayOpenIt(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "api.sock")
	server := func(edit func(*testEnv)) string {
		t.Helper()
		d := newTestEnv()
		d.hostSocketPath = socket

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
