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

	"github.com/carillonhq/carillon/pkg/client"
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
			return fmt.Errorf("task %s is none of this benchmark", t.Name)
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
	Detail     string // why it is none
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

// newListClient returns a client of the agent at an address of the loopback interface. A node limits the connections of
// each client, so the connections of this one come from several addresses, like those of many users.
func newListClient(address string) *listClient {
	const addresses = 16
	var next atomic.Uint32

	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		from := net.IPv4(127, 0, 0, byte(2+next.Add(1)%addresses))
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}

		return d.DialContext(ctx, network, address)
	}

	return &listClient{base: "http://" + address + "/v1/tasks", http: &http.Client{
		Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: maxListConnections, MaxConnsPerHost: maxListConnections},
	}}
}

// maxListConnections is how many connections a listClient opens at most. A node accepts 1,024.
const maxListConnections = 900

// requestPage requests a page as the subject of a token. It returns an error if the answer is none of the expected ones: a
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
