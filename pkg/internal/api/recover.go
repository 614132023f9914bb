package api

import (
	"fmt"
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
)

// recoverCluster serves an operator's word that the history that etcd has now is
// the one to go on with.
func (h *clusterHandlers) recoverCluster(c *call) (answer, error) {
	nodes, err := h.Store.Nodes(c.ctx())
	if err != nil {
		return answer{}, err
	}
	if restoredAt(nodes) == "" && h.Writable() == nil {
		return answer{}, fail(http.StatusConflict, client.CodeConflict, "no node says that etcd was restored from an older snapshot: there is nothing to recover from")
	}
	p, err := h.Store.Present(c.ctx())
	if err != nil {
		return answer{}, err
	}
	if !p.Found {
		return answer{}, fail(http.StatusConflict, client.CodeConflict, "etcd holds no cluster: restore it from a snapshot that does")
	}
	for _, n := range nodes { // a snapshot that is restored again is of an epoch before theirs
		p.Cluster.Epoch = max(p.Cluster.Epoch, n.Epoch)
	}
	p.Cluster = p.Cluster.MarkChanged(c.actor(), h.Now.Stamp(), "")
	next, err := h.Store.BumpEpoch(c.ctx(), p)
	if err != nil {
		return answer{}, about(fmt.Sprintf("epoch %d", next.Epoch+1), err)
	}
	return answer{status: http.StatusOK, body: next}, nil
}
