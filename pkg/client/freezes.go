package client

import (
	"context"
	"net/http"

	"github.com/carillonhq/carillon/pkg/task"
)

// FreezesService reads, begins and ends freezes. While a namespace or the whole cluster is frozen, none of its
// tasks starts a run.
type FreezesService struct{ conn *connection }

// FreezeStatus describes the freeze of a namespace or of the whole cluster.
type FreezeStatus struct {
	Namespace   string       `json:"namespace,omitempty" doc:"Empty: the whole cluster."`
	Tasks       int64        `json:"tasks" doc:"The number of its tasks."`
	Freeze      *task.Freeze `json:"freeze,omitempty" doc:"The freeze in effect, which may be the cluster's; absent if not frozen."`
	Revision    int64        `json:"revision" doc:"The revision of the freeze record. Ticks and dispatches after this revision respect it. 0 without a record."`
	Unconfirmed []string     `json:"unconfirmed" doc:"Nodes that have not yet confirmed this revision. Runs that were in their inboxes before may still start."`
	Changed     bool         `json:"changed,omitempty" doc:"The request has started or ended a freeze."`
}

// FreezeRequest is the body of a request to freeze.
type FreezeRequest struct {
	Reason string `json:"reason" doc:"The reason for the freeze, which users see."`
}

// Get returns the freeze of a namespace ("": of the whole cluster).
func (s *FreezesService) Get(ctx context.Context, namespace string) (FreezeStatus, error) {
	return s.doFreeze(ctx, namespace, call{method: http.MethodGet})
}

// Begin freezes a namespace ("": the whole cluster). It returns when the freeze is effective: no tick is
// decided to run any more, and no present node starts a run. An existing freeze stays unchanged.
//
// The error has CodeNotConfirmed if a node did not confirm the freeze in time. The freeze is in force then, but
// runs that were already in that node's inbox may still start. The error is task.ErrConflict while nodes may
// run a version of Carillon without freezes.
func (s *FreezesService) Begin(ctx context.Context, namespace, reason string) (FreezeStatus, error) {
	return s.doFreeze(ctx, namespace, call{method: http.MethodPut, body: FreezeRequest{Reason: reason}})
}

// End ends the freeze of exactly this namespace ("": of the whole cluster). It returns task.ErrNotFound if
// there is none.
func (s *FreezesService) End(ctx context.Context, namespace string) (FreezeStatus, error) {
	return s.doFreeze(ctx, namespace, call{method: http.MethodDelete})
}

// doFreeze sends a call about the freeze of a namespace, or of the whole cluster if namespace is "".
func (s *FreezesService) doFreeze(ctx context.Context, namespace string, k call) (FreezeStatus, error) {
	var status FreezeStatus

	k.path = "/v1/cluster/freeze"
	if namespace != "" {
		path, err := namespacePath(namespace, "/freeze")
		if err != nil {
			return status, err
		}
		k.path = path
	}

	err := s.conn.doCall(ctx, k, &status)

	return status, err
}
