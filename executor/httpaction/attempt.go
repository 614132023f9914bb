package httpaction

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/mask"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

// Why an attempt ends before it has a complete response.
var (
	errKilled  = errors.New("the attempt was killed")
	errTimeout = errors.New("the attempt has reached its timeout")
)

// errNoPause is why an attempt that is asked to pause continues.
var errNoPause = errors.New("an HTTP request cannot be paused")

const (
	maxTries      = 3       // connections that a hop is offered while nothing of it was written
	maxDiscarded  = 4 << 10 // bytes of the response of a redirect that are read, so that its connection can be used again
	maxErrorBytes = 200     // of the text of an error of net/http
)

// attempt is one attempt while it runs. The goroutine of RunAttempt owns it, except for gate, hops, mask and killed. What each
// attempt needs is in one allocation, because a busy node spends as much time on memory as on requests.
type attempt struct {
	*Runner
	spec    *process.Attempt
	http    *task.HTTP
	rules   Rules
	timeout time.Duration
	gate    gate
	mask    mask.Masker
	killed  atomic.Int32 // the process.Cause of the first kill
	orders  orderWatcher

	secrets secretSource
	expect  expectation
	hop     *hopGate // the last hop that was begun; nil: none
	first   hopGate  // the first hop
	url     *url.URL // of the current hop; nil: it is not known yet
	status  int      // of the last response; 0: none
	kept    keptBody // the last response
}

// effectiveTimeout returns the timeout of an attempt: from its beginning to the end of the response, over all hops.
func effectiveTimeout(a *process.Attempt, rules Rules) time.Duration {
	timeout := min(cmp.Or(a.Timeout, task.DefaultHTTPTimeout), task.MaxHTTPTimeout).Std()
	if rules.Timeout > 0 {
		timeout = min(timeout, rules.Timeout)
	}
	return timeout
}

// userTimeout returns how long the kernel tries to deliver the attempt's data again: no longer than a fraction of the
// time after which the attempt is declared lost.
func (a *attempt) userTimeout() time.Duration {
	return min(maxUserTimeout, a.spec.EffectiveLostAfter().Std()/4)
}

// orderWatcher receives the orders of an attempt. It has a goroutine only if there are any.
type orderWatcher struct {
	done chan struct{} // closed when the attempt has ended; nil: there was no order
	wg   sync.WaitGroup
}

// begin makes the first order start the goroutine.
func (w *orderWatcher) begin(t *attempt, o *process.Orders, cancel context.CancelFunc) {
	o.OnFirst(func() {
		w.done = make(chan struct{})
		w.wg.Go(func() { t.watchOrders(o, w.done, cancel) })
	})
}

// end ends the goroutine and waits for it.
func (w *orderWatcher) end(o *process.Orders) {
	o.OnFirst(nil)

	if w.done != nil {
		close(w.done)
		w.wg.Wait()
	}
}

// watchOrders ends the attempt when it is killed, until done is closed.
func (a *attempt) watchOrders(o *process.Orders, done <-chan struct{}, cancel context.CancelFunc) {
	for {
		select {
		case <-done:
			return
		case k := <-o.Killed():
			a.killed.CompareAndSwap(int32(process.CauseNone), int32(k.Cause))
			a.gate.closeFor(errKilled) // first, because canceling the context takes effect later
			cancel()
		case <-o.PauseChanged():
			if o.PauseRequested() && a.spec.OnPause != nil {
				a.spec.OnPause(process.PauseState{Err: errNoPause})
			}
		}
	}
}

// run sends the request and returns the result, without its times.
func (a *attempt) run(ctx context.Context, out *spool.Output) process.Result {
	r, err := a.perform(ctx, out)
	if err != nil {
		r = resultOf(a.explain(ctx, err), attemptFacts{written: !a.gate.began().IsZero(), repeatable: a.http.MayRepeat()})
	}

	r.HTTPStatus = a.status

	return r
}

