package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// poolLabel is the label by which the namespace of the simulation may select nodes. Half of the nodes announce pool a.
const poolLabel = "pool"

// poolOf returns the value of a node's poolLabel.
func poolOf(node int) string { return []string{"a", "b"}[node%2] }

// nameUsers has some tasks name OS users, so that a change of the namespace's record can forbid them. It derives its
// choices from numbers that are drawn already.
func nameUsers(s *task.Spec, _ *rand.Rand) {
	if s.Action.Process != nil {
		s.Action.Process.User = []string{"", "app", "batch"}[s.History.Keep%3]
	}
}

// changeNamespace changes what the namespace of the simulation allows, or which nodes may have its label.
func (u *user) changeNamespace(ctx context.Context, c *client.Client, what string) error {
	n := store.OpenNamespace(simNamespace)

	switch what {
	case "limit namespace":
		n.RunAs = []string{"app"}
	case "restrict nodes":
		n.Nodes = poolLabel + " = a"
	case "limit nodes": // the namespace stays as it is
		_, err := c.NodeLimits.Put(ctx, task.NodeLimit{Name: "*", Labels: []string{"host=*"}}, client.Writing{})
		return err
	case "open nodes":
		err := c.NodeLimits.Delete(ctx, "*", 0)
		if errors.Is(err, task.ErrNotFound) {
			err = nil
		}

		return err
	}

	change, err := c.Namespaces.Put(ctx, n, client.Writing{})
	if err == nil && change.ForbiddenCount > 0 {
		u.countReached("namespace forbids tasks")
	}

	return err
}

// openNamespace has the namespace of the simulation allow everything again, and nodes have any labels, so that no
// run waits for a node forever.
func (w *world) openNamespace() {
	keys := w.admin.Keys()
	s := w.admin.As(rootAuthority{w})

	w.waitUntil(5*time.Minute, func() bool {
		ctx, cancel := context.WithTimeout(w.life, time.Second)
		defer cancel()

		mod, _, err := w.mod(ctx, keys.NodeLimit("*"))
		if err == nil && mod > 0 {
			err = s.DeleteNodeLimit(ctx, "*", mod, time.Now())
		}
		if err != nil {
			return false
		}

		res, err := w.etcd.Get(ctx, keys.Namespace(simNamespace))
		if err != nil || len(res.Kvs) == 0 {
			return false
		}

		is, err := record.Decode[task.Namespace](res.Kvs[0].Value)
		if err == nil && len(is.RunAs) == 1 && is.RunAs[0] == "*" && is.Nodes == "" {
			return true
		}

		n := store.OpenNamespace(simNamespace)
		n.UpdatedAt = task.At(time.Now())
		_, err = s.PutNamespace(ctx, res.Kvs[0].ModRevision, n, time.Now())

		return err == nil
	})
}
