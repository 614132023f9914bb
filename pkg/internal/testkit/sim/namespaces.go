package sim

import (
	"context"
	"math/rand/v2"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// nameUsers has some tasks name OS users, so that a change of the namespace's record can forbid them. It derives its
// choices from numbers that are drawn already.
func nameUsers(s *task.Spec, _ *rand.Rand) {
	if s.Action.Process != nil {
		s.Action.Process.User = []string{"", "app", "batch"}[s.History.Keep%3]
	}
}

// limitNamespace has the namespace of the simulation allow only the OS user app, or everything.
func (u *user) limitNamespace(ctx context.Context, c *client.Client, limited bool) error {
	n := store.OpenNamespace(simNamespace)
	if limited {
		n.RunAs = []string{"app"}
	}

	change, err := c.Namespaces.Put(ctx, n, client.Writing{})
	if err == nil && change.ForbiddenCount > 0 {
		u.countReached("namespace forbids tasks")
	}

	return err
}
