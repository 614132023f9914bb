package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// listTrial is one benchmark of lists in progress.
type listTrial struct {
	*trial
	population listPopulation
	groups     []*listGroup
	tokens     []string // one for each asker, and one for who watches a list
	lists      *listClient
	idleCPU    float64 // seconds of CPU time that the first node needs per second without questions
}

const (
	listNode = "n1" // answers all questions
	nextNode = "n2" // joins, and is killed

	manyAskers = 8
)

// measureList measures how long pages of tasks take in all orders with several filters, while tasks fire. Then it asks
// more than a node answers, and last it kills a node and measures how long the lists are incomplete.
func (b *bench) measureList(ctx context.Context) error {
	return b.runTrial(ctx, listNamespaces(), func(ctx context.Context, t *trial) error {
		l := &listTrial{trial: t}

		// The active runs of the population are in the inbox of the holder. It gets no others, because it is cordoned.
		holder, leave, err := l.registerHolder(ctx, task.NodeCordoned)
		if err == nil {
			l.population.holder = holder
			err = errors.Join(l.runPhases(ctx), leave())
		}

		return err
	})
}

// runPhases runs the phases one after another.
func (t *listTrial) runPhases(ctx context.Context) error {
	if err := t.prepareCluster(ctx); err != nil {
		return err
	}

	if err := t.measureFiring(ctx); err != nil {
		return err
	}

	byGroup := map[*listGroup]*listSamples{}
	for _, g := range t.groups {
		byGroup[g] = &listSamples{}
	}

	for _, askers := range []int{1, manyAskers} {
		if err := t.measureAskers(ctx, askers, byGroup); err != nil {
			return err
		}
	}

	for _, g := range t.groups {
		res := Result{Name: "list/" + g.name()}
		byGroup[g].fillResult(&res)
		t.addResults(res)
	}

	if err := t.measureOverload(ctx); err != nil {
		return err
	}

	return t.measureTakeover(ctx)
}

// prepareCluster creates tasks and tokens, starts the first node, and waits until it knows how the last run of each task
// ended.
func (t *listTrial) prepareCluster(ctx context.Context) (err error) {
	p, err := newPopulation(t.Tasks, t.Rate, t.Keep, time.Now().Truncate(time.Second))
	if err != nil {
		return err
	}

	t.population.population, t.population.shards = p, t.shards

	const atOnce = 30 // so that the records of these tasks fit into one transaction
	write := t.population.writeTask
	err = t.writeTasks(ctx, t.Tasks, atOnce, func(s *store.Store, ops *putCollector, i int) error { return write(ctx, s, ops, i) })
	if err != nil {
		return err
	}

	if t.tokens, err = t.createTokens(ctx, manyAskers+1); err != nil {
		return err
	}

	t.groups = newListGroups(t.population)
	t.progress.beginStep("start a node")

	if err := t.agents.startAgent(ctx, listNode); err != nil {
		return err
	}

	t.lists = newListClient(t.agents.nodes[listNode].url())

	return t.awaitComplete(ctx, t.lists, t.watcherToken())
}

// collectFor limits how long owners may take to read how the last run of each task ended. They read 5,000 tasks per second,
// and less if they are busy.
const collectFor = 30 * time.Minute

// awaitComplete waits until the owners answer for all shards and know how the last run of each task ended.
func (t *trial) awaitComplete(ctx context.Context, lists *listClient, token string) error {
	t.progress.beginStep("read how runs had ended")
	ctx, cancel := context.WithTimeoutCause(ctx, collectFor, errors.New("the owners did not read in time how runs had ended"))
	defer cancel()

	for n := 0; ; n++ {
		a, err := lists.requestPage(ctx, token, stateQuestion(n))
		switch {
		case err != nil:
			return errors.Join(err, context.Cause(ctx))
		case a.isComplete():
			return nil
		case a.Collecting != nil:
			t.progress.showStatus("read how runs had ended: %d %%", *a.Collecting)
		}

		if !clock.Sleep(ctx, t.pauseBetween()) {
			return context.Cause(ctx)
		}
	}
}

// isComplete reports whether nothing is missing from an answer.
func (a *listAnswer) isComplete() bool {
	return a.Status == http.StatusOK && a.Count != nil && len(a.Missing) == 0 && a.Collecting == nil
}

// stateQuestion returns a question about failing tasks. It differs with n, so that it is not answered with an answer
// that another one got a moment ago.
func stateQuestion(n int) url.Values {
	return url.Values{"q": {"state:failing"}, "sort": {client.SortFailures}, "limit": {strconv.Itoa(1 + n%listPage)}, "brief": {"true"}}
}

