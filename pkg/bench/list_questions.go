package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// listPage is how many tasks the benchmark asks for on a page.
const listPage = 100

// listOrders are the orders of lists of tasks.
var listOrders = []string{client.SortName, client.SortNext, client.SortLast, client.SortLateness, client.SortDuration, client.SortFailures}

// listFilter is a filter of lists: the parameters of a request, and which tasks match.
type listFilter struct {
	name    string
	query   url.Values
	matches func(p listPopulation, i int, name string) bool
}

// listFilters are the filters that the benchmark combines with each order.
var listFilters = []listFilter{
	{"all", url.Values{}, func(listPopulation, int, string) bool { return true }},
	{"label", url.Values{"q": {`selector:"team = team-7, env in (prod, staging)"`}}, func(p listPopulation, i int, _ string) bool {
		return !p.isFiring(i) && i%40 == 7
	}},
	{"state", url.Values{"q": {"state:failing,paused,running label:env"}}, func(p listPopulation, i int, _ string) bool {
		return p.isFailing(i) || p.isPaused(i) || p.isRunning(i)
	}},
	{"query", url.Values{"q": {"state:failed label:env=prod -namespace:team-03 failures:>=2"}}, func(p listPopulation, i int, _ string) bool {
		return i%2 == 0 && i%teams != 3 && p.failuresOf(i) >= 2
	}},
	{"glob", url.Values{"q": {"name:*-00*7?"}}, func(_ listPopulation, _ int, name string) bool {
		ok, _ := path.Match("*-00*7?", name)
		return ok
	}},
	{"text", url.Values{"q": {"name~31"}}, func(_ listPopulation, _ int, name string) bool { return strings.Contains(name, "31") }},
}

// listGroup is an order with a filter.
type listGroup struct {
	order  string
	filter listFilter
	count  int // how many tasks match
}

func (g *listGroup) name() string { return g.order + "/" + g.filter.name }

// newListGroups returns all groups, with how many tasks match.
func newListGroups(p listPopulation) []*listGroup {
	counts := make([]int, len(listFilters))
	for i := range p.tasks {
		t, _ := p.population.makeTask(i)
		for f := range listFilters {
			if listFilters[f].matches(p, i, t.Name) {
				counts[f]++
			}
		}
	}

	var all []*listGroup
	for _, order := range listOrders {
		for f, filter := range listFilters {
			all = append(all, &listGroup{order: order, filter: filter, count: counts[f]})
		}
	}

	return all
}

// pageQuery returns the parameters of a request for a page.
func (g *listGroup) pageQuery(page string) url.Values {
	v := url.Values{"sort": {g.order}, "limit": {strconv.Itoa(listPage)}}
	for key, value := range g.filter.query {
		v[key] = value
	}

	if page != "" {
		v.Set("page", page)
	}

	return v
}

// checkPage returns what is wrong with a page. before is the number of tasks on earlier pages.
func (g *listGroup) checkPage(p listPopulation, a *listAnswer, before int) error {
	want := min(listPage, g.count-before)

	switch {
	case len(a.Missing) > 0:
		return fmt.Errorf("%d shards are missing", len(a.Missing))
	case a.Collecting != nil:
		return fmt.Errorf("only %d %% of the history is known", *a.Collecting)
	case a.Count != nil && *a.Count != g.count:
		return fmt.Errorf("%d tasks match, it says %d", g.count, *a.Count)
	case a.Count == nil && !g.readsNames():
		return errors.New("it does not say how many tasks match")
	case len(a.Items) != want || (a.Next != "") != (before+want < g.count):
		return fmt.Errorf("%d tasks on the page after %d of %d, next page %t", len(a.Items), before, g.count, a.Next != "")
	}

	return g.checkOrder(p, a.Items)
}

// readsNames reports whether the list is read from etcd, without the owners of shards.
func (g *listGroup) readsNames() bool { return g.order == client.SortName && g.filter.name == "all" }

// checkOrder returns an error if tasks are not in the order of the group. It compares only what does not change.
func (g *listGroup) checkOrder(p listPopulation, items []client.Task) error {
	var last *client.Task
	var lastNumber int

	for k := range items {
		t := &items[k]
		i, err := strconv.Atoi(t.Name[strings.LastIndexByte(t.Name, '-')+1:])
		if err != nil {
			return fmt.Errorf("task %s does not belong to this benchmark", t.Name)
		}

		if p.isFiring(i) {
			continue
		}

		if last != nil {
			order := 0
			switch g.order {
			case client.SortName:
				order = cmp.Compare(last.Namespace+"/"+last.Name, t.Namespace+"/"+t.Name)
			case client.SortNext:
				order = last.Next.Compare(t.Next.Time)
			case client.SortDuration:
				order = cmp.Compare(p.durationOf(i), p.durationOf(lastNumber))
			case client.SortLateness:
				order = cmp.Compare(p.latenessOf(i), p.latenessOf(lastNumber))
			case client.SortFailures:
				order = cmp.Compare(p.failuresOf(i), p.failuresOf(lastNumber))
			}

			never := p.neverRan(i) || p.neverRan(lastNumber) || t.Next.IsZero() || last.Next.IsZero()
			if order > 0 && (!never || g.order == client.SortName) {
				return fmt.Errorf("%s comes after %s", t.Name, last.Name)
			}
		}

		last, lastNumber = t, i
	}

	return nil
}

