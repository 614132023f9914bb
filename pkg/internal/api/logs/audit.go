package logs

import (
	"context"
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/task"
)

// maxRecordedReads is how many reads with an audit record one subject may make within a second on this node. Otherwise
// somebody who may only read could fill the audit log, whose oldest records are removed when it is full.
const maxRecordedReads = 20

// maxForwardedReads is how many reads of a namespace that records them one node may forward to this one within a second.
// The forwarding node names the caller, so that the limit of a subject would not hold against a stolen key of a node.
const maxForwardedReads = 200

// recordRead writes the audit record of a request for output, if the namespace asks for it. The request must be refused if
// that fails.
func (h *Handlers) recordRead(ctx context.Context, c *httpapi.Call, run task.Run) error {
	if !c.Rights().RecordsReads(run.Namespace) {
		return nil
	}

	if err := h.Writable(); err != nil {
		return httpapi.Fail(http.StatusServiceUnavailable, client.CodeRestored, "namespace %s records who reads output, and nothing can be written: %s", run.Namespace, err)
	}

	who := httpapi.CallerOf(c.Context())
	if by := who.Forwarder; by != "" && !h.recorded.Allow("node:"+by, maxForwardedReads, h.Now()) {
		return httpapi.Fail(http.StatusTooManyRequests, client.CodeRateLimited, "node %s has forwarded %d reads of output within the last second, the maximum in namespaces that record them",
			by, maxForwardedReads).WithHint("try again in a second")
	}
	if !h.recorded.Allow(who.Who, maxRecordedReads, h.Now()) {
		return httpapi.Fail(http.StatusTooManyRequests, client.CodeRateLimited, "%s has read output %d times within the last second, the maximum in a namespace that records it",
			who.Name(), maxRecordedReads).WithHint("try again in a second")
	}

	return c.Rights().RecordRead(ctx, h.Store, task.AuditObject{Kind: "run", Namespace: run.Namespace, Name: run.Task, Run: run.ID})
}
