package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
)

// overloadRate is how many different questions per second are an overload.
const overloadRate = 256

// measureOverload asks more than a node answers. Each of the askers asks different questions all the time, and one of them
// also watches a list. Somebody else watches another list. Lists that are watched get older, other questions are refused,
// and tasks fire as before.
func (t *listTrial) measureOverload(ctx context.Context) error {
	t.progress.beginStep("%d different questions per second", overloadRate)

	o := &overload{listTrial: t}
	res := Result{Name: "list/overload", Tasks: int64(t.Tasks)}
	own := &watchedList{token: t.tokens[0], values: watchedQuestion(client.SortFailures)}
	other := &watchedList{token: t.watcherToken(), values: watchedQuestion(client.SortDuration)}

	// Both lists are already watched when the overload begins.
	for range 2 {
		for _, w := range []*watchedList{own, other} {
			if err := w.askOnce(ctx, t); err != nil {
				return err
			}
			if !clock.Sleep(ctx, t.pauseBetween()) {
				return context.Cause(ctx)
			}
		}
	}

	for _, w := range []*watchedList{own, other} {
		w.samples, w.oldest = listSamples{}, 0
	}

	_, err := t.measureWhile(&res, func() error {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return o.askAll(ctx) })
		g.Go(func() error { return own.askRepeatedly(ctx, t) })
		g.Go(func() error { return other.askRepeatedly(ctx, t) })

		return g.Wait()
	})
	if err != nil {
		return err
	}

	o.fillResult(&res)
	res.RatePerS = roundTo(float64(res.Count)/res.Seconds, 1)
	t.addResults(res, own.buildResult("list/overload_watched"), other.buildResult("list/overload_watched_by_other"))

	return nil
}

// watchedQuestion returns the question of a list that is watched, in an order.
func watchedQuestion(order string) url.Values {
	return url.Values{"q": {"state:failing label:env"}, "sort": {order}, "limit": {strconv.Itoa(listPage)}}
}

// overload asks different questions.
type overload struct {
	*listTrial

	mu sync.Mutex
	listSamples
}

// askAll asks overloadRate questions per second, each of which waits for its answer, and returns when all are answered.
func (o *overload) askAll(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxListConnections - manyAskers)

	began := time.Now()
	for n := 0; time.Since(began) < o.Duration; n++ {
		g.Go(func() error { return o.askOne(ctx, n) })

		at := began.Add(time.Duration(n+1) * time.Second / overloadRate)
		if d := time.Until(at); d > 0 && !clock.Sleep(ctx, d) {
			break
		}
	}

	return g.Wait()
}

// askOne asks question n.
func (o *overload) askOne(ctx context.Context, n int) error {
	v := url.Values{"q": {fmt.Sprintf("failures:>=1 last:<%ds", 100_000+n)}, "sort": {client.SortLast}, "limit": {"20"}}
	a, err := o.lists.requestPage(ctx, o.tokens[n%manyAskers], v)
	if err != nil {
		return err
	}

	o.mu.Lock()
	defer o.mu.Unlock()

	o.addAnswer(&a)
	if seconds, _ := strconv.Atoi(a.RetryAfter); a.Status == http.StatusTooManyRequests && seconds < 1 {
		o.addFault("a question was refused with Retry-After %q", a.RetryAfter)
	}

	return nil
}

// watchedList is a list that somebody asks for again and again.
type watchedList struct {
	token   string
	values  url.Values
	samples listSamples
	oldest  time.Duration // the largest age
}

// watchPause is the pause between two requests for a watched list. Answers are shared for a second.
const watchPause = 1100 * time.Millisecond

// askRepeatedly asks until the duration has passed.
func (w *watchedList) askRepeatedly(ctx context.Context, t *listTrial) error {
	for began := time.Now(); ; {
		if err := w.askOnce(ctx, t); err != nil {
			return err
		}
		if time.Since(began) > t.Duration {
			return nil
		}
		if !clock.Sleep(ctx, min(watchPause, t.Duration)) {
			return context.Cause(ctx)
		}
	}
}

// askOnce asks once. An answer may be old, but it must say so, and must not be refused.
func (w *watchedList) askOnce(ctx context.Context, t *listTrial) error {
	a, err := t.lists.requestPage(ctx, w.token, w.values)
	if err != nil {
		return err
	}

	w.samples.addAnswer(&a)

	if a.Status != http.StatusOK {
		w.samples.addFault("the list had been answered before, but now with %s", a.Detail)
		return nil
	}

	if err := a.checkAge(); err != nil {
		w.samples.addFault("%v", err)
	}
	if want := t.countFailing(); a.Count == nil || *a.Count != want {
		w.samples.addFault("%d tasks are failing, the list says %v", want, a.Count)
	}

	w.oldest = max(w.oldest, time.Duration(a.AgeMS)*time.Millisecond)

	return nil
}

