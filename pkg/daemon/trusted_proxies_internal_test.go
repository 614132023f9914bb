package daemon

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

func TestTrustedProxies_ClientOf(t *testing.T) {
	proxies, err := parseTrustedProxies([]string{"10.0.0.5", "10.1.0.0/16", "fd00::/64"})
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		name, from string
		header     []string
		want       string // "": refused
	}{
		{"a client itself", "192.0.2.1", nil, "192.0.2.1"},
		{"a client that claims another address", "192.0.2.1", []string{"10.0.0.7"}, "192.0.2.1"},
		{"a client with a malformed header", "192.0.2.1", []string{"?"}, "192.0.2.1"},
		{"a neighbor of the proxy", "10.0.0.6", []string{"192.0.2.9"}, "10.0.0.6"},
		{"behind the proxy", "10.0.0.5", []string{"192.0.2.1"}, "192.0.2.1"},
		{"behind the proxy, with a claim", "10.0.0.5", []string{"10.0.0.7, 192.0.2.1"}, "192.0.2.1"},
		{"behind the proxy, with a claim in a header of its own", "10.0.0.5", []string{"10.0.0.7", "192.0.2.1"}, "192.0.2.1"},
		{"behind the proxy, with a malformed claim", "10.0.0.5", []string{"%$&, 192.0.2.1"}, "192.0.2.1"},
		{"behind the proxy, which claims to be one", "10.0.0.5", []string{"192.0.2.1, 10.1.2.3"}, "192.0.2.1"},
		{"behind two proxies", "10.0.0.5", []string{"192.0.2.1,10.1.2.3"}, "192.0.2.1"},
		{"IPv6", "fd00::1", []string{"2001:db8::7"}, "2001:db8::7"},
		{"IPv6 in brackets", "fd00::1", []string{"[2001:db8::7]"}, "2001:db8::7"},
		{"with a port", "10.0.0.5", []string{"192.0.2.1:4711"}, "192.0.2.1"},
		{"IPv6 with a port", "10.0.0.5", []string{"[2001:db8::7]:4711"}, "2001:db8::7"},
		{"IPv4 in IPv6", "10.0.0.5", []string{"::ffff:192.0.2.1"}, "192.0.2.1"},
		{"the proxy itself", "10.0.0.5", nil, "10.0.0.5"},
		{"a proxy before the proxy", "10.0.0.5", []string{"10.1.2.3"}, "10.1.2.3"},
		{"malformed", "10.0.0.5", []string{"192.0.2.1, unknown"}, ""},
		{"malformed behind a proxy", "10.0.0.5", []string{"unknown, 10.1.2.3"}, ""},
		{"empty", "10.0.0.5", []string{""}, ""},
		{"with a zone", "10.0.0.5", []string{"fe80::1%eth0"}, ""},
	} {
		got, err := proxies.clientOf(netip.MustParseAddr(c.from), c.header)
		if (err != nil) != (c.want == "") || err == nil && got.String() != c.want {
			t.Errorf("%s: %v, %v; want %q", c.name, got, err, c.want)
		}
	}

	for _, text := range []string{"0.0.0.0/0", "::/0", "proxy", "10.0.0.5:80", "fe80::1%eth0", "::ffff:10.0.0.5", ""} {
		if _, err := parseTrustedProxies([]string{text}); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

func TestTrustedProxies_Wrap(t *testing.T) {
	proxies, err := parseTrustedProxies([]string{"10.0.0.5"})
	if err != nil {
		t.Fatal(err)
	}

	var seen string
	h := proxies.wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen = r.RemoteAddr + " " + r.Header.Get(forwardedFor)
	}))

	for _, c := range []struct {
		from, header, want string
		status             int
	}{
		{"10.0.0.5:1234", "192.0.2.1", "192.0.2.1:0 ", http.StatusOK},
		{"192.0.2.2:1234", "192.0.2.1", "192.0.2.2:1234 ", http.StatusOK},
		{"@", "192.0.2.1", "@ 192.0.2.1", http.StatusOK}, // the unix socket
		{"10.0.0.5:1234", "nobody", "", http.StatusBadRequest},
	} {
		r := httptest.NewRequest(http.MethodGet, "/healthz", http.NoBody)
		r.RemoteAddr, seen = c.from, ""
		r.Header.Set(forwardedFor, c.header)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != c.status || seen != c.want {
			t.Errorf("from %s with %q: %d, %q; want %q", c.from, c.header, w.Code, seen, c.want)
		}
	}
}

func TestTrustedProxies_AreMissedBehindAProxy(t *testing.T) {
	c := Config{UIOrigin: "https://carillon.example.com"}
	if list := c.proxyWarnings(); len(list) != 1 || !strings.HasPrefix(list[0], "trusted_proxies: ") {
		t.Errorf("the warnings are %q", list)
	}

	c.TrustedProxies = []string{"10.0.0.5"}
	if list := c.proxyWarnings(); len(list) != 0 {
		t.Errorf("the warnings with the setting are %q", list)
	}
}
