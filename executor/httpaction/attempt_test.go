package httpaction

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/task"
)

// behaviours are the paths of the probe, with what is known after them.
var behaviours = []struct {
	path    string
	outcome string // "ok", "failed" (a complete response), or "unanswered"
}{
	{"ok", "ok"}, {"early", "ok"}, {"hints", "ok"}, {"early-close", ""}, // the request may still be written when the connection closes
	{"after-headers", "unanswered"}, {"after-body", "unanswered"}, {"mid-headers", "unanswered"}, {"mid-body", "unanswered"}, {"mid-chunk", "unanswered"},
	{"garbage", "unanswered"}, {"silent", "unanswered"}, {"big-headers", "unanswered"}, {"switch", "failed"}, {"circle", "failed"}, {"fail", "failed"}, {"endless", "ok"},
}

// TestRunAttempt_SendsOnce runs each method, with and without a body, on new and on reused connections, against each
// behaviour of a server. It counts the requests that arrive, so that a new release of Go cannot begin to repeat requests
// unseen.
func TestRunAttempt_SendsOnce(t *testing.T) {
	p := newProbe(t)
	bodies := map[string]string{"no body": "", "small body": "x", "large body": strings.Repeat("x", 300<<10)}

	var wg sync.WaitGroup
	for _, b := range behaviours {
		for _, method := range task.HTTPMethods() {
			for name, body := range bodies {
				for _, reused := range []bool{false, true} {
					wg.Go(func() {
						h := task.HTTP{Method: method, URL: p.url + "/" + b.path, Body: body}
						if b.path == "circle" {
							h.Redirects = 3
						}
						checkSendsOnce(t, p, h, b.outcome, fmt.Sprintf("%s, %s, %s, reused: %v", b.path, method, name, reused), reused)
					})
				}
			}
		}
		wg.Wait() // few at a time
	}
}

// checkSendsOnce runs one attempt and compares its result with what has arrived.
func checkSendsOnce(t *testing.T, p *probe, h task.HTTP, outcome, name string, reused bool) {
	r := newRunner(t, nil)
	if reused {
		if res := run(r, task.HTTP{URL: p.url + "/ok"}); res.State != task.Succeeded {
			t.Errorf("%s: warm-up: %+v", name, res)
		}
	}

	a, seen := newAttempt(h)
	if strings.HasSuffix(h.URL, "/silent") {
		a.Timeout = task.Duration(100 * time.Millisecond)
	}

	res := r.RunAttempt(a, process.NewOrders())
	arrived := p.arrivalsOf(a.Token)
	most := 1
	if h.Redirects > 0 {
		most += h.Redirects
	}

	// A request that was cut off in its headers does not count as arrived.
	if len(arrived) > most || res.State == task.Succeeded && len(arrived) != 1 || (res.Unsent || res.NotStarted) && len(arrived) > 0 {
		t.Errorf("%s: %d arrivals, result %+v", name, len(arrived), res)
	}
	if len(arrived) > 0 && (seen.asked != 1 || len(seen.started) != 1 || !res.StartedAt.Equal(seen.started[0])) {
		t.Errorf("%s: MayStart was called %d times and OnStarted %d times; result %+v", name, seen.asked, len(seen.started), res)
	}

	headless := h.Method == http.MethodHead && slices.Contains([]string{"mid-body", "mid-chunk", "endless"}, strings.TrimPrefix(h.URL, p.url+"/")) // complete without a body
	want := ""
	switch {
	case outcome == "" || headless, strings.HasSuffix(h.URL, "/silent") && res.Unsent: // a busy machine may need 100 ms to connect
		return
	case outcome == "ok":
		want = "succeeded"
	case outcome == "failed":
		want = "failed response"
	case !h.MayRepeat():
		want = "lost unanswered"
	case strings.HasSuffix(h.URL, "/silent"):
		want = "timed_out unanswered"
	default:
		want = "failed unanswered"
	}

	if got := strings.TrimSpace(string(res.State) + " " + res.Reason); got != want {
		t.Errorf("%s: %s, want %s; message %q", name, got, want, res.Message)
	}
}