// buildResult returns the result of the list.
func (w *watchedList) buildResult(name string) Result {
	res := Result{Name: name, OldestMS: float64(w.oldest.Milliseconds())}
	w.samples.fillResult(&res)

	return res
}

// countFailing returns the number of failing tasks.
func (t *listTrial) countFailing() (n int) {
	for i := range t.population.tasks {
		if t.population.isFailing(i) {
			n++
		}
	}

	return n
}

// measureTakeover lets a second node join, kills it, and asks the first one which tasks are failing until it knows that of
// all tasks. No answer may be wrong and complete, and failures that were dismissed must not come back.
func (t *listTrial) measureTakeover(ctx context.Context) error {
	t.progress.beginStep("a second node takes over half of the tasks")

	if err := t.agents.startAgent(ctx, nextNode); err != nil {
		return err
	}
	if err := t.awaitSettled(ctx, listNode, nextNode); err != nil {
		return err
	}
	if err := t.awaitComplete(ctx, t.lists, t.watcherToken()); err != nil {
		return err
	}

	moved, err := t.tasksOf(ctx, nextNode)
	if err != nil {
		return err
	}

	t.progress.beginStep("list/takeover")
	res := Result{Name: "list/takeover", Tasks: moved}
	var faults []string

	_, err = t.measureWhile(&res, func() error {
		if err := t.agents.signalAndWait(ctx, nextNode, syscall.SIGKILL); err != nil {
			return err
		}

		faults, err = t.watchTakeover(ctx, &res)

		return err
	})
	if err != nil {
		return err
	}

	var fault error
	if len(faults) > 0 {
		fault = errors.New(strings.Join(faults, "\n"))
	}

	res.setVerified(fault)
	t.addResults(res)

	return nil
}

// tasksOf returns how many tasks are in the shards of a node.
func (t *listTrial) tasksOf(ctx context.Context, node string) (n int64, err error) {
	l, err := t.store.Lineup(ctx)
	if err != nil {
		return 0, err
	}

	owned := map[int]bool{}
	for _, o := range l.Owners {
		owned[o.Shard] = o.Node == node
	}

	for i := range t.population.tasks {
		if spec, _ := t.population.makeTask(i); owned[t.taskRef(spec.Namespace, spec.Name).Shard] {
			n++
		}
	}

	return n, nil
}

// watchTakeover asks which tasks are failing until the list is complete. It sets the times of res, and returns what was
// wrong.
func (t *listTrial) watchTakeover(ctx context.Context, res *Result) (faults []string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, collectFor, errors.New("the lists do not become complete"))
	defer cancel()

	began := time.Now()
	want := t.countFailing()
	sinceKill := func() float64 { return roundTo(time.Since(began).Seconds()*1000, 1) }

	for n, moved := 0, false; ; n++ {
		// An answer may count all shards only after they have moved.
		if !moved {
			l, err := t.store.Lineup(ctx)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}

			moved = err == nil && isBalanced(l, t.shards, []string{listNode})
		}

		a, err := t.lists.requestPage(ctx, t.watcherToken(), stateQuestion(n))
		if err != nil {
			return nil, errors.Join(err, context.Cause(ctx))
		}

		res.Count++

		if a.Status == http.StatusOK {
			if len(a.Missing) > 0 {
				res.MissingMS = sinceKill()
			}
			if a.Collecting != nil && (res.Collecting == nil || *a.Collecting < *res.Collecting) {
				res.Collecting = a.Collecting
			}

			switch count := *a.Count; {
			case count > want:
				faults = append(faults, fmt.Sprintf("%d tasks are failing, a list says %d: dismissed failures have come back", want, count))
			case a.isComplete() && count != want:
				faults = append(faults, fmt.Sprintf("%d tasks are failing, a complete list says %d", want, count))
			}

			if moved && a.isComplete() || len(faults) >= maxListFaults {
				res.CollectMS = sinceKill()
				return faults, nil
			}
			if a.Collecting != nil {
				t.progress.showStatus("list/takeover: %d %%", *a.Collecting)
			}
		}

		if !clock.Sleep(ctx, t.pauseBetween()) {
			return nil, context.Cause(ctx)
		}
	}
}
