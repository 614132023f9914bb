package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/secret"
	"github.com/carillonhq/carillon/pkg/policy"
	"github.com/carillonhq/carillon/pkg/task"
)

// trustEvery is how often both files are looked at, beside each use: if the policy has
// a fault, runs are not to come here only to be refused.
const trustEvery = time.Second

// trust is what the host's administrator has given the node: keys for secrets, and
// a policy. Both are files that count as they are at each use.
type trust struct {
	keys   secret.KeyFile // "": none
	policy *policy.File   // nil: none
	log    *zap.Logger
}

// loadTrust reads both, and refuses what will not do.
func (c *Config) loadTrust(log *zap.Logger) (t trust, err error) {
	t.log = log.Named("trust")
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

// validateSeparation refuses keys for secrets and a policy on a node that cannot keep them from its
// tasks. Without root, a daemon can run tasks only as its own user: they can read its files and its
// memory, and can do without it whatever its policy forbids. A node without the role executor runs no
// tasks.
func (c *Config) validateSeparation(euid int) error {
	if euid == 0 || !slices.Contains(c.Roles, task.RoleExecutor) {
		return nil
	}

	const why = "tasks run as the daemon's own user, %d, and can read what the daemon can: run the daemon as root, or without the role executor"

	switch {
	case c.SecretKeys != "":
		return task.Invalid(task.CodeBadValue, "secret_keys", why, euid)
	case c.Policy != "":
		return task.Invalid(task.CodeBadValue, "policy", why, euid)
	}

	return nil
}

// keyRing is nil without keys.
func (t trust) keyRing() func() (secret.Ring, error) {
	if t.keys == "" {
		return nil
	}
	return t.keys.Ring
}

// keyIDs are the ids of the keys that the node holds; none if they cannot be read.
func (t trust) keyIDs() []string {
	if t.keys == "" {
		return nil
	}
	ring, _ := t.keys.Ring() // watch tells
	return ring.IDs()
}

// processPolicy is nil without a policy.
func (t trust) processPolicy() process.Policy {
	if t.policy == nil {
		return nil
	}
	return t.policy.Policy
}

// registerMetrics has metrics say whether the files can be read.
func (t trust) registerMetrics(r prometheus.Registerer) {
	gauge := func(name, help string, is func() bool) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			if is() {
				return 1
			}
			return 0
		}))
	}

	if t.policy != nil {
		gauge("carillon_policy_broken", "Whether the host policy cannot be read, so that nothing starts on the node: 1 if so, else 0.", t.policyBroken)
	}

	if t.keys != "" {
		gauge("carillon_secret_keys_broken", "Whether the node's keys for secrets cannot be read, so that no attempt with a secret starts on it: 1 if so, else 0.", func() bool { return len(t.keyIDs()) == 0 })
	}
}

// policyBroken reports whether the policy cannot be read, which is logged there.
func (t trust) policyBroken() bool {
	if t.policy == nil {
		return false
	}
	_, err := t.policy.Policy()
	return err != nil
}

// exceededLimits adds a broken policy to what the node is beyond its limits of.
func (t trust) exceededLimits(facts []string) []string {
	if t.policyBroken() {
		return append(slices.Clip(facts), task.BlockedByPolicy)
	}
	return facts
}

// watchFiles looks at both until ctx ends, and tells when what the node announces of them
// has changed: a policy that breaks, or is right again, and which keys there are.
func (t trust) watchFiles(ctx context.Context, changed func()) error {
	look := func() (bool, []string) { return t.policyBroken(), t.keyIDs() }
	was, had := look()
	for (t.policy != nil || t.keys != "") && clock.Sleep(ctx, trustEvery) {
		is, has := look()
		if is == was && slices.Equal(has, had) {
			continue
		}

		if len(has) == 0 && len(had) > 0 {
			_, err := t.keys.Ring()
			t.log.Error("cannot read the secret keys: attempts with secrets do not start on this node", zap.Error(err))
		} else if !slices.Equal(has, had) {
			t.log.Info("loaded the secret keys", zap.Strings("ids", has))
		}

		was, had = is, has
		changed()
	}

	<-ctx.Done()

	return ctx.Err()
}

// secretReader reads secrets and decrypts them; nil without keys. Each is read from etcd
// at each call, and not kept.
func (n *Node) secretReader() process.Secrets {
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
			return nil, fmt.Errorf("the node's keys cannot be read: %w", err)
		}

		values, err := ring.Open(secret.Name{Namespace: namespace, Name: name, Generation: r.Generation}, r.Sealed, r.KeyID)
		if errors.Is(err, secret.ErrNoKey) {
			return nil, fmt.Errorf("is encrypted under key %s, which this node does not hold", r.KeyID)
		}

		return values, err
	}
}
