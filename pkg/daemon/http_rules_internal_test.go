package daemon

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/policy"
	"github.com/carillonhq/carillon/pkg/task"
)

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
