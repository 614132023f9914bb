package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/executor/httpaction"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/policy"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	limitHTTP = "limit/net_http" // requests that are sent with net/http alone, to the same server

	// httpCallers is the number of requests in progress. It is the default of limit.per_target, and so the number that the
	// tasks have in progress, too.
	httpCallers = 100
	httpBody    = "x"
)

// measureHTTP measures complete runs that send a request to a server in this process, which answers at once.
func (b *bench) measureHTTP(ctx context.Context) error {
	target, err := startHTTPTarget()
	if err != nil {
		return err
	}

	defer target.close()

	b.Rig.Executor, b.Rig.HTTP = true, true
	action := task.Action{HTTP: &task.HTTP{Method: http.MethodPost, URL: target.url, Body: httpBody}}
	l := load{tasks: b.Tasks, period: saturationPeriod, origin: schedulerOrigin(), action: action, overlap: b.Overlap, keep: b.Keep}
	measure := func(d time.Duration) ([]Result, error) {
		b.progress.beginStep(limitHTTP)
		res, err := measureRequests(ctx, target.url, d)
		return []Result{res}, err
	}

	return b.measureRate(ctx, "http", l, measure)
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
func newHTTPRunner(ctx context.Context, output *spool.Spool) (executor.AttemptRunner, error) {
	rules := httpaction.Rules{HTTP: &policy.HTTP{Allow: []string{"127.0.0.0/8"}}} // the same for all attempts, as on a node

	return httpaction.New(ctx, httpaction.Config{Node: nodeName, Spool: output, Rules: func() (httpaction.Rules, error) { return rules, nil }})
}

// measureRequests measures how many requests per second net/http sends by itself, with as many at once as the tasks.
func measureRequests(ctx context.Context, url string, d time.Duration) (Result, error) {
	res := Result{Name: limitHTTP}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()

	transport := &http.Transport{MaxIdleConnsPerHost: httpCallers}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport}

	var count atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, httpCallers)
	watch := startWatch(0)

	for i := range httpCallers {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := sendRequest(ctx, &client, url); err != nil {
					if ctx.Err() == nil {
						errs[i] = err
					}
					return
				}

				count.Add(1)
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
