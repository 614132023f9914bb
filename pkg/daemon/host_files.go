package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
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

// trustEvery is the interval at which both files are checked, in addition to each use. If the policy cannot be
// read, the node has to announce that soon, so that no runs are placed here only to be handed back.
const trustEvery = time.Second

// hostFiles holds the files that the host's administrator provides: the keys for secrets and
// the policy. The current contents of both count at each use.
type hostFiles struct {
	keys   secret.KeyFile // "": none
	policy *policy.File   // nil: none
	log    *zap.Logger
}

// openHostFiles reads both files and returns an error if one is not valid.
func (c *Config) openHostFiles(log *zap.Logger) (t hostFiles, err error) {
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

// openOwnKeys returns the key file in a data directory, and creates it if it does not exist.
func openOwnKeys(dataDir string) (secret.KeyFile, error) {
	file := secret.KeyFile(filepath.Join(dataDir, "secret-keys"))

	_, err := file.Ring()
	if errors.Is(err, fs.ErrNotExist) {
		_, _, err = file.New(true)
	}
	if err != nil {
		return "", fmt.Errorf("keys for secrets: %w", err)
	}

	return file, nil
}

// validateSeparation returns an error if a node has keys for secrets or a policy that it cannot protect from its
// tasks. A daemon that is not root can run tasks only as its own user. Such tasks can read its files and its
// memory, and can do anything that its policy forbids. A node without the role executor runs no
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

// keyRing returns a function that reads the keys, or nil if the node has none.
func (h hostFiles) keyRing() func() (secret.Ring, error) {
	if h.keys == "" {
		return nil
	}
	return h.keys.Ring
}

// keyIDs returns the ids of the node's keys, or none if they cannot be read.
func (h hostFiles) keyIDs() []string {
	if h.keys == "" {
		return nil
	}
	ring, _ := h.keys.Ring() // watchFiles logs the error
	return ring.IDs()
}

// processPolicy returns a function that reads the policy, or nil if the node has none.
func (h hostFiles) processPolicy() process.Policy {
	if h.policy == nil {
		return nil
	}
	return h.policy.Policy
}

// registerMetrics registers metrics that show whether the files can be read.
func (h hostFiles) registerMetrics(r prometheus.Registerer) {
	gauge := func(name, help string, is func() bool) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			if is() {
				return 1
			}
			return 0
		}))
	}

	if h.policy != nil {
		gauge("carillon_policy_broken", "Whether the host policy cannot be read, so that nothing starts on the node: 1 if so, else 0.", h.policyBroken)
	}

	if h.keys != "" {
		gauge("carillon_secret_keys_broken", "Whether the node's keys for secrets cannot be read, so that no attempt with a secret starts on it: 1 if so, else 0.", func() bool { return len(h.keyIDs()) == 0 })
	}
}

// policyBroken reports whether the policy cannot be read. policy.File logs the reason.
func (h hostFiles) policyBroken() bool {
	if h.policy == nil {
		return false
	}
	_, err := h.policy.Policy()
	return err != nil
}

// exceededLimits returns the limits in facts and, if the policy is broken, task.BlockedByPolicy. The node
// announces them, and no runs are placed there.
func (h hostFiles) exceededLimits(facts []string) []string {
	if h.policyBroken() {
		return append(slices.Clip(facts), task.BlockedByPolicy)
	}
	return facts
}

// watchFiles checks both files until ctx ends. It calls changed when what the node announces about them
// has changed: whether the policy is broken, or the ids of the keys.
func (h hostFiles) watchFiles(ctx context.Context, changed func()) error {
	look := func() (bool, []string) { return h.policyBroken(), h.keyIDs() }
	was, had := look()
	for (h.policy != nil || h.keys != "") && clock.Sleep(ctx, trustEvery) {
		is, has := look()
		if is == was && slices.Equal(has, had) {
			continue
		}

		if len(has) == 0 && len(had) > 0 {
			_, err := h.keys.Ring()
			h.log.Error("cannot read the secret keys: attempts with secrets do not start on this node", zap.Error(err))
		} else if !slices.Equal(has, had) {
			h.log.Info("loaded the secret keys", zap.Strings("ids", has))
		}

		was, had = is, has
		changed()
	}

	<-ctx.Done()

	return ctx.Err()
}

// secretReader returns a function that reads and decrypts secrets, or nil if the node has no keys. The function reads
// from etcd at each call and stores nothing.
func (n *Node) secretReader() process.Secrets {
	if n.hostFiles.keys == "" {
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

		ring, err := n.hostFiles.keys.Ring()
		if err != nil {
			return nil, fmt.Errorf("the node's keys cannot be read: %w", err)
		}

		values, err := ring.Open(secret.Name{Namespace: namespace, Name: name, Generation: r.Generation}, r.Sealed, r.KeyID)
		if errors.Is(err, secret.ErrNoKey) {
			return nil, fmt.Errorf("is encrypted with key %s, which this node does not have", r.KeyID)
		}

		return values, err
	}
}
