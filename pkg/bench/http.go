package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/executor/httpaction"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/policy"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	limitHTTP    = "limit/net_http" // requests that are sent with net/http alone, to the same server
	httpAttempts = "attempts"       // attempts of the same action, without scheduling and records

	// httpCallers is the number of requests in progress. It is the default of limit.per_target, and so the number that the
	// tasks have in progress, too.
	httpCallers = 100
	httpBody    = "x"
)

// measureHTTP measures complete runs that send a request to a server in this process, which answers at once. It measures
// attempts alone, too, because most of a run is scheduling and records.
func (b *bench) measureHTTP(ctx context.Context) error {
	target, err := startHTTPTarget()
	if err != nil {
		return err
	}

	defer target.close()

	action := task.Action{HTTP: &task.HTTP{Method: http.MethodPost, URL: target.url, Body: httpBody}}
	l := b.saturatingLoad(action)
	measure := func(d time.Duration) ([]Result, error) {
		b.progress.beginStep(limitHTTP)
		requests, err := measureRequests(ctx, target.url, d/2)
		if err != nil {
			return nil, err
		}

		b.progress.beginStep(httpAttempts)
		attempts, err := b.measureAttempts(ctx, action, d/2)

		return []Result{requests, attempts}, err
	}

	if err := b.measureRate(ctx, "http", l, measure); err != nil {
		return err
	}

	b.compareAttempts()

	return nil
}

// compareAttempts compares the attempts with the requests that net/http alone has sent.
func (b *bench) compareAttempts() {
	find := func(name string) *Result {
		i := slices.IndexFunc(b.report.Results, func(r Result) bool { return r.Name == name })
		if i < 0 {
			return nil // limits were not measured
		}
		return &b.report.Results[i]
	}

	if attempts := find(httpAttempts); attempts != nil {
		attempts.compareWith(find(limitHTTP))
	}
}

// httpTarget is a server on the loopback interface that answers each request at once.
type httpTarget struct {
	url    string
	server *http.Server
}

// startHTTPTarget starts the server. The caller must close it.
func startHTTPTarget() (*httpTarget, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the target: %w", err)
	}

	s := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler:           http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }),
	}
	go func() { _ = s.Serve(l) }()

	return &httpTarget{"http://" + l.Addr().String() + "/", s}, nil
}

func (t *httpTarget) close() { _ = t.server.Close() }

// newHTTPRunner returns what runs the attempts of HTTP actions. It allows the loopback interface.
func newHTTPRunner(ctx context.Context, output *spool.Spool) (*httpaction.Runner, error) {
	rules := httpaction.Rules{HTTP: &policy.HTTP{Allow: []string{"127.0.0.0/8"}}} // the same for all attempts, as on a node

	return httpaction.New(ctx, httpaction.Config{Node: nodeName, Spool: output, Rules: func() (httpaction.Rules, error) { return rules, nil }})
}

// measureRequests measures how many requests per second net/http sends by itself, with as many at once as the tasks.
func measureRequests(ctx context.Context, url string, d time.Duration) (Result, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: httpCallers}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport}

	return measureCallers(ctx, limitHTTP, d, func(ctx context.Context, _ int) error { return sendRequest(ctx, &client, url) })
}

// measureAttempts measures how many attempts of an action per second the runner of HTTP attempts makes by itself, with as
// many at once as the tasks. It is the runner of the executor, with a spool, but nothing schedules, guards or records the
// attempts.
func (b *bench) measureAttempts(ctx context.Context, action task.Action, d time.Duration) (Result, error) {
	output := spool.New(spool.Config{Dir: filepath.Join(b.dir, httpAttempts)})
	runner, err := newHTTPRunner(ctx, output)
	if err != nil {
		return Result{}, err
	}

	defer runner.Close()

	return measureCallers(ctx, httpAttempts, d, func(_ context.Context, caller int) error {
		return runAttempt(runner, action, caller)
	})
}

// runAttempt runs one attempt, which must succeed. Attempts with different numbers may run at the same time.
func runAttempt(runner *httpaction.Runner, action task.Action, number int) error {
	a := process.Attempt{Token: 1, MayStart: func() error { return nil }, OnStarted: func(time.Time) {}}
	a.Namespace, a.Task, a.ID, a.Attempt = "default", httpAttempts, strconv.Itoa(number), 1
	a.ScheduledTime = task.At(time.Now())
	a.Action = action

	res := runner.RunAttempt(a, process.NewOrders())
	if res.State != task.Succeeded {
		return fmt.Errorf("an attempt ended as %s: %s", res.State, res.Message)
	}

	return nil
}

// measureCallers measures how often httpCallers goroutines together can call a function, which is passed the number of the
// goroutine. Each of them calls it at least once, however short d is.
func measureCallers(ctx context.Context, name string, d time.Duration, call func(ctx context.Context, caller int) error) (Result, error) {
	res := Result{Name: name}
	end := time.Now().Add(d)

	var count atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, httpCallers)
	watch := startWatch(0)

	for i := range httpCallers {
		wg.Go(func() {
			for {
				if errs[i] = call(ctx, i); errs[i] != nil {
					return
				}

				if count.Add(1); time.Now().After(end) {
					return
				}
			}
		})
	}

	wg.Wait()
	watch.fillResult(count.Load(), &res)

	return res, errors.Join(errs...)
}

// sendRequest sends one request and reads the response.
func sendRequest(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(httpBody))
	if err != nil {
		return err
	}

	res, err := client.Do(req)
	if err != nil {
		return err
	}

	_, err = io.Copy(io.Discard, res.Body)

	return errors.Join(err, res.Body.Close())
}