// perform sends the request, follows redirects, and judges the last response.
func (a *attempt) perform(ctx context.Context, out *spool.Output) (process.Result, error) {
	if err := a.expect.read(a.http); err != nil {
		return process.Result{}, err
	}

	a.secrets = secretSource{reader: a.cfg.Secrets, slots: a.secretSlots, forbidden: a.rules.NoSecrets, namespace: a.spec.Namespace, mayWait: a.spec.MayContinue, mask: &a.mask}
	q, err := newRequest(ctx, a.http, &values{a.spec, a.cfg.Node, &a.secrets}, time.Now())
	if err != nil {
		return process.Result{}, err
	}

	for hops := 0; ; hops++ {
		a.url = q.url
		resp, err := a.sendHop(ctx, q)
		if err != nil {
			return process.Result{}, err
		}

		a.status = resp.StatusCode
		location := resp.Header.Get("Location")
		if hops == a.http.Redirects || !isRedirect(resp.StatusCode) || location == "" {
			return a.receive(ctx, resp, hops, out)
		}

		a.discardBody(resp)

		if q, err = q.follow(resp.StatusCode, location); err != nil {
			return process.Result{}, err
		}
	}
}

// discardBody closes the response of a redirect. It reads a short one, so that its connection can be used again.
func (a *attempt) discardBody(resp *http.Response) {
	if n := resp.ContentLength; n >= 0 && n <= maxDiscarded {
		if _, err := io.CopyN(io.Discard, resp.Body, n); err == nil {
			a.hop.settle()
		}
	}

	resp.Body.Close()
}

// sendHop sends one request and returns the response. If it meets connections that the target has closed, it tries
// others, as long as nothing was written.
func (a *attempt) sendHop(ctx context.Context, q *request) (*http.Response, error) {
	for try := 1; ; try++ {
		// The rules are read for each hop, so that a redirect is judged by the current ones.
		if err := a.readRules(); err != nil {
			return nil, err
		}

		transport, err := a.transports.transportFor(a.rules.HTTP, q.tls)
		if err != nil {
			return nil, &failure{kind: kindSecret, message: err.Error()}
		}

		h := a.newHop()
		resp, err := transport.RoundTrip(q.httpRequest(httptrace.WithClientTrace(ctx, &h.trace)))
		if err == nil || ctx.Err() != nil || try == maxTries || !h.mayTryAgain() {
			return resp, err
		}
	}
}

// newHop begins a hop, and returns its gate.
func (a *attempt) newHop() *hopGate {
	h := &a.first
	if a.hop != nil { // a redirect, or another try: net/http may still write to the connection of the one before
		h = &hopGate{}
	}

	h.gate = &a.gate
	h.trace.GotConn = func(i httptrace.GotConnInfo) { bindHop(i.Conn, h, i.Reused, a.userTimeout()) }
	a.hop = h

	return h
}

// readRules reads the rules of the node's administrator.
func (a *attempt) readRules() error {
	if a.cfg.Rules == nil {
		return nil
	}

	rules, err := a.cfg.Rules()
	if err != nil {
		return &failure{kind: kindNoRules, message: "the node's policy: " + err.Error()}
	}
	a.rules = rules

	return nil
}