// listAnswer is an answer to a request for a page, with how long it took.
type listAnswer struct {
	client.QueryList[client.Task]
	Took       time.Duration
	Status     int
	Detail     string // why there is no page
	RetryAfter string // the header
	At         time.Time
}

// checkAge returns an error if the answer does not tell its age.
func (a *listAnswer) checkAge() error {
	const tolerance = 2 * time.Second // from when the server writes an answer to when it is read here
	age := time.Duration(a.AgeMS) * time.Millisecond
	if off := a.At.Sub(a.AsOf.Time) - age; off < -tolerance || off > tolerance {
		return fmt.Errorf("it says that it is %s old, as of %s; it was read at %s", age, a.AsOf.Format(time.RFC3339Nano), a.At.Format(time.RFC3339Nano))
	}

	return nil
}

// listClient asks an agent for pages of tasks.
type listClient struct {
	http *http.Client
	base string // the URL of the list
}

// newListClient returns a client of the node at a URL.
func newListClient(url string) *listClient {
	return &listClient{base: url + "/v1/tasks", http: &http.Client{Transport: loopbackTransport(maxListConnections)}}
}

// loopbackTransport returns a transport for a node on the loopback interface. A node limits the connections of each client,
// so these come from several addresses, like those of many users.
func loopbackTransport(connections int) *http.Transport {
	const addresses = 16
	var next atomic.Uint32

	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		from := net.IPv4(127, 0, 0, byte(2+next.Add(1)%addresses))
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}

		return d.DialContext(ctx, network, address)
	}

	return &http.Transport{DialContext: dial, MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections}
}

// maxListConnections is how many connections a listClient opens at most. A node accepts 1,024.
const maxListConnections = 900

// requestPage requests a page as the subject of a token. It returns an error if the answer is not one of the expected ones: a
// page, or that the owners are busy or away.
func (c *listClient) requestPage(ctx context.Context, token string, v url.Values) (a listAnswer, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"?"+v.Encode(), nil)
	if err != nil {
		return a, err
	}

	req.Header.Set("Authorization", "Bearer "+token)
	began := time.Now()

	res, err := c.http.Do(req)
	if err != nil {
		return a, err
	}

	defer res.Body.Close()

	text, err := io.ReadAll(res.Body)
	a.Took, a.At, a.Status, a.RetryAfter = time.Since(began), time.Now(), res.StatusCode, res.Header.Get("Retry-After")

	switch {
	case err != nil:
		return a, err
	case a.Status == http.StatusTooManyRequests || a.Status == http.StatusServiceUnavailable:
		a.Detail = string(text)
		return a, nil
	case a.Status != http.StatusOK:
		return a, fmt.Errorf("GET %s: %s: %s", req.URL, res.Status, text)
	}

	return a, json.Unmarshal(text, &a.QueryList)
}

// listSamples are the answers to questions of one group, or of several.
type listSamples struct {
	took    []time.Duration
	refused int64
	faults  []string
}

// maxListFaults limits how many faults a report names.
const maxListFaults = 5

// addFault notes something that is wrong.
func (s *listSamples) addFault(format string, args ...any) {
	if len(s.faults) < maxListFaults {
		s.faults = append(s.faults, fmt.Sprintf(format, args...))
	}
}

// addAnswer notes an answer.
func (s *listSamples) addAnswer(a *listAnswer) {
	switch a.Status {
	case http.StatusOK:
		s.took = append(s.took, a.Took)
	case http.StatusTooManyRequests:
		s.refused++
	default:
		s.addFault("a question was answered with %s", a.Detail)
	}
}

// addSamples adds other samples.
func (s *listSamples) addSamples(other *listSamples) {
	s.took, s.refused = append(s.took, other.took...), s.refused+other.refused
	for _, f := range other.faults {
		s.addFault("%s", f)
	}
}

// fillResult sets the fields of a result.
func (s *listSamples) fillResult(r *Result) {
	r.Count, r.Refused, r.AnswerMS = int64(len(s.took))+s.refused, s.refused, newSpread(slices.Clone(s.took))

	var err error
	if len(s.took) == 0 {
		s.addFault("no question was answered")
	}
	if len(s.faults) > 0 {
		err = errors.New(strings.Join(s.faults, "\n"))
	}

	r.setVerified(err)
}

// listPopulation is a population with a past. What is known of a task follows from its number, so the number of tasks
// that match a filter is known without asking anybody. The first tasks fire each second and have no labels.
//
//	of 1,000 tasks: 20 paused, 5 failing, 5 with failures that were dismissed, 10 never ran, 1 running; the others succeeded
type listPopulation struct {
	population
	shards int
	holder task.Node // the node in whose inbox the running tasks are
}

// teams is the number of namespaces of the tasks that do not fire.
const teams = 20

