package daemon_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/internal/test/recorder"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// securedEtcd is an etcd in a separate process that accepts only TLS, requires certificates, and restricts users to
// their roles. Its tokens expire after five seconds, even if they are in use.
type securedEtcd struct {
	t        *testing.T
	pki      *pki // signs the certificates of etcd and of its clients
	api      *pki // signs the certificates of the agents and of their clients
	dir      string
	port     int
	peer     int
	cmd      *exec.Cmd
	gone     chan struct{}
	logs     *logBuffer
	password string // the password file of the agents
}

const etcdUser = "carillon"

func newSecuredEtcd(t *testing.T) *securedEtcd {
	t.Helper()
	p := newPKI(t)
	s := &securedEtcd{t: t, pki: p, api: newPKI(t), dir: t.TempDir(), port: freePort(t), peer: freePort(t)}
	s.password = filepath.Join(s.dir, "password")
	p.node("etcd")
	s.signer()
	s.start()
	t.Cleanup(s.stop)
	s.setUp()
	return s
}

// signer creates the key pair with which etcd signs its tokens.
func (s *securedEtcd) signer() {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		s.t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		s.t.Fatal(err)
	}
	for name, b := range map[string]*pem.Block{"token-key": {Type: "EC PRIVATE KEY", Bytes: private}, "token-pub": {Type: "PUBLIC KEY", Bytes: public}} {
		if err := os.WriteFile(filepath.Join(s.dir, name), pem.EncodeToMemory(b), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *securedEtcd) endpoint() string { return fmt.Sprintf("https://127.0.0.1:%d", s.port) }

func (s *securedEtcd) start() {
	s.t.Helper()
	program, err := kvtest.EtcdPath()
	if err != nil {
		s.t.Fatal(err)
	}
	f := s.pki.files("etcd")
	peer := fmt.Sprintf("http://127.0.0.1:%d", s.peer)
	s.cmd = exec.Command(program, "--name", "e1", "--data-dir", filepath.Join(s.dir, "data"),
		"--listen-client-urls", s.endpoint(), "--advertise-client-urls", s.endpoint(),
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "e1="+peer,
		"--cert-file", f.Cert, "--key-file", f.Key, "--trusted-ca-file", f.CA, "--client-cert-auth",
		"--auth-token", fmt.Sprintf("jwt,pub-key=%[1]s/token-pub,priv-key=%[1]s/token-key,sign-method=ES256,ttl=5s", s.dir), "--bcrypt-cost", "4",
		"--heartbeat-interval", "10", "--election-timeout", "100", "--log-level", "error")
	s.logs = &logBuffer{}
	s.cmd.Stdout, s.cmd.Stderr = s.logs, s.logs
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.gone = make(chan struct{})
	go func(cmd *exec.Cmd, gone chan struct{}) { _ = cmd.Wait(); close(gone) }(s.cmd, s.gone)
}

// stop kills the etcd. A graceful stop takes seconds while there are watches.
func (s *securedEtcd) stop() {
	_ = s.cmd.Process.Kill()
	<-s.gone
}

// dial returns a client with a node's certificate. It is closed at the end of the test.
func (s *securedEtcd) dial(cfg kv.Config) *kv.Client {
	s.t.Helper()
	files, err := certs.Open(s.pki.files("etcd"))
	if err != nil {
		s.t.Fatal(err)
	}
	cfg.Endpoints, cfg.TLS = []string{s.endpoint()}, files.Client
	c, err := kv.Dial(s.t.Context(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// setUp creates the users as docs/how-to/tls.md describes.
func (s *securedEtcd) setUp() {
	s.t.Helper()
	c, ctx := s.dial(kv.Config{}), s.t.Context()
	eventually(s.t, func() error { _, err := c.Get(ctx, "x"); return err })
	must := func(_ any, err error) {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	must(c.UserAdd(ctx, "root", "root's"))
	must(c.UserGrantRole(ctx, "root", "root"))
	must(c.RoleAdd(ctx, etcdUser))
	must(c.RoleGrantPermission(ctx, etcdUser, "/carillon/", clientv3.GetPrefixRangeEnd("/carillon/"), clientv3.PermissionType(clientv3.PermReadWrite)))
	must(c.UserAdd(ctx, etcdUser, "first"))
	must(c.UserGrantRole(ctx, etcdUser, etcdUser))
	must(c.AuthEnable(ctx))
	s.setPassword("first")
}

func (s *securedEtcd) setPassword(password string) {
	s.t.Helper()
	if err := os.WriteFile(s.password, []byte(password+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// newSecuredCluster returns a cluster with TLS and certificates everywhere, and an etcd with users.
func newSecuredCluster(t *testing.T, flags ...string) (*cluster, *securedEtcd) {
	t.Helper()
	s := newSecuredEtcd(t)
	keys, err := record.NewKeys(record.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	caller, err := certs.Open(s.api.client("caller"))
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, endpoint: s.endpoint(), caller: caller, dir: t.TempDir(), keys: keys, nodes: map[string]*process{}, flags: flags}
	observer := s.dial(kv.Config{Username: etcdUser, PasswordFile: s.password})
	if c.recorder, err = recorder.Start(context.WithoutCancel(t.Context()), observer, keys); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.recorder.Stop(context.WithoutCancel(t.Context())) })
	t.Cleanup(c.stopAll)
	return c, s
}

// startSecured starts an agent with its own certificates.
func (c *cluster) startSecured(s *securedEtcd, name string) {
	c.t.Helper()
	f, e := s.api.node(name), s.pki.client(name)
	c.start(name, "--tls-cert", f.Cert, "--tls-key", f.Key, "--tls-ca", f.CA, "--tls-client-auth", "require",
		"--etcd-cert", e.Cert, "--etcd-key", e.Key, "--etcd-ca", e.CA, "--etcd-user", etcdUser, "--etcd-password-file", s.password)
}
