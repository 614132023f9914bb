package attempts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/task"
)

const cancelAbout = "Only nodes request this of each other, on behalf of a caller who cancels a run while etcd is full. The node ends the attempt, and records its end when etcd has space. It refuses (409) unless etcd refuses its own writes as well. To cancel a run, use POST /v1/namespaces/{ns}/tasks/{name}/runs/{id}/cancel."

// cancelLimit is how long a request to cancel an attempt waits for its node.
const cancelLimit = 8 * time.Second

// cancelQuery are the parameters of cancel-attempt.
type cancelQuery struct {
	Run   string `query:"run" doc:"The run, as namespace/task/id."`
	Token int64  `query:"token" doc:"The fencing token of the attempt."`
}

// cancelAttempt serves the request of another node to end an attempt of this one. That node has judged what the caller
// may do; the statement names the caller.
func (h *Handlers) cancelAttempt(c *httpapi.Call, q cancelQuery) (httpapi.Answer, error) {
	if httpapi.CallerOf(c.Context()).Forwarder == "" {
		return httpapi.Answer{}, httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "only nodes may request this").
			WithHint("to cancel a run: POST /v1/namespaces/{ns}/tasks/{name}/runs/{id}/cancel")
	}

	words := strings.Split(q.Run, "/")
	if len(words) != 3 {
		return httpapi.Answer{}, task.Invalid(task.CodeBadValue, "run", "%s is not namespace/task/id", task.Quote(q.Run))
	}

	out, err := h.cancelHere(c.Context(), task.LateCancel{Namespace: words[0], Task: words[1], Run: words[2], Token: q.Token, By: c.Actor()})
	if err == nil && !out.Repeated && !out.State.Final() {
		// The other node writes the audit record. If its key is stolen, this line is the only trace of who asked.
		h.Log.Warn("another node cancels an attempt, because etcd is full", zap.String("from", httpapi.CallerOf(c.Context()).Forwarder),
			zap.String("task", words[0]+"/"+words[1]), zap.String("run", words[2]), zap.Stringer("by", c.Actor()))
	}
	if err != nil && !errors.Is(err, task.ErrConflict) && !errors.Is(err, task.ErrUnknown) {
		err = httpapi.Fail(http.StatusInsufficientStorage, client.CodeNoSpace, "%s", err).Because(err)
	}

	return httpapi.Answer{Status: http.StatusOK, Body: client.AttemptCancel{Node: h.Node, LateCancelled: out}}, err
}

// cancelHere ends an attempt of this node.
func (h *Handlers) cancelHere(ctx context.Context, c task.LateCancel) (task.LateCancelled, error) {
	if h.Source == nil {
		return task.LateCancelled{}, fmt.Errorf("%w: no attempts run on node %s", task.ErrConflict, h.Node)
	}
	return h.Source.CancelAttempt(ctx, c)
}

// CancelLate makes the node of an attempt end it, although etcd is full and has no record of the cancel. who is the
// caller on whose behalf c.By cancels it; the caller's right to do so must have been proved. If the
// returned state is final, the attempt has ended before, and only the record of its end is missing.
//
// The error is task.ErrConflict if the state of the run or of etcd has changed, so that the cancel must be decided
// again, or else a *httpapi.Failure.
func (h *Handlers) CancelLate(ctx context.Context, who httpapi.Caller, node string, c task.LateCancel) (task.LateCancelled, error) {
	ctx, cancel := context.WithTimeout(ctx, cancelLimit)
	defer cancel()

	ask := h.cancelHere
	if node != h.Node {
		ask = func(ctx context.Context, c task.LateCancel) (task.LateCancelled, error) {
			return h.cancelThere(ctx, who, node, c)
		}
	}

	out, err := ask(ctx, c)
	switch {
	case err == nil, errors.Is(err, task.ErrConflict):
		return out, err
	case errors.Is(err, task.ErrUnknown):
		return task.LateCancelled{}, httpapi.Fail(http.StatusGatewayTimeout, client.CodeUnknown,
			"etcd is full, and node %s did not answer whether it ends the run: it may have ended it, or may still end it", node).
			WithHint("check the run when etcd has space").Because(err)
	}

	return task.LateCancelled{}, httpapi.Fail(http.StatusInsufficientStorage, client.CodeNoSpace,
		"etcd is full, so it cannot store the cancel, and node %s does not end the run: %s", node, httpapi.Shorten(err.Error())).
		WithHint("make space as carillon cluster status describes; then cancel the run again").Because(err)
}

// cancelThere asks another node to end an attempt. After an error that wraps task.ErrUnknown, it may have done so.
func (h *Handlers) cancelThere(ctx context.Context, who httpapi.Caller, node string, c task.LateCancel) (task.LateCancelled, error) {
	n, err := h.Store.Node(ctx, node)
	if errors.Is(err, task.ErrNotFound) {
		return task.LateCancelled{}, errors.New("the node is not present")
	}
	if err != nil {
		return task.LateCancelled{}, err
	}

	req, err := h.Peers.NewCancel(ctx, who, n, c)
	if err != nil {
		return task.LateCancelled{}, err
	}

	res, err := h.Peers.RoundTrip(req)
	if err != nil {
		// Unless the connection failed, the request may have arrived.
		if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
			return task.LateCancelled{}, err
		}
		return task.LateCancelled{}, fmt.Errorf("%w: %w", task.ErrUnknown, err)
	}

	defer res.Body.Close()

	if err := peers.Refusal(res); err != nil {
		return task.LateCancelled{}, err
	}

	answer := io.LimitReader(res.Body, httpapi.MaxBody)
	if res.StatusCode != http.StatusOK {
		return task.LateCancelled{}, refusedCancel(res, answer)
	}

	var a client.AttemptCancel
	if err := json.NewDecoder(answer).Decode(&a); err != nil {
		return task.LateCancelled{}, fmt.Errorf("%w: %w", task.ErrUnknown, err)
	}

	// The address may meanwhile belong to another node.
	if a.Node != node {
		return task.LateCancelled{}, fmt.Errorf("%w: another node, %s, answers at %s", task.ErrUnknown, task.Quote(a.Node), req.URL.Host)
	}

	return a.LateCancelled, nil
}

// refusedCancel returns the error in another node's answer.
func refusedCancel(res *http.Response, answer io.Reader) error {
	var p client.Problem
	if err := json.NewDecoder(answer).Decode(&p); err != nil || p.Detail == "" {
		p.Detail = "it answered " + res.Status
	}

	switch res.StatusCode {
	case http.StatusConflict:
		return fmt.Errorf("%w: %s", task.ErrConflict, p.Detail)
	case http.StatusGatewayTimeout:
		return fmt.Errorf("%w: %s", task.ErrUnknown, p.Detail)
	}

	return errors.New(p.Detail)
}