// receive reads and judges the last response. hops is the number of redirects before it.
func (a *attempt) receive(ctx context.Context, resp *http.Response, hops int, out *spool.Output) (process.Result, error) {
	defer resp.Body.Close()

	expect, kept := &a.expect, &a.kept
	got := &received{status: resp.StatusCode, header: resp.Header}
	matches := expect.matchesStatus(got.status) && got.status != http.StatusSwitchingProtocols
	judged := matches && expect.needsBody()

	if judged {
		got.body = a.newBodyBuffer(ctx, resp, expect.limit)
		defer got.body.Close()
	}

	kept.begin(&a.mask, out, !matches || expect.keep)

	if got.status != http.StatusSwitchingProtocols { // its body is the connection
		to := io.Writer(kept)
		if judged {
			to = got.body
		}

		var err error
		if got.bytes, got.tooLarge, err = readBody(resp.Body, expect.limit, to); err != nil {
			if errors.Is(err, errKeepBody) {
				a.log.Warn("cannot keep a response", zap.String("task", a.spec.Namespace+"/"+a.spec.Task), zap.String("run", a.spec.ID), zap.Error(err))
			}
			return process.Result{}, err
		}
		if !got.tooLarge {
			a.hop.settle()
		}
	}

	v, err := a.judge(ctx, got, judged)
	if err != nil {
		return process.Result{}, err
	}

	if judged {
		kept.begin(&a.mask, out, !v.succeeded || expect.keep)
		if err := kept.copyFrom(got.body); err != nil && v.message == "" {
			v.message = err.Error()
		}
	}

	if isRedirect(got.status) && hops > 0 && !v.succeeded {
		v.message += fmt.Sprintf(" after %d redirects, and no more are followed", hops)
	}

	r := process.Result{State: task.Succeeded, Message: v.message}
	kept.isCut = got.tooLarge
	r.Tail, r.OutputBytes, r.Truncated = kept.end()
	r.Truncated = r.Truncated || got.tooLarge
	r.Status = statusOf(a.spec, v.results)

	if !v.succeeded {
		r.State, r.Reason = task.Failed, task.ReasonAnswer
		a.askedToWait(&r, got, hops)
	}

	return r, nil
}

// newBodyBuffer returns the buffer for a response that is judged. If it becomes large, it waits until the temporary files
// of other responses have been judged. Meanwhile, the target cannot send more.
func (a *attempt) newBodyBuffer(ctx context.Context, resp *http.Response, limit task.Size) *bodyBuffer {
	size := int64(limit)
	if resp.ContentLength > 0 { // unknown if the response is compressed
		size = min(size, resp.ContentLength)
	}

	return &bodyBuffer{
		dir: a.cfg.Dir,
		reserve: func() error {
			if a.disk.Acquire(ctx, size) != nil {
				return errDiskLimit
			}
			return nil
		},
		free: func() { a.disk.Release(size) },
	}
}

// judge judges a response. The timeout of the attempt limits that, too: a pattern can take minutes for a large response. An
// error is why the attempt was ended.
func (a *attempt) judge(ctx context.Context, got *received, judged bool) (verdict, error) {
	if !judged {
		return a.expect.judge(ctx, got, &a.mask), nil
	}

	v := verdict{}
	if a.awaitJudging(ctx, got) {
		v = a.expect.judge(ctx, got, &a.mask)
		a.endJudging(got)
	}

	// A verdict that the end of ctx has cut short can also be a success, because a pattern may match a part of the body.
	switch {
	case ctx.Err() == nil:
		return v, nil
	case errors.Is(context.Cause(ctx), errTimeout):
		return verdict{message: fmt.Sprintf("%s, but the response could not be judged by expect.body and results within %s", statusText(got.status), task.Duration(a.timeout))}, nil
	}

	return verdict{}, context.Cause(ctx)
}

// awaitJudging waits until fewer than maxJudging large responses are judged. It returns false if ctx ends before.
func (a *attempt) awaitJudging(ctx context.Context, got *received) bool {
	if got.body.isSmall() {
		return true
	}

	select {
	case a.judging <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// endJudging lets another large response be judged.
func (a *attempt) endJudging(got *received) {
	if !got.body.isSmall() {
		<-a.judging
	}
}

// askedToWait makes the attempt a free one if the target asks to wait. After a redirect, the first target may have done
// something already.
func (a *attempt) askedToWait(r *process.Result, got *received, hops int) {
	wait, asks := retryAfter(got.status, got.header, time.Now())
	if !asks || hops > 0 && !a.http.MayRepeat() {
		return
	}

	r.Reason, r.Unsent, r.RetryAfter = task.ReasonUnsent, true, wait
	r.Message = joinMessages(r.Message, "the target asks to wait "+task.Duration(wait).String())
}
