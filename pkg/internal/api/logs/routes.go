package logs

import (
	"context"
	"net/http"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handlers serve the output of attempts. They are safe for concurrent use.
type Handlers struct {
	Store  *store.Store
	Ref    func(namespace, name string) record.Ref // maps a task to its shard
	Runs   RunFinder
	Peers  *peers.Client
	Node   string // the name of this node
	Source Source // the output stored on this node; nil: none
	// CheckStream returns why the caller of a running request may no longer read the answer.
	CheckStream func(ctx context.Context, r *http.Request) error
	Ends        <-chan struct{} // closed when the node stops serving requests; may be nil
	Heartbeat   time.Duration   // how often a stream checks whether its caller still has access
	Problems    httpapi.ProblemWriter
	// Writable returns an error if this node must not change anything, so that it cannot record reads.
	Writable func() error
	Now      httpapi.Clock

	following httpapi.Slots       // of requests that follow output
	recorded  httpapi.SubjectRate // reads with an audit record
}

// RunFinder finds a run of a task.
type RunFinder interface {
	// Find returns the run with an id or a unique prefix of an id.
	Find(ctx context.Context, ref record.Ref, id string) (task.Run, error)
}

// Followers returns the number of requests that follow output at this node or through it.
func (h *Handlers) Followers() int { return h.following.Held() }

// Routes returns the operations on output.
func (h *Handlers) Routes() []*httpapi.Operation {
	const get = http.MethodGet

	return []*httpapi.Operation{
		{ID: "get-run-logs", Verb: access.Output, Kind: access.Runs, Forwarded: true, Method: get, Path: httpapi.OfRun + "/logs", Tag: "runs", Summary: "Read the output of an attempt on any node",
			Description: logsAbout, Status: 200, Streams: true, Errors: []int{206, 409, 416, 429, 508}, Handler: httpapi.Query(h.runLogs)},
	}
}

const logsAbout = "With follow=true, the answer continues as the attempt writes, and waits for an attempt that has not started. It ends when the attempt ends. " +
	"If anything else ends it, it is cut off (without the last chunk): request the rest, with from. " + client.LogsFromHeader + " contains the offset at which the answer begins. " +
	"With times=true, each line of output is a line of JSON (" + httpapi.TypeLines + "): from (its offset), time, stream (stdout or stderr, if the task " +
	"keeps them apart), text, or base64 if it is not UTF-8, and unended if the line continues in another one. Output stored by earlier versions has no times. " +
	"In a namespace with audit_reads, the request first writes an audit record."
