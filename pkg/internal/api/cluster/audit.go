package cluster

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/audit"
	"github.com/carillonhq/carillon/pkg/task"
)

const auditAbout = "Reads all records at one revision, a thousand at a time. Suspicious records are read again a few seconds later: only those that have not " +
	"changed are findings. The answer is NDJSON: a line with the progress about once a second, and a last line with the findings, " +
	"or with the error that ended the audit. A node runs one audit at a time."

// auditQuery are the parameters of an audit. The pause between its two reads must be long enough for a busy
// cluster to have made progress, and for nodes to have announced themselves. Its default is audit.DefaultPause.
type auditQuery struct {
	Pause int `query:"pause" minimum:"1" maximum:"60" default:"6" doc:"Seconds between the two reads."`
}

// maxRepairs is the maximum number of findings that one request repairs.
const maxRepairs = 100

// newAuditor returns an auditor of this cluster.
func (h *Handlers) newAuditor() audit.Auditor {
	return audit.Auditor{Store: h.Store, Ref: h.Ref, Now: h.Now, Node: h.Node}
}

// serveAudit serves an audit as NDJSON. One audit at a time runs on a node.
func (h *Handlers) serveAudit(c *httpapi.Call, q auditQuery) (httpapi.Answer, error) {
	if !h.auditing.CompareAndSwap(false, true) {
		return httpapi.Answer{}, httpapi.Fail(http.StatusConflict, client.CodeConflict, "node %s is already running an audit", h.Node).WithHint("wait until it ends, or use another node")
	}

	// The audit ends before its last line is written, so that a caller who has read that line can start another
	// audit at once.
	over := sync.OnceFunc(func() { h.auditing.Store(false) })
	defer over()

	// Until the first line is written, an error can still be answered with a status.
	begun := false
	tell := func(l client.AuditLine) {
		if !begun {
			begun = true
			c.Writer.Header().Set("Content-Type", httpapi.TypeLines)
		}

		_ = httpapi.WriteJSON(c.Writer, l) // if the caller has gone, ctx ends
		_ = http.NewResponseController(c.Writer).Flush()
	}

	au := h.newAuditor()
	au.Pause = time.Duration(q.Pause) * time.Second
	ctx, cancel := context.WithCancelCause(c.Context())
	defer cancel(nil)

	au.OnProgress = func(p task.AuditProgress) {
		tell(client.AuditLine{Progress: &p})
		if err := h.CheckStream(ctx, c.Request); err != nil && httpapi.AsFailure(err).Status < http.StatusInternalServerError {
			cancel(err) // the token is no longer valid; an audit can take minutes
		}
	}

	found, err := au.Run(ctx)
	// The error of the auditor may only state that ctx ended; the cause is the reason.
	if cause := context.Cause(ctx); err != nil && cause != nil && c.Context().Err() == nil {
		err = cause
	}

	over()

	switch {
	case err == nil:
		tell(client.AuditLine{Audit: &found})
	case begun:
		f := httpapi.AsFailure(err)
		h.Problems.LogFailure(c.Request, f)
		tell(client.AuditLine{Error: &f.Problem})
	default:
		return httpapi.Answer{}, err
	}

	return httpapi.Answer{}, nil
}

// serveRepair repairs findings one after another, and stops after the first that fails.
func (h *Handlers) serveRepair(c *httpapi.Call) (httpapi.Answer, error) {
	var body client.Repairs
	if err := c.Decode(&body); err != nil {
		return httpapi.Answer{}, err
	}
	if n := len(body.Findings); n == 0 || n > maxRepairs {
		return httpapi.Answer{}, task.Invalid(task.CodeOutOfRange, "findings", "%d findings; send between 1 and %d", n, maxRepairs)
	}

	var mended []string
	results := make([]task.RepairResult, 0, len(body.Findings))
	for _, r := range body.Findings {
		var res task.RepairResult
		finding := []task.AuditObject{{Kind: "key", Name: r.Key, Change: "delete"}}
		err := c.Rights().RecordAround(c.Context(), h.Store, finding, func() (err error) {
			res, err = h.newAuditor().Repair(c.Context(), r)
			return err
		})
		if err != nil {
			f := httpapi.AsFailure(err)
			h.Problems.LogFailure(c.Request, f)
			res.Result, res.Message = task.RepairFailed, f.Detail
		}

		if res.Deleted > 0 {
			mended = append(mended, fmt.Sprintf("%s %s (%d deleted)", r.Kind, r.Key, res.Deleted))
			h.Log.Info("repaired", zap.String("kind", r.Kind), zap.String("key", r.Key), zap.Int64("deleted", res.Deleted), zap.Stringer("who", c.Actor()))
		}

		if results = append(results, res); err != nil {
			break
		}
	}

	// Repairs delete records, so the cluster's record must show who requested them.
	if len(mended) > 0 {
		h.noteChange(c, "repaired: "+strings.Join(mended, ", "))
	}

	return httpapi.All(results)
}
