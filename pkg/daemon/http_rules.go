package daemon

import (
	"slices"
	"sync"

	"github.com/carillonhq/carillon/executor/httpaction"
	"github.com/carillonhq/carillon/pkg/policy"
)

// httpRules is what the policy and the setting http_allow say about HTTP attempts on this node.
type httpRules struct {
	allow []string                       // http_allow
	read  func() (*policy.Policy, error) // nil: the node has no policy

	mu    sync.Mutex
	from  *policy.Policy // the policy of which rules is the result
	rules *httpaction.Rules
}

// newHTTPRules returns the rules of a node.
func newHTTPRules(allow []string, files hostFiles) *httpRules {
	r := &httpRules{allow: allow}
	if files.policy != nil {
		r.read = files.policy.Policy
	}

	return r
}

// Rules returns the current rules. As long as the policy does not change, their HTTP is the same value: the
// executor keeps its connections for that long. An error means that the policy cannot be read, so that nothing may start.
func (r *httpRules) Rules() (httpaction.Rules, error) {
	var p *policy.Policy
	if r.read != nil {
		var err error
		if p, err = r.read(); err != nil {
			return httpaction.Rules{}, err
		}
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	if r.rules == nil || r.from != p {
		rules := joinHTTPRules(p, r.allow)
		r.from, r.rules = p, &rules
	}

	return *r.rules, nil
}

// joinHTTPRules adds http_allow to the rules of a policy, or to none if p is nil. What the policy denies stays denied.
func joinHTTPRules(p *policy.Policy, allow []string) httpaction.Rules {
	targets := &policy.HTTP{}
	var rules httpaction.Rules

	if p != nil {
		rules.Timeout = p.Limits.Timeout.Std()
		rules.NoSecrets = p.Secrets != nil && !*p.Secrets
		if p.HTTP != nil {
			*targets = *p.HTTP
		}
	}

	targets.Allow = slices.Concat(targets.Allow, allow)
	rules.HTTP = targets

	return rules
}
