package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// AtOnce is the maximum number of nodes that AskAll asks at the same time.
	AtOnce = 32
	// MaxURI is the maximum length of the URI of a question, in bytes. Nodes refuse longer requests, and the headers need
	// space as well.
	MaxURI = 56 << 10
	// RetryHeader is the header with which a node that answers 429 says after how many milliseconds it can be asked again.
	// Retry-After has only seconds.
	RetryHeader = "X-Carillon-Retry-Ms"

	// maxAnswer is the maximum length of an answer, in bytes.
	maxAnswer = 16 << 20
	// minRetry and maxRetry limit what RetryHeader may say.
	minRetry, maxRetry = 50 * time.Millisecond, time.Minute
)

// Question is a question to several nodes on behalf of a caller. T is the type of an answer, which is sent as JSON.
type Question[T any] struct {
	Caller httpapi.Caller
	// Own answers for this node. It should return when its context ends, which is after Timeout.
	Own func(ctx context.Context) (T, error)
	// Path is the path of the GET request for other nodes, and Values returns its parameters.
	Path    string
	Values  func(n task.Node) url.Values
	Timeout time.Duration
	// NodeOf returns the name of the node that has given an answer.
	NodeOf func(answer T) string
}

// AskAll asks nodes at the same time. Each node is in one of the results, by its name. A failure is
//
//   - a *readmodel.Busy (wrapped) if the node is busy, with the time after which it can be asked again,
//   - a *task.Error if the request is longer than MaxURI, also for this node,
//   - what Own returned, for this node,
//   - or an error that says why the node's answer does not count: it does not answer in time, refuses, redirects, or
//     sends an answer that is too long or not readable, or another node answers at its address.
//
// Failures do not name their node: callers that show one alone add its name (see NodeError).
//
// If Own panics, AskAll panics in the goroutine of its caller, after all other nodes have answered.
func AskAll[T any](ctx context.Context, p *Client, nodes []task.Node, q Question[T]) (answers map[string]T, failures map[string]error) {
	ctx, cancel := context.WithTimeout(ctx, q.Timeout)
	defer cancel()

	var mu sync.Mutex
	answers, failures = map[string]T{}, map[string]error{}
	g := callgroup.New()
	g.SetLimit(AtOnce)

	for _, n := range nodes {
		g.Go(func() error {
			answer, err := q.askNode(ctx, p, n)

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

// NodeError returns a failure of AskAll in the form in which it is shown alone, with the name of its node.
func NodeError(node string, err error) error { return fmt.Errorf("node %s: %w", node, err) }

// askNode asks one node.
func (q *Question[T]) askNode(ctx context.Context, p *Client, n task.Node) (answer T, err error) {
	// This node refuses what others would refuse, so that a question does not depend on how many nodes there are.
	values := q.Values(n)
	if len(q.Path)+len("?")+len(encodeQuery(values)) > MaxURI {
		return answer, task.Invalid(task.CodeTooLong, "", "the question, with the namespaces that you may read, is longer than %d bytes; ask for one namespace", MaxURI)
	}
	if n.Name == p.Node {
		return q.Own(ctx)
	}

	req, err := p.NewRequest(ctx, q.Caller, n, http.MethodGet, values, strings.Split(strings.Trim(q.Path, "/"), "/")...)
	if err != nil {
		return answer, err
	}

	err = p.receive(req, n.Name, &answer)
	if err == nil && q.NodeOf(answer) != n.Name {
		// The address may meanwhile belong to another node, whose answer must not count for this one.
		err = fmt.Errorf("another node, %s, answers", task.Quote(q.NodeOf(answer)))
	}

	if errors.Is(err, context.DeadlineExceeded) {
		return answer, fmt.Errorf("no answer from %s within %s", req.URL.Host, q.Timeout)
	}
	if err != nil {
		return answer, fmt.Errorf("%s: %w", req.URL.Host, err)
	}

	return answer, nil
}

// receive sends a request to another node, and decodes its answer.
func (cl *Client) receive(req *http.Request, node string, answer any) error {
	res, err := cl.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()

	if err := Refusal(res); err != nil {
		return err
	}

	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusTooManyRequests:
		ms, _ := strconv.ParseInt(res.Header.Get(RetryHeader), 10, 32)
		return &readmodel.Busy{Node: node, RetryAfter: min(max(time.Duration(ms)*time.Millisecond, minRetry), maxRetry)}
	default:
		return fmt.Errorf("it answered %s", res.Status)
	}

	body := &io.LimitedReader{R: res.Body, N: maxAnswer}
	if err := json.NewDecoder(body).Decode(answer); err != nil {
		if body.N == 0 {
			return fmt.Errorf("its answer is longer than %d bytes", maxAnswer)
		}
		return fmt.Errorf("it sent an unreadable answer: %w", err)
	}

	return nil
}
