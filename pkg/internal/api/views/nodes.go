package views

import (
	"context"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// PresentNodes returns the present nodes, with the number of shards that each owns, and the owners of all
// shards.
func PresentNodes(ctx context.Context, st *store.Store) ([]task.Node, []record.Owner, error) {
	nodes, owners, err := st.Fleet(ctx)
	if err != nil {
		return nil, nil, err
	}

	owned := map[string]int{}
	for _, o := range owners {
		owned[o.Node]++
	}

	for i := range nodes {
		n := &nodes[i]
		n.Shards = owned[n.Name]
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}

		if n.Roles == nil {
			n.Roles = []string{}
		}
	}

	return nodes, owners, nil
}
