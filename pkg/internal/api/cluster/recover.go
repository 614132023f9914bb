package cluster

import (
	"fmt"
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// recoverCluster serves an operator's decision to continue with the history that etcd contains now, after a
// restore.
func (h *Handlers) recoverCluster(c *httpapi.Call) (httpapi.Answer, error) {
	nodes, err := h.Store.Nodes(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}
	if restoredAt(nodes) == "" && h.Writable() == nil {
		return httpapi.Answer{}, httpapi.Fail(http.StatusConflict, client.CodeConflict, "no node reports that etcd was restored from an older snapshot, so there is nothing to recover from")
	}

	p, err := h.Store.Present(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}
	if !p.Found {
		return httpapi.Answer{}, httpapi.Fail(http.StatusConflict, client.CodeConflict, "etcd contains no cluster: restore it from a snapshot that contains one")
	}

	for _, n := range nodes { // a snapshot that is restored twice has an epoch older than that of the nodes
		p.Cluster.Epoch = max(p.Cluster.Epoch, n.Epoch)
	}

	p.Cluster = p.Cluster.MarkChanged(c.Actor(), h.Now.Stamp(), "")
	next, err := h.Store.As(c.Rights()).BumpEpoch(c.Context(), p)
	if err != nil {
		return httpapi.Answer{}, httpapi.About(fmt.Sprintf("epoch %d", next.Epoch+1), err)
	}

	return httpapi.Answer{Status: http.StatusOK, Body: next}, nil
}
