package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	runner "github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/task"
)

// targetMode is how a target treats requests.
type targetMode int32

const (
	targetUp      targetMode = iota
	targetRefuses            // it refuses connections: nothing is sent
	targetSilent             // requests arrive and are never answered
	targetCloses             // requests arrive, and the connection is closed without an answer
	targetBusy               // it answers that clients must wait (503 with Retry-After)
)

// targets are the services to which tasks send requests.
type targets struct {
	mu   sync.Mutex
	mode [3]targetMode
}

func (t *targets) modeOf(i int) targetMode {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mode[i]
}

func (t *targets) setMode(i int, m targetMode) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mode[i] = m
}

// mendAll makes all targets answer.
func (t *targets) mendAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mode = [3]targetMode{}
}

// breakTarget lets a target fail for a while, most of the time so that nothing can be sent to it.
func breakTarget(w *world) func(*world) {
	i := w.rng.IntN(len(w.targets.mode))
	mode := pickRandom(w.rng, []targetMode{targetRefuses, targetRefuses, targetRefuses, targetSilent, targetCloses, targetBusy, targetBusy})
	w.logLine("> target %d is in mode %d", i, mode)
	w.targets.setMode(i, mode)

	return func(w *world) { w.targets.setMode(i, targetUp) }
}

// sendRequests turns most tasks into HTTP actions. The URL tells the target how long to take, and its answer.
func sendRequests(s *task.Spec, r *rand.Rand) {
	if r.IntN(4) == 0 {
		return
	}

	takes := pickRandom(r, []string{"10ms", "300ms", "1s", "3s"})
	h := &task.HTTP{
		URL:    fmt.Sprintf("http://svc%d.test/%s/%d", r.IntN(3), takes, pickRandom(r, []int{200, 200, 200, 500})),
		Method: pickRandom(r, []string{"GET", "POST", "POST"}),
	}
	if r.IntN(2) == 0 {
		h.UnsentFor = new(pickRandom(r, []task.Duration{0, task.Duration(3 * time.Second), task.Duration(15 * time.Second), task.Duration(time.Hour)}))
	}

	s.Action, s.Retry.ExitCodes, s.KillGrace = task.Action{HTTP: h}, nil, task.Defaults().KillGrace
	s.Retry.MaxBackoff = max(s.Retry.Backoff, task.Duration(durationBetween(r, 0, time.Minute)))
	s.Timeout = task.Duration(durationBetween(r, time.Second, 10*time.Second))
}

const (
	dialTime   = 3 * time.Millisecond
	transit    = 2 * time.Millisecond // from the decision to send a request to its write
	retryAfter = 20 * time.Second     // for which busy targets ask
)

// requestRunner stands for package httpaction on a node: it sends the requests of attempts to the targets of the
// simulation. What arrives there is in the probe log.
type requestRunner struct {
	node *node
	proc *process
}

// RunAttempt implements executor.AttemptRunner.
func (rr requestRunner) RunAttempt(a runner.Attempt, o *runner.Orders) runner.Result {
	s := requestAttempt{requestRunner: rr, attempt: a, orders: o, began: time.Now()}
	r := s.sendRequest()
	r.EndedAt = time.Now()

	return r
}

// requestAttempt is one attempt of a request.
type requestAttempt struct {
	requestRunner
	attempt runner.Attempt
	orders  *runner.Orders
	began   time.Time
	started time.Time
}

// waitOutcome is how a wait has ended.
type waitOutcome int

const (
	waitElapsed waitOutcome = iota
	waitKilled
	waitTimedOut
)

// waitFor waits for a time, or until the attempt is killed or reaches its timeout.
func (a *requestAttempt) waitFor(d time.Duration) waitOutcome {
	timer := time.NewTimer(d)
	defer timer.Stop()

	limit := a.attempt.Timeout.Std()
	if limit == 0 {
		limit = task.DefaultHTTPTimeout.Std()
	}
	timeout := time.NewTimer(time.Until(a.began.Add(limit)))
	defer timeout.Stop()

	select {
	case <-timer.C:
		return waitElapsed
	case <-timeout.C:
		return waitTimedOut
	case <-a.orders.CalledOff():
	case <-a.proc.killed:
	}

	return waitKilled
}

