package client_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// The test binary acts as the server of another user: see runAsServer.
const asServer = "CARILLON_TEST_LISTEN"

// runAsServer is the main function of the other user's process: it accepts connections at an address, and
// prints what arrives. It gives up after a minute.
func runAsServer(address string) {
	network, where, _ := strings.Cut(address, " ")
	l, err := net.Listen(network, where)
	if err != nil {
		fmt.Println("cannot listen:", err)
		os.Exit(1)
	}

	if network == "unix" {
		_ = os.Chmod(where, 0o666)
	}

	time.AfterFunc(time.Minute, func() { os.Exit(0) })
	fmt.Println("ready", l.Addr())

	for {
		c, err := l.Accept()
		if err != nil {
			os.Exit(0)
		}

		b := make([]byte, 64<<10)
		n, _ := c.Read(b)
		fmt.Printf("got %q\n", b[:n])
		_ = c.Close()
	}
}

// another starts a server as user 65534 and returns its address. told returns everything it has printed, once
// it has ended.
func another(t *testing.T, listen string) (address string, told func() string) {
	t.Helper()

	if os.Geteuid() != 0 {
		t.Skip("only root can start a program of another user")
	}

	// Others may execute the test binary, but not enter its directory.
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}

	dir, err := os.MkdirTemp("", "listener")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	bin := filepath.Join(dir, "server")
	if err := errors.Join(os.Chmod(dir, 0o711), os.WriteFile(bin, exe, 0o755)); err != nil {
		t.Fatal(err)
	}

	cmd := exec.Command(bin)
	cmd.Env = []string{asServer + "=" + listen}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}

	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	var line strings.Builder
	for b := make([]byte, 1); !strings.HasSuffix(line.String(), "\n"); {
		if _, err := out.Read(b); err != nil {
			t.Fatalf("the other user's server: %q, %v", line.String(), err)
		}
		line.Write(b)
	}

	address, ok := strings.CutPrefix(strings.TrimSpace(line.String()), "ready ")
	if !ok {
		t.Fatal(line.String())
	}

	return address, func() string {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		var all strings.Builder

		for b := make([]byte, 4096); ; {
			n, err := out.Read(b)
			all.Write(b[:n])
			if err != nil {
				return all.String()
			}
		}
	}
}

const theToken = "carillon_abcdefghijklmnop_secretsecretsecretsecret"

// The attack: while the daemon is not running, another user of the host listens on its port to obtain a token.
//
// Verifies: G39
func TestListener_OfAnotherUserGetsNoToken(t *testing.T) {
	for _, listen := range []string{"tcp4 127.0.0.1:0", "tcp4 0.0.0.0:0", "tcp [::]:0", "tcp6 [::1]:0"} {
		t.Run(listen, func(t *testing.T) {
			address, told := another(t, listen)
			_, port, _ := net.SplitHostPort(address)

			host := "127.0.0.1"
			if strings.HasPrefix(listen, "tcp6") {
				host = "[::1]"
			}

			call := func(cfg client.Config) error {
				cfg.Server, cfg.Timeout = "http://"+host+":"+port, 10*time.Second
				c, err := client.New(cfg)
				if err != nil {
					t.Fatal(err)
				}

				return read(c, t.Context())
			}

			err := call(client.Config{Token: theToken})
			var e *client.Error
			if !errors.As(err, &e) || e.Code != client.CodeUntrusted || !strings.Contains(e.Message, "belongs to user 65534") || errors.Is(err, task.ErrUnavailable) {
				t.Errorf("with a token: %v", err)
			}

			_ = call(client.Config{})                                                 // it sends no token
			_ = call(client.Config{Token: "of-the-user", TrustedUsers: []int{65534}}) // the server has the token already
			_ = call(client.Config{Token: "risked", Insecure: true})

			all := told()
			if strings.Contains(all, theToken) {
				t.Errorf("the other user got: %s", all)
			}

			if strings.Count(all, "GET /v1/") != 3 || !strings.Contains(all, "Bearer of-the-user") || !strings.Contains(all, "Bearer risked") {
				t.Errorf("what should arrive: %s", all)
			}
		})
	}
}

func TestListener_OfTheCallersOwnGetsTheToken(t *testing.T) {
	var got atomic.Value
	server := serve(t, func(_ http.ResponseWriter, r *http.Request) { got.Store(r.Header.Get("Authorization")) })

	c, err := client.New(client.Config{Server: server, Token: theToken})
	if err != nil {
		t.Fatal(err)
	}

	_ = read(c, t.Context())

	if got.Load() != "Bearer "+theToken {
		t.Errorf("got %v", got.Load())
	}
}

