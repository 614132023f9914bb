package daemon

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/policy"
	"github.com/carillonhq/carillon/pkg/task"
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

// http_allow adds to what the policy allows, and cannot allow what the policy denies. The rules stay the same value while
// the policy does.
func TestHTTPRules_JoinThePolicyAndTheSetting(t *testing.T) {
	t.Parallel()

	no := false
	current, failure := &policy.Policy{
		HTTP:    &policy.HTTP{Allow: []string{"127.0.0.1:1"}, Deny: []string{"127.0.0.1:2"}},
		Secrets: &no, Limits: policy.Limits{Timeout: task.Duration(time.Minute)},
	}, error(nil)
	r := &httpRules{allow: []string{"127.0.0.1:2", "127.0.0.1:3"}, read: func() (*policy.Policy, error) { return current, failure }}

	first, err := r.Rules()
	if err != nil {
		t.Fatal(err)
	}
	if !first.NoSecrets || first.Timeout != time.Minute {
		t.Errorf("%+v", first)
	}

	for at, want := range map[string]bool{"127.0.0.1:1": true, "127.0.0.1:2": false, "127.0.0.1:3": true, "127.0.0.1:4": false} {
		if err := first.HTTP.Judge(netip.MustParseAddrPort(at), "127.0.0.1"); (err == nil) != want {
			t.Errorf("%s: %v", at, err)
		}
	}

	if len(current.HTTP.Allow) != 1 {
		t.Errorf("the policy was changed: %v", current.HTTP.Allow)
	}
	if again, _ := r.Rules(); again.HTTP != first.HTTP {
		t.Error("the rules are another value, although nothing has changed")
	}

	current = &policy.Policy{}
	if other, _ := r.Rules(); other.HTTP == first.HTTP || other.NoSecrets || len(other.HTTP.Allow) != 2 {
		t.Errorf("after a change: %+v", other)
	}

	failure = errors.New("broken")
	if _, err := r.Rules(); err == nil {
		t.Error("a broken policy allows attempts")
	}
}

func TestHTTPRules_WithoutPolicy(t *testing.T) {
	t.Parallel()

	rules, err := newHTTPRules(nil, hostFiles{}).Rules()
	if err != nil || rules.HTTP.Judge(netip.MustParseAddrPort("127.0.0.1:80"), "localhost") == nil || rules.HTTP.Judge(netip.MustParseAddrPort("10.0.0.1:80"), "x") != nil {
		t.Errorf("%+v, %v", rules, err)
	}
}
