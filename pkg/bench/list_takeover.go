package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/carillonhq/carillon/pkg/clock"
)

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
	if err := t.awaitComplete(ctx); err != nil {
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
		if spec, _ := t.population.makeTask(i); owned[refOf(spec.Namespace, spec.Name, t.shards).Shard] {
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