// watcherToken returns the token of the subject that is not one of the askers.
func (t *listTrial) watcherToken() string { return t.tokens[manyAskers] }

// pauseBetween returns the pause between two questions of all askers together: one question per second for a million
// tasks. Such a scan takes some 40 ms of processor time on average, and scans may take 100 ms per second of two
// processors. With less pause, the benchmark would measure that limit.
func (t *trial) pauseBetween() time.Duration {
	const perTask, shortest = time.Microsecond, 20 * time.Millisecond
	return max(time.Duration(t.Tasks)*perTask, shortest)
}

// measureWhile calls do while it measures the lateness of firing and the CPU time of the first node, and completes res.
func (t *listTrial) measureWhile(res *Result, do func() error) (cpu time.Duration, err error) {
	t.witness.beginSpan()
	began := time.Now()

	cpu, err = t.agents.nodes[listNode].cpuTimeOf(do)
	if err != nil {
		return 0, err
	}

	seen := t.witness.endSpan()
	res.Seconds, res.LatenessMS, res.Missed = roundTo(time.Since(began).Seconds(), 3), newSpread(seen.late), seen.missing
	if seen.twice > 0 {
		return 0, fmt.Errorf("%d ticks were decided twice", seen.twice)
	}

	return cpu, nil
}

// measureFiring measures the lateness of firing without questions.
func (t *listTrial) measureFiring(ctx context.Context) error {
	t.progress.beginStep("fire without questions")
	res := Result{Name: "list/no_questions", Tasks: int64(t.Tasks)}

	cpu, err := t.measureWhile(&res, func() error {
		if !clock.Sleep(ctx, t.Duration) {
			return context.Cause(ctx)
		}
		return nil
	})
	if err != nil {
		return err
	}

	t.idleCPU = cpu.Seconds() / res.Seconds
	res.setVerified(nil) // measureWhile has compared the ticks
	t.addResults(res)

	return nil
}

// measureAskers lets some askers ask each group --rounds times for the first page and the one after it.
func (t *listTrial) measureAskers(ctx context.Context, askers int, byGroup map[*listGroup]*listSamples) error {
	name := fmt.Sprintf("list/askers_%d", askers)
	t.progress.beginStep("%s", name)

	// Expensive questions must not follow each other.
	var todo []*listGroup
	for range t.Rounds {
		todo = append(todo, t.groups...)
	}
	rand.Shuffle(len(todo), func(i, j int) { todo[i], todo[j] = todo[j], todo[i] })

	next := make(chan *listGroup, len(todo))
	for _, g := range todo {
		next <- g
	}
	close(next)

	var mu sync.Mutex
	var all listSamples
	res := Result{Name: name, Tasks: int64(t.Tasks)}

	cpu, err := t.measureWhile(&res, func() error {
		g, ctx := errgroup.WithContext(ctx)
		for i := range askers {
			g.Go(func() error {
				for group := range next {
					t.progress.showStatus("%s: %d of %d", name, len(todo)-len(next), len(todo))

					found, err := t.askPages(ctx, group, t.tokens[i], time.Duration(askers)*t.pauseBetween())
					if err != nil {
						return err
					}

					mu.Lock()
					byGroup[group].addSamples(found)
					all.addSamples(found)
					mu.Unlock()
				}

				return nil
			})
		}

		return g.Wait()
	})
	if err != nil {
		return err
	}

	all.fillResult(&res)
	res.CPUMicros = roundTo(max(cpu.Seconds()-t.idleCPU*res.Seconds, 0)*1e6/float64(max(res.Count, 1)), 1)
	t.addResults(res)

	return nil
}

// askPages asks for the first page of a group and the one after it. It pauses after each, on average for a time.
func (t *listTrial) askPages(ctx context.Context, g *listGroup, token string, pause time.Duration) (*listSamples, error) {
	found := &listSamples{}
	page, before := "", 0

	for range 2 {
		a, err := t.lists.requestPage(ctx, token, g.pageQuery(page))
		if err != nil {
			return nil, err
		}

		found.addAnswer(&a)

		if a.Status == http.StatusOK {
			if err := g.checkPage(t.population, &a, before); err != nil {
				found.addFault("%s: %v", g.name(), err)
			}
		}

		if !clock.Sleep(ctx, pause/2+rand.N(pause)) {
			return nil, context.Cause(ctx)
		}

		if page, before = a.Next, before+len(a.Items); page == "" {
			break
		}
	}

	return found, nil
}
