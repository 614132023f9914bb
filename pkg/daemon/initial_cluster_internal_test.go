package daemon

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/peercerts"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
)

// listeningOn returns the addresses on which this host listens at port, as the kernel reports them.
func listeningOn(t *testing.T, port int) (found []netip.Addr) {
	t.Helper()
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue // a host without IPv6
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) < 4 || fields[3] != "0A" { // not listening, or the header
				continue
			}
			addr, at, _ := strings.Cut(fields[1], ":")
			if n, err := strconv.ParseUint(at, 16, 16); err != nil || int(n) != port {
				continue
			}
			raw, err := hex.DecodeString(addr)
			if err != nil {
				t.Fatal(err)
			}
			for word := 0; word < len(raw); word += 4 { // each word has the host's byte order, here little-endian
				raw[word], raw[word+1], raw[word+2], raw[word+3] = raw[word+3], raw[word+2], raw[word+1], raw[word]
			}
			ip, _ := netip.AddrFromSlice(raw)
			found = append(found, ip.Unmap())
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return found
}

func unusedPort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// The peer listener must bind the address that Validate has checked. A name that seems to be a loopback name must
// not be served on all interfaces.
//
// Verifies: G49
func TestConfig_JudgesTheAddressThatPeersListenOn(t *testing.T) {
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "::1", "localhost", "0.0.0.0", hostname} {
		for _, insecure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s insecure_peers=%v", host, insecure), func(t *testing.T) {
				if host == "::1" {
					l, err := net.Listen("tcp", "[::1]:0")
					if err != nil {
						t.Skip("this host has no IPv6")
					}
					l.Close()
				}
				scheme, port := "https", unusedPort(t)
				if insecure {
					scheme = "http"
				}
				cfg := Defaults()
				cfg.DataDir, cfg.Name, cfg.Embedded, cfg.InsecurePeers = t.TempDir(), "n1", true, insecure
				cfg.InitialCluster = map[string]string{
					"n1": scheme + "://" + net.JoinHostPort(host, strconv.Itoa(port)), "n2": fmt.Sprintf("%s://127.0.0.1:%d", scheme, unusedPort(t)),
				}
				if err := cfg.Validate(); err != nil {
					if host != hostname { // some hosts resolve their own name to loopback
						t.Error(err)
					}
					return
				}
				if !insecure {
					if err := peercerts.MakeCA(cfg.DataDir, time.Now()); err != nil {
						t.Fatal(err)
					}
					if _, _, err := peercerts.Ensure(cfg.DataDir, peercerts.Member{Name: "n1", Host: host}, time.Now()); err != nil {
						t.Fatal(err)
					}
					files := peercerts.Files(cfg.DataDir)
					cfg.EtcdPeerCert, cfg.EtcdPeerKey, cfg.EtcdPeerCA = files.Cert, files.Key, files.CA
				}
				u, err := url.Parse(cfg.EtcdListenPeer)
				if err != nil {
					t.Fatal(err)
				}
				judged, err := netip.ParseAddr(u.Hostname())
				if err != nil {
					t.Fatalf("Validate names no address to listen on: %v", err)
				}

				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					if s, err := embedded.Start(ctx, embedded.Config{Dir: t.TempDir(), Name: "n1", Peers: cfg.peersConfig()}); err == nil {
						_ = s.Close()
					}
				}()
				defer func() { cancel(); <-ended }()

				deadline := time.Now().Add(20 * time.Second)
				var bound []netip.Addr
				for len(bound) == 0 && time.Now().Before(deadline) {
					bound = listeningOn(t, port)
					time.Sleep(5 * time.Millisecond)
				}
				// Go binds :: for 0.0.0.0. Both are all interfaces.
				if len(bound) != 1 || bound[0] != judged && !(bound[0].IsUnspecified() && judged.IsUnspecified()) {
					t.Fatalf("Validate judged %s, and the listener is on %v", judged, bound)
				}
				if host == "localhost" && !bound[0].IsLoopback() {
					t.Errorf("localhost is %s", bound[0])
				}
			})
		}
	}
}

// The API's listener binds the address that Validate has checked, whatever address the resolver returns for
// localhost.
func TestConfig_ListenOnLocalhostIsAnAddress(t *testing.T) {
	cfg := Defaults()
	cfg.DataDir, cfg.Embedded, cfg.Listen = t.TempDir(), true, "localhost:7070"
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	if cfg.Listen != "127.0.0.1:7070" {
		t.Errorf("the API listens on %s", cfg.Listen)
	}
}
