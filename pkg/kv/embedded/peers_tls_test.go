package embedded_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
)

// secureTrio is a trio with TLS. Its members have the hosts 127.0.0.1, 127.0.0.2 and 127.0.0.3.
type secureTrio struct {
	*trio
	ca *certs.Authority
}

func newSecureTrio(t *testing.T) *secureTrio {
	t.Helper()
	tr := &secureTrio{trio: newTrio(t)}
	tr.newCA()

	for i, name := range []string{"a", "b", "c"} {
		tr.settle(name, fmt.Sprintf("127.0.0.%d", i+1))
	}

	return tr
}

// newCA creates a CA that signs from now on and that all members trust.
func (s *secureTrio) newCA() {
	s.t.Helper()
	ca, pair, err := certs.NewAuthority(certs.Request{Kind: certs.KindAuthority, Name: "ca", For: time.Hour * 24, Now: time.Now()})
	if err == nil {
		err = pair.Write(s.dir, "ca")
	}

	if err != nil {
		s.t.Fatal(err)
	}

	s.ca = ca
}

// settle sets the URL of a member, and issues the certificate for it.
func (s *secureTrio) settle(name, ip string) {
	s.t.Helper()
	u, err := url.Parse(peerURL(s.t))
	if err != nil {
		s.t.Fatal(err)
	}

	s.members[name] = "https://" + net.JoinHostPort(ip, u.Port())
	s.sign(certs.KindNode, name, ip)
}

func (s *secureTrio) sign(kind certs.Kind, name string, ips ...string) {
	s.t.Helper()
	r := certs.Request{Kind: kind, Name: name, For: 24 * time.Hour, Now: time.Now()}
	for _, ip := range ips {
		r.IPs = append(r.IPs, net.ParseIP(ip))
	}

	pair, err := s.ca.Issue(r)
	if err == nil {
		err = pair.Write(s.dir, name)
	}

	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *secureTrio) config(name string, join bool) embedded.Config {
	cfg := s.trio.config(name, join)
	cfg.Dir = filepath.Join(s.dir, "data-"+name)
	cfg.Peers.CertFile, cfg.Peers.KeyFile = certs.Paths(s.dir, name)
	cfg.Peers.CAFile, _ = certs.Paths(s.dir, "ca")

	return cfg
}

func (s *secureTrio) startAll(names ...string) {
	s.t.Helper()
	errs := make(chan error, len(names))

	for _, name := range names {
		go func() { _, err := s.begin(s.config(name, false)); errs <- err }()
	}

	for range names {
		if err := <-errs; err != nil {
			s.t.Fatal(err)
		}
	}
}

// caller returns a client of the peer port with the certificate of name, or without one if name is empty.
func (s *secureTrio) caller(name string) *http.Client {
	s.t.Helper()
	ca, _ := certs.Paths(s.dir, "ca")

	cert, key := "", ""
	if name != "" {
		cert, key = certs.Paths(s.dir, name)
	}

	config, err := certs.Client(ca, cert, key)
	if err != nil {
		s.t.Fatal(err)
	}

	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}

	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

// proposal returns the request by which a follower forwards a write of a key to the leader. Raft requires no other
// authentication than that of the connection.
func (s *secureTrio) proposal(to, key string) *http.Request {
	s.t.Helper()
	list, err := s.running["a"].Client().MemberList(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}

	var from, target uint64
	for _, m := range list.Members {
		if m.Name == to {
			target = m.ID
		} else {
			from = m.ID
		}
	}

	request, err := proto.Marshal(&pb.InternalRaftRequest{
		Header: &pb.RequestHeader{ID: uint64(time.Now().UnixNano())}, Put: &pb.PutRequest{Key: []byte(key), Value: []byte("stolen")},
	})
	if err != nil {
		s.t.Fatal(err)
	}

	message, err := proto.Marshal(&raftpb.Message{
		Type: raftpb.MsgProp.Enum(), From: &from, To: &target, Entries: []*raftpb.Entry{{Data: request}},
	})
	if err != nil {
		s.t.Fatal(err)
	}

	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.members[to]+"/raft", bytes.NewReader(message))
	if err != nil {
		s.t.Fatal(err)
	}

	for k, v := range map[string]string{
		"Content-Type": "application/protobuf", "X-Server-From": fmt.Sprintf("%x", from), "X-Raft-To": fmt.Sprintf("%x", target),
		"X-Server-Version": "3.6.0", "X-Min-Cluster-Version": "3.0.0", "X-Etcd-Cluster-ID": fmt.Sprintf("%x", list.Header.ClusterId),
	} {
		req.Header.Set(k, v)
	}

	return req
}