func TestRunAttempt_Timeout(t *testing.T) {
	t.Parallel()
	p := newProbe(t)

	var wg sync.WaitGroup
	for method, want := range map[string]string{http.MethodPost: "lost unanswered", http.MethodPut: "timed_out unanswered"} {
		wg.Go(func() {
			a, _ := newAttempt(task.HTTP{Method: method, URL: p.url + "/silent"})
			a.Timeout = task.Duration(2 * time.Second)
			began := time.Now()

			res := newRunner(t, nil).RunAttempt(a, process.NewOrders())
			if got := string(res.State) + " " + res.Reason; got != want || !strings.Contains(res.Message, "no complete response within 2s") || time.Since(began) < 2*time.Second {
				t.Errorf("%s: %+v", method, res)
			}
		})
	}
	wg.Wait()
}

func TestRunAttempt_UnsentIfNothingWasWritten(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()

	plain := newProbe(t)
	tests := map[string]struct {
		url     string
		reason  string
		message string
	}{
		"refused":      {"http://" + closed.Addr().String() + "/secret-path", task.ReasonUnsent, "cannot connect: connection refused"},
		"no such name": {"http://does-not-exist.invalid/secret-path", task.ReasonUnsent, "cannot resolve the name"},
		"no TLS":       {strings.Replace(plain.url, "http:", "https:", 1) + "/secret-path", task.ReasonUnsent, ""},
	}

	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a, seen := newAttempt(task.HTTP{Method: http.MethodPost, URL: tt.url})
			res := newRunner(t, nil).RunAttempt(a, process.NewOrders())

			if res.State != task.Failed || res.Reason != tt.reason || !res.Unsent || res.NotStarted || !strings.Contains(res.Message, tt.message) || !res.StartedAt.IsZero() {
				t.Errorf("%+v", res)
			}
			if strings.Contains(res.Message, "secret-path") {
				t.Errorf("the message contains the path: %q", res.Message)
			}
			if seen.asked != 0 || len(seen.started) != 0 {
				t.Error("MayStart or OnStarted was called")
			}
			if n := len(plain.arrivalsOf(a.Token)); n != 0 {
				t.Errorf("%d requests arrived", n)
			}
		})
	}
}

// hungUp is a server that accepts requests on reused connections and hangs up.
func TestRunAttempt_ManyOnConnectionsThatHangUp(t *testing.T) {
	p := newProbe(t)
	r := newRunner(t, nil)
	const workers, rounds = 8, 150

	type sent struct {
		token  int64
		result process.Result
	}
	results := make(chan sent, workers*rounds*2)

	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				for _, path := range []string{"ok", "after-body"} {
					h := task.HTTP{Method: []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete}[(w+i)%4], URL: p.url + "/" + path}
					if i%2 == 0 {
						h.Body = "x"
					}

					a, _ := newAttempt(h)
					results <- sent{a.Token, r.RunAttempt(a, process.NewOrders())}
				}
			}
		})
	}

	wg.Wait()
	close(results)

	arrivals, started := 0, 0
	for s := range results {
		n := len(p.arrivalsOf(s.token))
		arrivals += n
		if !s.result.StartedAt.IsZero() {
			started++
		}
		if n > 1 || n == 1 == s.result.Unsent {
			t.Errorf("%d arrivals, result %+v", n, s.result)
		}
	}

	if arrivals != workers*rounds*2 || started != arrivals {
		t.Errorf("%d arrivals of %d attempts that have started; want %d of each", arrivals, started, workers*rounds*2)
	}
}

