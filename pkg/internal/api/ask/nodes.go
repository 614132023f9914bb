package ask

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

// schedulingNodes returns the nodes that may own shards, this one first. While etcd is away, they are those that were
// last known.
func (a *Asker) schedulingNodes(ctx context.Context) []task.Node {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
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

// values returns the answers in the order of the nodes' names.
func values(answers map[string]readmodel.NodeAnswer) []readmodel.NodeAnswer {
	list := make([]readmodel.NodeAnswer, 0, len(answers))
	for _, name := range slices.Sorted(maps.Keys(answers)) {
		list = append(list, answers[name])
	}

	return list
}

// askNodes asks nodes at the same time. without contains, by node, the shards that it is to leave out. Each node is in
// one of the results.
func (a *Asker) askNodes(ctx context.Context, caller httpapi.Caller, q *Question, now task.Time, nodes []task.Node, without map[string][]int) (map[string]readmodel.NodeAnswer, map[string]error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()

	var mu sync.Mutex
	answers, failures := map[string]readmodel.NodeAnswer{}, map[string]error{}
	g := callgroup.New()
	g.SetLimit(peers.AtOnce)

	for _, n := range nodes {
		g.Go(func() error {
			answer, err := a.askNode(ctx, caller, q, now, n, without[n.Name])

			mu.Lock()
			defer mu.Unlock()

			if err != nil {
				failures[n.Name] = err
			} else {
				answers[n.Name] = answer
			}

			return nil
		})
	}

	_ = g.Wait() // the functions return no errors

	return answers, failures
}

// askNode asks one node.
func (a *Asker) askNode(ctx context.Context, caller httpapi.Caller, q *Question, now task.Time, n task.Node, without []int) (readmodel.NodeAnswer, error) {
	if n.Name == a.Node {
		return a.own(ctx, q.query(caller.Who, now.UnixMilli()), without)
	}

	return a.askPeer(ctx, caller, q, now, n, without)
}

// own answers a query for the shards of this node. A node that does not answer in time is busy, and not away.
func (a *Asker) own(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
	if a.Own == nil {
		return readmodel.NodeAnswer{Node: a.Node}, nil
	}

	within, cancel := context.WithTimeout(ctx, scanWithin)
	defer cancel()

	answer, err := a.Own(within, q, without)
	if errors.Is(err, context.DeadlineExceeded) {
		err = &readmodel.Busy{Node: a.Node, RetryAfter: time.Second}
	}

	return answer, err
}

// maxURI is the maximum length of the URI of a question. Nodes refuse longer ones, and the headers need space as well.
const maxURI = 56 << 10

// askPeer asks another node on behalf of the caller.
func (a *Asker) askPeer(ctx context.Context, caller httpapi.Caller, q *Question, now task.Time, n task.Node, without []int) (answer readmodel.NodeAnswer, err error) {
	v := q.values()
	v.Set("now", strconv.FormatInt(now.UnixMilli(), 10))
	if len(without) > 0 {
		v.Set("without", strings.Trim(strings.ReplaceAll(fmt.Sprint(without), " ", ","), "[]"))
	}

	req, err := a.Peers.NewRequest(ctx, caller, n, http.MethodGet, v, strings.Split(strings.Trim(askPath, "/"), "/")...)
	if err != nil {
		return answer, err
	}
	if len(req.URL.RequestURI()) > maxURI {
		return answer, task.Invalid(task.CodeTooLong, "", "the question, with the namespaces that you may read, is longer than %d bytes; ask for fewer names", maxURI)
	}

	host := req.URL.Host
	res, err := a.Peers.RoundTrip(req)
	if errors.Is(err, context.DeadlineExceeded) {
		return answer, fmt.Errorf("node %s: no answer from %s within %s", n.Name, host, answerWithin)
	}
	if err != nil {
		return answer, fmt.Errorf("node %s at %s: %w", n.Name, host, err)
	}

	defer res.Body.Close()

	if err := peers.Refusal(res); err != nil {
		return answer, fmt.Errorf("node %s at %s: %w", n.Name, host, err)
	}

	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusTooManyRequests:
		ms, _ := strconv.Atoi(res.Header.Get(retryHeader))
		return answer, &readmodel.Busy{Node: n.Name, RetryAfter: time.Duration(max(ms, 50)) * time.Millisecond}
	default:
		return answer, fmt.Errorf("node %s at %s: it answered %s", n.Name, host, res.Status)
	}

	if err := json.NewDecoder(io.LimitReader(res.Body, peers.MaxAnswer)).Decode(&answer); err != nil {
		return answer, fmt.Errorf("node %s at %s: it sent an unreadable answer: %w", n.Name, host, err)
	}
	// The address may meanwhile belong to another node, whose answer must not be counted for this one.
	if answer.Node != n.Name {
		return answer, fmt.Errorf("node %s: another node, %s, answers at %s", n.Name, task.Quote(answer.Node), host)
	}

	return answer, nil
}

// retryHeader is the header with which a busy node says after how many milliseconds it can be asked again. Retry-After
// has only seconds.
const retryHeader = "X-Carillon-Retry-Ms"

// askPath is the path of the operation with which nodes ask each other.
const askPath = "/v1/tasks:ask"

// answerNode serves the question of another node.
func (a *Asker) answerNode(c *httpapi.Call, r questionQuery) (httpapi.Answer, error) {
	caller := httpapi.CallerOf(c.Context())
	if caller.Forwarder == "" {
		return httpapi.Answer{}, httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "only nodes of the cluster may ask this").
			WithHint("GET /v1/tasks lists tasks")
	}

	q, without, err := r.question()
	if err != nil {
		return httpapi.Answer{}, err
	}
	if err := checkRights(c.Rights(), &q); err != nil {
		return httpapi.Answer{}, err
	}

	answer, err := a.own(c.Context(), q.query(caller.Who, cmp.Or(r.Now, a.Now.Stamp().UnixMilli())), without)
	var busy *readmodel.Busy
	if errors.As(err, &busy) {
		c.Writer.Header().Set(retryHeader, strconv.FormatInt(busy.RetryAfter.Milliseconds(), 10))
		err = busyFailure(c, busy)
	}

	return httpapi.Answer{Status: http.StatusOK, Body: answer}, err
}