// Anybody who can send messages to raft can write any key, including the token of an administrator. Therefore the
// peer port accepts only certificates of members, and not every certificate of the CA, which also issues those of
// users.
//
// Verifies: G49
func TestPeers_TakeMembersCertificatesOnly(t *testing.T) {
	if testing.Short() {
		t.Skip("three members of an etcd: make test-cluster")
	}

	t.Parallel()
	tr := newSecureTrio(t)
	tr.startAll("a", "b", "c")
	tr.sign(certs.KindClient, "ann")
	tr.sign(certs.KindNode, "web7", "127.0.0.7")
	a := tr.running["a"].Client()

	status := func(caller string, req *http.Request) int {
		t.Helper()
		res, err := tr.caller(caller).Do(req)
		if err != nil {
			t.Fatalf("%s: %v", caller, err)
		}

		defer res.Body.Close()

		return res.StatusCode
	}

	members := func() *http.Request {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, tr.members["a"]+"/members", nil)
		if err != nil {
			t.Fatal(err)
		}

		return req
	}

	written := func(key string) bool {
		t.Helper()
		r, err := a.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}

		return len(r.Kvs) > 0
	}

	// With the certificate of a member the attack succeeds. Otherwise this test could not fail.
	eventually(t, "a member's proposal is taken", func() bool {
		return status("a", tr.proposal("a", "/by-a-member")) == http.StatusNoContent && written("/by-a-member")
	})

	if got := status("ann", members()); got != http.StatusUnauthorized {
		t.Errorf("a person's certificate lists the members: %d", got)
	}

	for _, caller := range []string{"ann", "web7"} {
		if got := status(caller, tr.proposal("a", "/by-"+caller)); got != http.StatusUnauthorized {
			t.Errorf("%s, which is no member, sends raft a message: %d", caller, got)
		}
	}

	if res, err := tr.caller("").Do(members()); err == nil {
		res.Body.Close()
		t.Error("a caller without a certificate gets an answer")
	}

	// A removed member still has its certificate, but must not be accepted any more.
	remove(t, a, "c")
	within(t, time.Minute, "the removed member's end", tr.running["c"].Done())

	if err := tr.running["c"].Err(); err == nil || !strings.Contains(err.Error(), "has been removed") {
		t.Errorf("the removed member ended with %v", err)
	}

	tr.stop("c")
	eventually(t, "a removed member's proposal is refused", func() bool {
		return status("c", tr.proposal("a", "/by-a-former-member")) == http.StatusUnauthorized
	})

	for _, key := range []string{"/by-ann", "/by-web7", "/by-a-former-member"} {
		if written(key) {
			t.Errorf("%s was written", key)
		}
	}

	// The members that are running accept its replacement on another host.
	tr.settle("c", "127.0.0.4")
	eventually(t, "c can be added", func() bool {
		_, err := a.MemberAddAsLearner(t.Context(), []string{tr.members["c"]})
		return err == nil || strings.Contains(err.Error(), "already exists") // an earlier attempt was applied, and its answer was lost
	})

	next := tr.config("c", true)
	next.Dir += "-again"

	c, err := tr.begin(next)
	if err != nil {
		t.Fatal(err)
	}

	tr.write("c", "k", "v")

	if got := read(t, c.Client(), "k"); got != "v" {
		t.Error(got)
	}

	if tr.logs.FilterMessage("refused a connection to the peer port").Len() == 0 {
		t.Error("refused callers are not logged")
	}
}

// Members with certificates use TLS with each other, and reject every certificate that another CA has signed.
// Compaction runs on all of them.
//
// Verifies: G49
func TestPeers_TrustTheirCAAndNobodyElse(t *testing.T) {
	t.Parallel()
	tr := newSecureTrio(t)
	config := func(name string) embedded.Config {
		cfg := tr.config(name, false)
		cfg.CompactionInterval, cfg.CompactionRetention = 50*time.Millisecond, 5
		return cfg
	}

	errs := make(chan error, 2)

	for _, n := range []string{"a", "b"} {
		go func() { _, err := tr.begin(config(n)); errs <- err }()
	}

	for range 2 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}

	for range 20 {
		tr.write("a", "k", "v")
	}

	for _, n := range []string{"a", "b"} {
		eventually(t, "old revisions are compacted on "+n, func() bool {
			_, err := tr.running[n].Client().Get(t.Context(), "k", clientv3.WithRev(2))
			return errors.Is(err, rpctypes.ErrCompacted)
		})
	}

	strange := &secureTrio{trio: &trio{t: t, dir: t.TempDir(), members: tr.members}}
	strange.newCA()
	strange.sign(certs.KindNode, "c", "127.0.0.3")
	stranger := config("c")
	stranger.Dir = tr.path("stranger")
	stranger.Peers.CertFile, stranger.Peers.KeyFile = certs.Paths(strange.dir, "c")
	stranger.Peers.CAFile, _ = certs.Paths(strange.dir, "ca")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()

	if s, err := embedded.Start(ctx, stranger); err == nil {
		_ = s.Close()
		t.Error("a member that another CA has signed is in")
	}

	if _, err := tr.begin(config("c")); err != nil {
		t.Errorf("the right one is not: %v", err)
	}
}
