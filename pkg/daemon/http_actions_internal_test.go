package daemon

import (
	"net/netip"
	"testing"
)

func TestAddrPortOf(t *testing.T) {
	for s, want := range map[string]string{
		"127.0.0.1:7070": "127.0.0.1:7070", "[::1]:7070": "[::1]:7070", "[::]:7070": "[::]:7070", "[fe80::1%eth0]:7070": "[fe80::1]:7070",
		"n1.corp:7070": "0.0.0.0:7070", ":7070": "0.0.0.0:7070", "[::ffff:10.0.0.1]:7070": "10.0.0.1:7070",
		"": "", "127.0.0.1:0": "", "127.0.0.1": "", "127.0.0.1:http": "", "127.0.0.1:65536": "", "/run/carillon.sock": "",
	} {
		at, ok := addrPortOf(s)
		if !ok {
			at = netip.AddrPort{}
		}
		if ok != (want != "") || ok && at.String() != want {
			t.Errorf("%s: got %s, %v, want %q", s, at, ok, want)
		}
	}
}

func TestHostOfURL(t *testing.T) {
	for s, want := range map[string]string{
		"https://n1.corp": "n1.corp:443", "http://10.0.0.1/": "10.0.0.1:80", "https://[fd00::1]:7070": "[fd00::1]:7070", "http://[fd00::1]": "[fd00::1]:80",
		"": "", "unix:///run/etcd": "", "%": "",
	} {
		if got := hostOfURL(s); got != want {
			t.Errorf("%s: got %q, want %q", s, got, want)
		}
	}
}
