package ask

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

// schedulingNodes returns the nodes that may own shards, this one first. While etcd is away, they are those that were
// last known.
func (a *Asker) schedulingNodes(ctx context.Context) []task.Node {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()

	nodes, err := a.Nodes(ctx)

	a.mu.Lock()
	defer a.mu.Unlock()

	if err == nil {
		a.nodes = nodes
	}

	list := []task.Node{{Name: a.Node}}
	for _, n := range a.nodes {
		if n.Name != a.Node && n.Has(task.RoleScheduler) {
			list = append(list, n)
		}
	}

	return list
}

// busyNodes returns the nodes that were too busy to answer, and after which time all of them may be asked again.
func busyNodes(nodes []task.Node, failures map[string]error) (list []task.Node, wait time.Duration) {
	for _, n := range nodes {
		var busy *readmodel.Busy
		if errors.As(failures[n.Name], &busy) {
			list, wait = append(list, n), max(wait, busy.RetryAfter)
		}
	}

	return list, wait
}

// inOrder returns the answers in the order of the nodes' names.
func inOrder(answers map[string]readmodel.NodeAnswer) []readmodel.NodeAnswer {
	list := make([]readmodel.NodeAnswer, 0, len(answers))
	for _, name := range slices.Sorted(maps.Keys(answers)) {
		list = append(list, answers[name])
	}

	return list
}

// askNodes asks nodes at the same time. without contains, by node, the shards that it is to leave out. Each node is in
// one of the results.
func (a *Asker) askNodes(ctx context.Context, caller httpapi.Caller, q *Question, nodes []task.Node, without map[string][]int) (map[string]readmodel.NodeAnswer, map[string]error) {
	return peers.AskAll(ctx, a.Peers, nodes, peers.Question[readmodel.NodeAnswer]{
		Caller: caller, Path: askPath, Timeout: answerTimeout,
		Own: func(ctx context.Context) (readmodel.NodeAnswer, error) {
			return a.own(ctx, q.query(caller.Who), without[a.Node])
		},
		Values: func(n task.Node) url.Values {
			asked := *q
			asked.Without = without[n.Name]

			return url.Values{"question": {asked.encode()}}
		},
		NodeOf: func(answer readmodel.NodeAnswer) string { return answer.Node },
	})
}

// own answers a query for the shards of this node. A node that does not answer in time is busy, and not away.
func (a *Asker) own(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
	if a.Own == nil {
		return readmodel.NodeAnswer{Node: a.Node}, nil
	}

	within, cancel := context.WithTimeout(ctx, scanTimeout)
	defer cancel()

	answer, err := a.Own(within, q, without)
	if errors.Is(err, context.DeadlineExceeded) {
		err = &readmodel.Busy{Node: a.Node, RetryAfter: time.Second}
	}

	return answer, err
}

// askPath is the path of the operation with which nodes ask each other.
const askPath = "/v1/tasks:ask"

// nodeQuery is the parameter of a question that one node asks another.
type nodeQuery struct {
	Question string `query:"question" doc:"The question, as JSON."`
}

// answerNode serves the question of another node.
func (a *Asker) answerNode(c *httpapi.Call, r nodeQuery) (httpapi.Answer, error) {
	caller := httpapi.CallerOf(c.Context())
	if caller.Forwarder == "" {
		return httpapi.Answer{}, httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "only nodes of the cluster may ask this").
			WithHint("GET /v1/tasks lists tasks")
	}

	q, err := decodeQuestion(r.Question)
	if err != nil {
		return httpapi.Answer{}, task.Under("question", err)
	}
	if err := checkRights(c.Rights(), &q); err != nil {
		return httpapi.Answer{}, err
	}

	answer, err := a.own(c.Context(), q.query(caller.Who), q.Without)
	var busy *readmodel.Busy
	if errors.As(err, &busy) {
		c.Writer.Header().Set(peers.RetryHeader, strconv.FormatInt(busy.RetryAfter.Milliseconds(), 10))
		err = busyFailure(c, busy)
	}

	return httpapi.Answer{Status: http.StatusOK, Body: answer}, err
}

// Routes returns the operation with which nodes ask each other.
func (a *Asker) Routes() []*httpapi.Operation {
	return []*httpapi.Operation{
		{ID: "ask-owner", Forwarded: true, Method: http.MethodGet, Path: askPath, Tag: "cluster", Summary: "Ask a node about the tasks of its shards; only for other nodes",
			Description: "The node that receives the request of a caller asks the owners of all shards, and merges their answers.",
			Status:      200, Answer: reflect.TypeFor[readmodel.NodeAnswer](), Errors: []int{429}, Handler: httpapi.Query(a.answerNode)},
	}
}

// checkRights refuses a question of another node about what the access records of this node do not let its caller read.
// Then one of the two nodes does not know a change yet, and an answer would be wrong, or would lack something.
func checkRights(rights *httpapi.Rights, q *Question) error {
	kinds := []access.Kind{access.Tasks}
	if q.AboutRuns() {
		kinds = append(kinds, access.Runs)
	}

	namespaces := q.Within
	if q.Namespace != "" {
		namespaces = []string{q.Namespace}
	}

	for _, k := range kinds {
		if err := rights.CheckForwarded(k, namespaces); err != nil {
			return err
		}
	}

	return nil
}
