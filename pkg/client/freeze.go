package client

import (
	"context"
	"net/http"

	"github.com/carillonhq/carillon/pkg/task"
)

// FreezeStatus says whether a namespace, or the whole cluster, is frozen.
type FreezeStatus struct {
	Namespace   string       `json:"namespace,omitempty" doc:"Empty: the whole cluster."`
	Tasks       int64        `json:"tasks" doc:"How many tasks it has."`
	Freeze      *task.Freeze `json:"freeze,omitempty" doc:"The one that holds for it, be it the cluster's; absent if none does."`
	Revision    int64        `json:"revision" doc:"Of the record of freezes: from there on no tick is decided and nothing dispatched without it. 0: there is none."`
	Unconfirmed []string     `json:"unconfirmed" doc:"Nodes that have not said yet that they go by that revision: what was in their inboxes before may still start."`
	Changed     bool         `json:"changed,omitempty" doc:"The request has begun a freeze, or ended one."`
}

// FreezeRequest is the body of a freeze.
type FreezeRequest struct {
	Reason string `json:"reason" doc:"Why, for whoever wonders that nothing runs."`
}

// Freezing says whether a namespace, "" for the whole cluster, is frozen.
func (c *Client) Freezing(ctx context.Context, namespace string) (FreezeStatus, error) {
	return c.freeze(ctx, namespace, call{method: http.MethodGet})
}

// Freeze stops all firing in a namespace, "" for the whole cluster, and returns
// when that holds: nothing of it is decided to run any more, and no node that is
// present starts anything of it. One that holds already stays as it is. With code
// CodeNotConfirmed some node has not said so in time: the freeze holds but for
// what was in that node's inbox before. task.ErrConflict while versions may run
// that take no notice of freezes.
func (c *Client) Freeze(ctx context.Context, namespace, reason string) (FreezeStatus, error) {
	return c.freeze(ctx, namespace, call{method: http.MethodPut, body: FreezeRequest{Reason: reason}})
}

// Unfreeze ends the freeze of just that namespace, or of the whole cluster.
// task.ErrNotFound if there is none.
func (c *Client) Unfreeze(ctx context.Context, namespace string) (FreezeStatus, error) {
	return c.freeze(ctx, namespace, call{method: http.MethodDelete})
}

func (c *Client) freeze(ctx context.Context, namespace string, k call) (s FreezeStatus, err error) {
	if k.path = "/v1/cluster/freeze"; namespace != "" {
		if k.path, err = inNamespace(namespace, "/freeze"); err != nil {
			return s, err
		}
	}
	err = c.do(ctx, k, &s)
	return s, err
}
