package httpaction

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/policy"
	"github.com/carillonhq/carillon/pkg/task"
)

// fakeResolver returns a resolver that asks answer for the IPv4 addresses of each name.
func fakeResolver(answer func(name string) []string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go serveDNS(server, answer)
		return client, nil
	}}
}

// serveDNS answers the queries of one connection, in the format of DNS over TCP.
func serveDNS(c net.Conn, answer func(name string) []string) {
	defer c.Close()

	for {
		var size uint16
		if binary.Read(c, binary.BigEndian, &size) != nil {
			return
		}

		q := make([]byte, size)
		if _, err := io.ReadFull(c, q); err != nil {
			return
		}

		var labels []string
		end := 12
		for q[end] != 0 {
			labels = append(labels, string(q[end+1:end+1+int(q[end])]))
			end += 1 + int(q[end])
		}

		var addrs []string
		if kind := binary.BigEndian.Uint16(q[end+1:]); kind == 1 {
			addrs = answer(strings.Join(labels, "."))
		}

		// The header and the question, then the answers, which point to the name in the question.
		b := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, byte(len(addrs)), 0, 0, 0, 0}, q[12:end+5]...)
		for _, a := range addrs {
			b = append(b, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
			b = append(b, netip.MustParseAddr(a).AsSlice()...)
		}

		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)); err != nil {
			return
		}
	}
}

func TestGuard_RefusesAddresses(t *testing.T) {
	p := newProbe(t)
	port := p.ln.Addr().(*net.TCPAddr).Port
	own := netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(port))
	resolver := fakeResolver(func(name string) []string {
		switch name {
		case "metadata.test":
			return []string{"169.254.169.254"}
		case "etcd.test":
			return []string{"127.0.0.1"}
		case "probe.test":
			return []string{"127.0.0.1"}
		}
		return nil
	})

	tests := map[string]struct {
		change func(*Config)
		url    string
		reason string
		want   string // a part of the message
	}{
		"metadata":                {nil, "http://169.254.169.254/latest", task.ReasonPolicy, "never allowed"},
		"metadata by name":        {nil, "http://metadata.test/latest", task.ReasonPolicy, "never allowed"},
		"mapped":                  {nil, "http://[::ffff:169.254.169.254]/latest", task.ReasonPolicy, "never allowed"},
		"NAT64":                   {nil, "http://[64:ff9b::a9fe:a9fe]/latest", task.ReasonPolicy, "never allowed"},
		"zone":                    {nil, "http://[fe80::1%25lo]/latest", task.ReasonURL, "not valid"},
		"unspecified":             {nil, "http://0.0.0.0:" + p.port() + "/ok", task.ReasonPolicy, "never allowed"},
		"decimal address":         {nil, "http://2852039166/latest", task.ReasonUnsent, "resolve"},
		"loopback by default":     {func(c *Config) { c.Rules = nil }, p.url + "/ok", task.ReasonPolicy, "loopback"},
		"denied":                  {rulesOf(&policy.HTTP{Allow: []string{"127.0.0.1"}, Deny: []string{"127.0.0.1:" + p.port()}}), p.url + "/ok", task.ReasonPolicy, "http.deny"},
		"own port":                {func(c *Config) { c.Own = func() []netip.AddrPort { return []netip.AddrPort{own} } }, p.url + "/ok", task.ReasonPolicy, "this node"},
		"own port, other address": {func(c *Config) { c.Own = func() []netip.AddrPort { return []netip.AddrPort{own} } }, "http://127.0.0.2:" + p.port() + "/ok", task.ReasonPolicy, "this node"},
		"own port by name":        {func(c *Config) { c.Own = func() []netip.AddrPort { return []netip.AddrPort{own} } }, "http://probe.test:" + p.port() + "/ok", task.ReasonPolicy, "this node"},
		"advertised address": {func(c *Config) {
			c.Own = func() []netip.AddrPort { return []netip.AddrPort{netip.MustParseAddrPort("192.168.7.7:8443")} }
		}, "http://192.168.7.7:8443/ok", task.ReasonPolicy, "this node"},
		"etcd":                          {func(c *Config) { c.Etcd = []string{p.url} }, p.url + "/ok", task.ReasonPolicy, "etcd"},
		"etcd, without scheme":          {func(c *Config) { c.Etcd = []string{"127.0.0.1:" + p.port()} }, p.url + "/ok", task.ReasonPolicy, "etcd"},
		"etcd by another name":          {func(c *Config) { c.Etcd = []string{"http://etcd.test:" + p.port()} }, "http://probe.test:" + p.port() + "/ok", task.ReasonPolicy, "etcd"},
		"port of etcd, private address": {func(c *Config) { c.Etcd = []string{"http://etcd.test:2379"} }, "http://10.1.2.3:2380/ok", task.ReasonPolicy, "etcd"},
	}

	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRunner(t, func(c *Config) {
				c.resolver = resolver
				if tt.change != nil {
					tt.change(c)
				}
			})

			a, _ := newAttempt(task.HTTP{Method: http.MethodPost, URL: tt.url})
			res := r.RunAttempt(a, process.NewOrders())
			if res.State != task.Failed || res.Reason != tt.reason || res.Unsent != (tt.reason == task.ReasonUnsent) || !strings.Contains(res.Message, tt.want) {
				t.Errorf("%+v", res)
			}
			if n := len(p.arrivalsOf(a.Token)); n != 0 {
				t.Errorf("%d requests arrived", n)
			}
		})
	}
}