// sendRequest sends the request, if the target can be reached, and waits for the answer.
func (a *requestAttempt) sendRequest() runner.Result {
	target, takes, status := parseRequest(a.attempt.Action.HTTP.URL)
	notStarted := runner.Result{State: task.Failed, Reason: task.ReasonStart, NotStarted: true}

	if a.waitFor(dialTime) == waitKilled {
		return notStarted
	}

	if a.node.targets.modeOf(target) == targetRefuses {
		a.node.countReached("request not sent")
		return runner.Result{State: task.Failed, Reason: task.ReasonUnsent, Unsent: true, Message: "nothing was sent: connection refused"}
	}

	if err := a.attempt.MayStart(); err != nil {
		return notStarted
	}

	a.started = time.Now()
	a.attempt.OnStarted(a.started)

	// The gate looks directly before the write.
	if why := a.waitFor(transit); why != waitElapsed {
		return a.unansweredResult(why)
	}
	if a.attempt.MayContinue() != nil || isClosed(a.proc.killed) || a.node.targets.modeOf(target) == targetRefuses {
		return a.unansweredResult(waitElapsed)
	}

	one := a.node.probes.noteStart(a.node.name, a.attempt.Assigned, a.attempt.Token)
	one.permitted = a.started
	why := a.waitFor(takes)
	mode := a.node.targets.modeOf(target)

	switch {
	case why != waitElapsed:
	case mode == targetSilent:
		why = a.waitFor(time.Hour)
	case mode == targetUp || mode == targetBusy:
		if mode == targetBusy {
			a.node.probes.noteAsked(one)
			a.node.countReached("target asks to wait")
		}
		a.node.probes.noteEnd(one, true)

		return a.answeredResult(mode, status)
	}

	a.node.probes.noteEnd(one, false)

	return a.unansweredResult(why)
}

// answeredResult returns the result for an answer.
func (a *requestAttempt) answeredResult(mode targetMode, status int) runner.Result {
	r := runner.Result{State: task.Succeeded, StartedAt: a.started, HTTPStatus: status}
	results := map[string]string{"rows": fmt.Sprint(a.attempt.Token)}
	maps.Copy(results, reportedBy(a.attempt.Assigned, a.attempt.Token))
	r.Status = &task.AttemptStatus{StatusReport: task.StatusReport{Results: results}}

	switch {
	case mode == targetBusy:
		r.State, r.Reason, r.Message, r.HTTPStatus = task.Failed, task.ReasonUnsent, "HTTP 503, Retry-After 20", 503
		r.Unsent, r.RetryAfter = true, retryAfter
	case status != 200:
		r.State, r.Reason, r.Message = task.Failed, task.ReasonAnswer, fmt.Sprintf("HTTP %d", status)
	}

	return r
}

// unansweredResult returns the result without an answer.
func (a *requestAttempt) unansweredResult(why waitOutcome) runner.Result {
	r := runner.Result{State: task.Failed, Reason: task.ReasonUnanswered, StartedAt: a.started, Message: "no answer"}
	repeatable := a.attempt.Action.HTTP.MayRepeat()

	select {
	case k := <-a.orders.Killed():
		r.SetCause(k.Cause, 0)
		if k.Cause == runner.CauseShutdown && !repeatable {
			r.State = task.Lost
		}
		return r
	default:
	}

	a.node.countReached("request not answered")

	switch {
	case !repeatable:
		r.State = task.Lost
	case why == waitTimedOut:
		r.State = task.TimedOut
	}

	return r
}

// parseRequest returns the target of a URL, how long the target takes, and the status of its answer.
func parseRequest(text string) (target int, takes time.Duration, status int) {
	u, err := url.Parse(text)
	if err != nil {
		return 0, 0, 0
	}

	target, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(u.Host, "svc"), ".test"))
	words := strings.Split(strings.Trim(u.Path, "/"), "/")
	takes, _ = time.ParseDuration(words[0])
	status, _ = strconv.Atoi(words[len(words)-1])

	return target, takes, status
}