// A server that ends while its owner is looked up counts as unreachable, like one that refuses the connection.
// It does not count as untrusted, and a write to it was certainly not executed.
func TestListener_ThatEndsMeanwhileIsAway(t *testing.T) {
	t.Parallel()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	c, err := client.New(client.Config{Server: "http://" + listener.Addr().String(), Token: theToken})
	if err != nil {
		t.Fatal(err)
	}

	// The client looks the owner up when the connection is open.
	ends := &httptrace.ClientTrace{ConnectDone: func(_, _ string, err error) {
		if err := errors.Join(err, listener.Close()); err != nil {
			t.Error(err)
		}
	}}

	var e *client.Error
	if err := c.Tasks.Delete(httptrace.WithClientTrace(t.Context(), ends), "default", "a", 0); !errors.As(err, &e) || e.Code != client.CodeUnavailable {
		t.Errorf("a write: %v", err)
	}
}

func TestSocket_IsServedAndChecked(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "api.sock")

	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}

	var got atomic.Value
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got.Store(r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write([]byte("output"))
	})}

	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })

	c, err := client.New(client.Config{Server: "unix://" + socket, Token: theToken})
	if err != nil {
		t.Fatal(err)
	}

	r, err := c.Logs.Follow(t.Context(), "default", "a", "20261120T220500.000Z-aaaa", client.LogOptions{})
	if err != nil {
		t.Fatal(err)
	}

	defer r.Close()

	b := make([]byte, 6)
	if _, err := r.Read(b); string(b) != "output" || got.Load() != "Bearer "+theToken {
		t.Errorf("read %q, %v with %v", b, err, got.Load())
	}
}

// Verifies: G39
func TestSocket_OfAnotherUserGetsNothing(t *testing.T) {
	dir, err := os.MkdirTemp("", "socket")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = os.RemoveAll(dir) })

	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}

	address, told := another(t, "unix "+filepath.Join(dir, "api.sock"))

	for _, token := range []string{theToken, ""} {
		c, err := client.New(client.Config{Server: "unix://" + address, Token: token, Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}

		var e *client.Error
		if err := read(c, t.Context()); !errors.As(err, &e) || e.Code != client.CodeUntrusted {
			t.Errorf("got %v", err)
		}
	}

	if all := told(); strings.Contains(all, "GET") || strings.Contains(all, "carillon") {
		t.Errorf("the other user got: %s", all)
	}
}

func TestToken_GoesOutInClearTextOnlyIfThatIsAccepted(t *testing.T) {
	for _, server := range []string{"http://10.0.0.1:7070", "http://example.org", "http://127.0.0.1.example.org:7070"} {
		if _, err := client.New(client.Config{Server: server, Token: theToken}); !errors.Is(err, task.ErrInvalid) || !strings.Contains(err.Error(), "use https://") {
			t.Errorf("%s: %v", server, err)
		}

		for _, cfg := range []client.Config{{Server: server}, {Server: server, Token: theToken, Insecure: true}} {
			if _, err := client.New(cfg); err != nil {
				t.Errorf("%+v: %v", cfg, err)
			}
		}
	}
}

func TestToken_GoesToNoProxyByHTTP(t *testing.T) {
	var proxied atomic.Int32
	proxy := serve(t, func(http.ResponseWriter, *http.Request) { proxied.Add(1) })
	t.Setenv("HTTP_PROXY", proxy)
	t.Setenv("http_proxy", proxy)

	c, err := client.New(client.Config{Server: "http://nowhere.invalid:1", Token: theToken, Insecure: true, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}

	if err := read(c, t.Context()); err == nil || proxied.Load() > 0 {
		t.Errorf("%v; %d calls by the proxy", err, proxied.Load())
	}
}

func TestToken_IsNotSentWhereARedirectLeads(t *testing.T) {
	var elsewhere atomic.Int32
	to := serve(t, func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, to+r.URL.Path, http.StatusTemporaryRedirect)
	})

	c, err := client.New(client.Config{Server: server, Token: theToken})
	if err != nil {
		t.Fatal(err)
	}

	if err := read(c, t.Context()); err == nil || elsewhere.Load() > 0 {
		t.Errorf("%v; %d calls elsewhere", err, elsewhere.Load())
	}
}
