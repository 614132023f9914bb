package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/policy"
	"github.com/carillonhq/carillon/pkg/secret"
	"github.com/carillonhq/carillon/pkg/task"
)

// policyEvery is how often the policy is looked at, beside each attempt: a fault in
// it is told before it refuses anything.
const policyEvery = 5 * time.Second

// trust is what the host's administrator has given the node: keys for secrets, and
// a policy. Both are files that count as they are at each use.
type trust struct {
	keys   secret.KeyFile // "": none
	policy *policy.File   // nil: none
}

// trust reads both, and refuses what will not do.
func (c *Config) trust(log *zap.Logger) (t trust, err error) {
	if c.SecretKeys != "" {
		t.keys = secret.KeyFile(c.SecretKeys)
		if _, err := t.keys.Ring(); err != nil {
			return t, task.Invalid(task.CodeBadValue, "secret_keys", "%v", err)
		}
	}
	if c.Policy != "" {
		if t.policy, err = policy.Open(c.Policy, log); err != nil {
			return t, task.Invalid(task.CodeBadValue, "policy", "%v", err)
		}
	}
	return t, nil
}

// ring is nil without keys.
func (t trust) ring() func() (secret.Ring, error) {
	if t.keys == "" {
		return nil
	}
	return t.keys.Ring
}

// allows is nil without a policy.
func (t trust) allows() executor.Policy {
	if t.policy == nil {
		return nil
	}
	return t.policy.Policy
}

// register has a metric say whether the policy can be read.
func (t trust) register(r prometheus.Registerer) {
	if t.policy == nil {
		return
	}
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "carillon_policy_broken", Help: "1 if the node's policy cannot be read, so that nothing starts on it.",
	}, func() float64 {
		if _, err := t.policy.Policy(); err != nil {
			return 1
		}
		return 0
	}))
}

// watch looks at the policy, which logs what it finds, until ctx ends.
func (t trust) watch(ctx context.Context) error {
	for t.policy != nil {
		if !pause(ctx, policyEvery) {
			break
		}
		_, _ = t.policy.Policy() // it is logged there
	}
	<-ctx.Done()
	return ctx.Err()
}

// secrets reads secrets and decrypts them; nil without keys. Each is read from etcd
// at each call, and not kept.
func (n *Node) secrets() executor.Secrets {
	if n.trust.keys == "" {
		return nil
	}
	return func(ctx context.Context, namespace, name string) (map[string]string, error) {
		r, err := n.store.Secret(ctx, namespace, name)
		switch {
		case errors.Is(err, task.ErrNotFound), errors.Is(err, task.ErrUnavailable):
			return nil, err
		case err != nil:
			return nil, errors.New("its record in etcd is damaged")
		}
		ring, err := n.trust.keys.Ring()
		if err != nil {
			return nil, err
		}
		values, err := ring.Open(secret.Name{Namespace: namespace, Name: name, Generation: r.Generation}, r.Sealed, r.KeyID)
		if errors.Is(err, secret.ErrNoKey) {
			return nil, fmt.Errorf("is encrypted under key %s, which this node does not hold", r.KeyID)
		}
		return values, err
	}
}