// port returns the port of the probe.
func (p *probe) port() string {
	_, port, _ := net.SplitHostPort(p.ln.Addr().String())
	return port
}

// rulesOf sets rules.
func rulesOf(h *policy.HTTP) func(*Config) {
	return func(c *Config) { c.Rules = func() (Rules, error) { return Rules{HTTP: h}, nil } }
}

// The address counts to which the connection is made, not one that the name had before.
func TestGuard_RebindingNames(t *testing.T) {
	p := newProbe(t)
	var asked atomic.Int64
	r := newRunner(t, func(c *Config) {
		c.resolver = fakeResolver(func(string) []string {
			if asked.Add(1) == 1 {
				return []string{"127.0.0.1"}
			}
			return []string{"169.254.169.254"}
		})
	})

	h := task.HTTP{URL: "http://rebind.test:" + p.port() + "/ok"}
	if res := run(r, h); res.State != task.Succeeded {
		t.Fatalf("%+v", res)
	}

	r.CloseIdle()
	if res := run(r, h); res.Reason != task.ReasonPolicy {
		t.Errorf("%+v", res)
	}
}

// A name with several addresses is reached at those that are allowed.
func TestGuard_JudgesEachAddress(t *testing.T) {
	p := newProbe(t)
	r := newRunner(t, func(c *Config) {
		c.resolver = fakeResolver(func(string) []string { return []string{"169.254.169.254", "127.0.0.1"} })
	})

	if res := run(r, task.HTTP{URL: "http://two.test:" + p.port() + "/ok"}); res.State != task.Succeeded {
		t.Errorf("%+v", res)
	}
}

func TestGuard_JudgesRedirects(t *testing.T) {
	p := newProbe(t)
	r := newRunner(t, nil)
	to := p.url + "/redirect?status=302+Found&to=" + url.QueryEscape("http://169.254.169.254/latest/meta-data/iam")

	res := run(r, task.HTTP{URL: to, Redirects: 1})
	if res.State != task.Failed || res.Reason != task.ReasonPolicy || res.Unsent || !strings.Contains(res.Message, "http://169.254.169.254: the node's policy: http: address 169.254.169.254 is a link-local address") {
		t.Errorf("GET: %+v", res)
	}
	if strings.Contains(res.Message, "meta-data") {
		t.Errorf("the message contains the path: %q", res.Message)
	}

	// The first request may have had its effect, so the attempt must not be repeated as one that failed.
	res = run(r, task.HTTP{Method: http.MethodPost, URL: to, Redirects: 1})
	if res.State != task.Lost || res.Reason != task.ReasonUnanswered || res.Unsent || !strings.Contains(res.Message, "never allowed") {
		t.Errorf("POST: %+v", res)
	}
}

func TestGuard_NoConnectionOutlivesItsRules(t *testing.T) {
	p := newProbe(t)
	var rules atomic.Pointer[policy.HTTP]
	r := newRunner(t, func(c *Config) { c.Rules = func() (Rules, error) { return Rules{HTTP: rules.Load()}, nil } })
	h := task.HTTP{URL: p.url + "/ok"}

	rules.Store(&policy.HTTP{Allow: []string{"127.0.0.1"}})
	if res := run(r, h); res.State != task.Succeeded {
		t.Fatalf("%+v", res)
	}

	rules.Store(&policy.HTTP{Allow: []string{"127.0.0.1"}}) // the file was read again, and is the same
	if res := run(r, h); res.State != task.Succeeded || p.connections() != 1 {
		t.Fatalf("%d connections, %+v", p.connections(), res)
	}

	rules.Store(&policy.HTTP{Allow: []string{"127.0.0.1"}, Deny: []string{"127.0.0.1"}})
	if res := run(r, h); res.Reason != task.ReasonPolicy {
		t.Errorf("%+v", res)
	}

	rules.Store(&policy.HTTP{Allow: []string{"127.0.0.1"}})
	if res := run(r, h); res.State != task.Succeeded || p.connections() != 2 {
		t.Errorf("%d connections, %+v", p.connections(), res)
	}
}

// The rules may change between the request and one that follows a redirect.
func TestGuard_ReadsTheRulesForEachHop(t *testing.T) {
	p := newProbe(t)
	read := 0
	r := newRunner(t, func(c *Config) {
		c.Rules = func() (Rules, error) {
			if read++; read <= 2 { // once before the attempt, once before the first hop
				return Rules{HTTP: loopback}, nil
			}
			return Rules{}, nil
		}
	})

	res := run(r, task.HTTP{URL: p.url + "/redirect?status=302+Found&to=/ok", Redirects: 1})
	if res.Reason != task.ReasonPolicy || res.HTTPStatus != http.StatusFound {
		t.Errorf("%+v", res)
	}
}

func TestTransports_AreBounded(t *testing.T) {
	ca := newTLSServer(t).ca
	set := newTransports(newGuard(nil, nil, nil), nil)
	transportOf := func(spaces int) *http.Transport {
		got, err := set.transportFor(nil, tlsIdentity{ca: ca + strings.Repeat(" ", spaces)})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}

	used, unused := transportOf(0), transportOf(1)
	for i := range 2 * maxTransports {
		transportOf(2 + i)
		if transportOf(0) != used {
			t.Fatal("a transport was replaced although it was used")
		}
	}

	if n := set.size(); n != maxTransports {
		t.Errorf("%d transports, want %d", n, maxTransports)
	}
	if transportOf(1) == unused {
		t.Error("a transport was kept although it was not used")
	}
}