// teamNamespace returns the namespace of task i, which does not fire.
func teamNamespace(i int) string { return fmt.Sprintf("team-%02d", i%teams) }

// listNamespaces returns all namespaces.
func listNamespaces() []string {
	all := []string{benchNamespace}
	for i := range teams {
		all = append(all, teamNamespace(i))
	}

	return all
}

func (p listPopulation) isFiring(i int) bool    { return i < p.firing }
func (p listPopulation) isPaused(i int) bool    { return !p.isFiring(i) && i%50 == 3 }
func (p listPopulation) isFailing(i int) bool   { return !p.isFiring(i) && i%200 == 110 }
func (p listPopulation) isDismissed(i int) bool { return !p.isFiring(i) && i%200 == 112 }
func (p listPopulation) isRunning(i int) bool   { return !p.isFiring(i) && i%1000 == 120 }
func (p listPopulation) neverRan(i int) bool    { return !p.isFiring(i) && i%200 >= 130 && i%200 < 132 }

// failuresOf returns how many runs of task i have failed in a row.
func (p listPopulation) failuresOf(i int) int {
	if p.isFailing(i) || p.isDismissed(i) {
		return 1 + i/200%5
	}
	return 0
}

// durationOf returns how long the last run of task i took, and latenessOf how late it started, in ms.
func (p listPopulation) durationOf(i int) int64 { return int64(1000 + i*7919%600_000) }
func (p listPopulation) latenessOf(i int) int64 { return int64(i * 104_729 % 30_000) }

// makeTask returns the spec and the entry of task i.
func (p listPopulation) makeTask(i int) (task.Task, task.Entry) {
	t, e := p.population.makeTask(i)
	if p.isFiring(i) {
		return t, e
	}

	t.Namespace, t.Paused = teamNamespace(i), p.isPaused(i)

	return t, task.NewEntry(t, e.From, e.Anchor)
}

// writeTask writes task i with its past.
func (p listPopulation) writeTask(ctx context.Context, s *store.Store, ops *putCollector, i int) error {
	t, e := p.makeTask(i)
	ref := refOf(t.Namespace, t.Name, p.shards)
	if _, err := s.CreateTask(ctx, ref, t, e); err != nil || p.isFiring(i) {
		return err
	}

	if p.isRunning(i) {
		run, err := p.activeRun(s.Keys(), ref, t, e)
		if err != nil {
			return err
		}

		*ops = append(*ops, run)
	}

	if p.neverRan(i) {
		return nil
	}

	// The runs have ended within the last day.
	ended := p.origin.Add(-time.Minute - time.Duration(i*611_953%86_400_000)*time.Millisecond)
	failures := p.failuresOf(i)

	for n := range max(failures, 1) {
		h, end := p.pastRun(i, ref, t, e, ended.Add(-time.Duration(n)*time.Minute))
		if failures > 0 {
			end.State = task.Failed
			// The last failure of a failing task is a dead run. A run that somebody has cancelled does not become one.
			h.CancelRequested = n > 0 || p.isDismissed(i)
		}

		if err := s.Finish(ctx, h, end, nil); err != nil {
			return err
		}
	}

	return nil
}

// pastRun returns an attempt of task i and its end.
func (p listPopulation) pastRun(i int, ref record.Ref, t task.Task, e task.Entry, ended time.Time) (record.Held, task.Run) {
	started := ended.Add(-time.Duration(p.durationOf(i)) * time.Millisecond)
	tick := task.At(started.Add(-time.Duration(p.latenessOf(i)) * time.Millisecond))
	held := record.Held{Assigned: p.attemptOf(ref, t, e, tick)}

	end := held.Run
	end.State, end.StartedAt, end.EndedAt, end.LatenessMS = task.Succeeded, task.At(started), task.At(ended), new(p.latenessOf(i))

	return held, end
}

// activeRun returns a put of a run into the inbox of the holder, where it stays.
func (p listPopulation) activeRun(keys record.Keys, ref record.Ref, t task.Task, e task.Entry) (clientv3.Op, error) {
	a := p.attemptOf(ref, t, e, task.At(p.origin))
	action, err := json.Marshal(a.Action)

	return clientv3.OpPut(keys.Run(a.Node, ref, a.ID), string(record.EncodeAssigned(&a, string(action)))), err
}

// attemptOf returns an attempt of a tick, on the holder.
func (p listPopulation) attemptOf(ref record.Ref, t task.Task, e task.Entry, tick task.Time) task.Assigned {
	return task.Assigned{
		Run: task.Run{
			ID: task.RunID(tick.Time, t.UID), UID: t.UID, Namespace: t.Namespace, Task: t.Name, Shard: ref.Shard, ScheduledTime: tick, State: task.Dispatched,
			Trigger: task.TriggerSchedule, Node: p.holder.Name, Owner: p.holder.Name, Attempt: 1, CreatedAt: tick, DispatchedAt: tick,
		},
		Instance: p.holder.Instance, Generation: 1, Action: e.Action, KillGrace: e.KillGrace, Retry: e.Retry,
	}
}