func TestRunAttempt_ReusesConnections(t *testing.T) {
	p := newProbe(t)
	r := newRunner(t, nil)

	for range 5 {
		if res := run(r, task.HTTP{URL: p.url + "/ok"}); res.State != task.Succeeded {
			t.Fatalf("%+v", res)
		}
	}

	if n := p.connections(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

func TestRunAttempt_KilledBeforeTheFirstWriteIsNotStarted(t *testing.T) {
	p := newProbe(t)
	r := newRunner(t, nil)

	a, seen := newAttempt(task.HTTP{Method: http.MethodPost, URL: p.url + "/ok"})
	o := process.NewOrders()
	o.Kill(process.Kill{Cause: process.CauseCancel})

	if res := r.RunAttempt(a, o); !res.NotStarted || res.Unsent || res.HandBack || seen.asked != 0 || len(p.arrivalsOf(a.Token)) != 0 {
		t.Errorf("%+v", res)
	}
}

// TestRunAttempt_KilledInMayStart kills at the last moment: a kill that comes after MayStart belongs to an attempt that
// has started.
func TestRunAttempt_KilledInMayStart(t *testing.T) {
	p := newProbe(t)
	r := newRunner(t, nil)

	for range 50 {
		a, _ := newAttempt(task.HTTP{Method: http.MethodPost, URL: p.url + "/ok"})
		o := process.NewOrders()
		a.MayStart = func() error {
			go o.Kill(process.Kill{Cause: process.CauseCancel})
			return nil
		}

		res := r.RunAttempt(a, o)
		if n := len(p.arrivalsOf(a.Token)); n > 1 || res.NotStarted || res.Unsent || res.State != task.Succeeded && res.State != task.Cancelled {
			t.Errorf("%d arrivals, %+v", n, res)
		}
	}
}

func TestRunAttempt_NotStartedIfTheExecutorRefuses(t *testing.T) {
	p := newProbe(t)
	r := newRunner(t, nil)

	for _, reused := range []bool{false, true} {
		if reused {
			run(r, task.HTTP{URL: p.url + "/ok"})
		}

		a, seen := newAttempt(task.HTTP{URL: p.url + "/ok"})
		a.MayStart = func() error { return errForTest }
		if res := r.RunAttempt(a, process.NewOrders()); !res.NotStarted || res.Unsent || res.HandBack || len(seen.started) != 0 || len(p.arrivalsOf(a.Token)) != 0 {
			t.Errorf("reused: %v: %+v", reused, res)
		}
	}
}

func TestRunAttempt_KilledWhileItWaitsForTheResponse(t *testing.T) {
	p := newProbe(t)
	r := newRunner(t, nil)

	tests := []struct {
		cause  process.Cause
		method string
		want   string
	}{
		{process.CauseCancel, http.MethodPost, "cancelled cancelled_by_user"},
		{process.CauseCancel, http.MethodGet, "cancelled cancelled_by_user"},
		{process.CauseShutdown, http.MethodPost, "lost daemon_stopped"},
		{process.CauseShutdown, http.MethodGet, "failed daemon_stopped"},
		{process.CauseSilent, http.MethodGet, "lost node_lost"},
		{process.CauseGone, http.MethodPost, "lost node_lost"},
	}

	for _, tt := range tests {
		a, _ := newAttempt(task.HTTP{Method: tt.method, URL: p.url + "/silent"})
		o := process.NewOrders()
		a.OnStarted = func(time.Time) { time.AfterFunc(20*time.Millisecond, func() { o.Kill(process.Kill{Cause: tt.cause}) }) }

		res := r.RunAttempt(a, o)
		if got := string(res.State) + " " + res.Reason; got != tt.want || !strings.Contains(res.Message, unknownFate) || res.NotStarted || res.Unsent {
			t.Errorf("%s, %s: %s, want %s; %+v", tt.cause, tt.method, got, tt.want, res)
		}
	}
}

func TestRunAttempt_CannotBePaused(t *testing.T) {
	p := newProbe(t)
	a, seen := newAttempt(task.HTTP{URL: p.url + "/silent"})
	o := process.NewOrders()
	paused := make(chan process.PauseState, 1)
	a.OnStarted = func(time.Time) { o.SetPaused(true) }
	a.OnPause = func(s process.PauseState) {
		paused <- s
		o.Kill(process.Kill{Cause: process.CauseCancel})
	}

	_ = seen
	newRunner(t, nil).RunAttempt(a, o)

	if s := <-paused; s.Err == nil || !s.Since.IsZero() {
		t.Errorf("%+v", s)
	}
}

func TestRunAttempt_HandsBackWithoutReadableRules(t *testing.T) {
	r := newRunner(t, func(c *Config) { c.Rules = func() (Rules, error) { return Rules{}, errForTest } })

	res := run(r, task.HTTP{URL: "http://127.0.0.1:1/"})
	if !res.NotStarted || !res.HandBack || res.Reason != task.ReasonPolicy || !strings.Contains(res.Message, errForTest.Error()) {
		t.Errorf("%+v", res)
	}
}

func TestRunAttempt_AskedToWaitIsFree(t *testing.T) {
	p := newProbe(t)
	r := newRunner(t, nil)

	res := run(r, task.HTTP{Method: http.MethodPost, URL: p.url + "/wait"})
	if res.State != task.Failed || res.Reason != task.ReasonUnsent || !res.Unsent || res.RetryAfter != 7*time.Second || res.HTTPStatus != 503 {
		t.Errorf("%+v", res)
	}

	res = run(r, task.HTTP{Method: http.MethodPost, URL: p.url + "/wait", Expect: task.HTTPExpect{Status: []string{"503"}}})
	if res.State != task.Succeeded || res.Unsent || res.HTTPStatus != 503 {
		t.Errorf("expected: %+v", res)
	}
}
