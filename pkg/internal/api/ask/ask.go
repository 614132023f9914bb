package ask

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// answerWithin is how long the asking node waits for the answers of other nodes. It asks at most twice, apart from
	// nodes that are busy.
	answerWithin = time.Second
	// busyPatience is how long a request waits for nodes that are busy, in total, if there is no former answer. A list of
	// many pages takes longer then, and does not fail.
	busyPatience = 3 * time.Second
)

// Config contains what an Asker needs from its node.
type Config struct {
	Node   string // the name of this node
	Shards int    // the number of shards
	Peers  *peers.Client
	// Nodes returns the nodes that are present.
	Nodes func(ctx context.Context) ([]task.Node, error)
	// Own answers a query for the shards of this node, apart from those in without. It is nil if the node does not
	// schedule.
	Own func(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error)
	Now httpapi.Clock
}

// Asker asks the owners of shards. It is safe for concurrent use.
type Asker struct {
	Config
	cache cache

	mu    sync.Mutex
	nodes []task.Node // as last read
	since task.Time   // nobody answers since then; zero: somebody does
}

// New returns an Asker.
func New(cfg Config) *Asker { return &Asker{Config: cfg} }

// Answer is the answer to a question. Its places must not be changed.
type Answer struct {
	readmodel.Page
	at           task.Time // when the owners were asked
	shards       int
	needsHistory bool
	entry        *entry // nil: it is not kept
}

// Info describes the answer for the caller of a list. now is the clock of this node.
func (a *Answer) Info(now task.Time) client.ListInfo {
	asOf := task.At(a.at.Add(-time.Duration(a.AgeMS) * time.Millisecond))
	info := client.ListInfo{Count: &a.Counts.Tasks, AsOf: asOf, AgeMS: max(now.Sub(asOf.Time).Milliseconds(), 0), Shards: a.shards, Missing: a.Missing}
	info.Collecting = a.collecting()

	return info
}

// collecting returns for how many percent of the tasks the owners know how their runs ended, if the answer depends on that
// and they do not know it for all; otherwise nil.
func (a *Answer) collecting() *int {
	percent := a.Collected()
	if percent == 100 || !a.needsHistory {
		return nil
	}

	return &percent
}

// Include adds to the answer what another one, for a later part of the same list, says about the shards.
func (a *Answer) Include(later Answer) {
	a.AgeMS = max(a.AgeMS, later.AgeMS)
	a.Unread = max(a.Unread, later.Unread)
	a.Missing = slices.Compact(slices.Sorted(slices.Values(slices.Concat(a.Missing, later.Missing))))
}

// incomplete returns why the answer may lack tasks that match, or nil.
func (a *Answer) incomplete() error {
	why := ""
	switch percent := a.collecting(); {
	case len(a.Missing) > 0:
		why = "nobody answers for " + shardsText(a.Missing)
	case percent != nil:
		why = fmt.Sprintf("the owners have read only %d%% of the history", *percent)
	default:
		return nil
	}

	return httpapi.Fail(http.StatusServiceUnavailable, client.CodeIncomplete, "the list is not complete: %s", why).
		WithHint("try again; after the failure of a node, its shards move to others within seconds")
}

// shardsText names some of the shards.
func shardsText(shards []int) string {
	const most = 10
	names := make([]string, min(len(shards), most))
	for i := range names {
		names[i] = strconv.Itoa(shards[i])
	}

	text := "shard " + names[0]
	if len(shards) > 1 {
		text = "shards " + strings.Join(names, ", ")
	}
	if len(shards) > most {
		text += fmt.Sprintf(" and %d others", len(shards)-most)
	}

	return text
}

// NoteWrite notes that the caller of a request has written something, so that it does not get an older answer.
func (a *Asker) NoteWrite(caller httpapi.Caller) { a.cache.noteWrite(caller.Who) }

// Ask returns the answer to a question. Callers that may read the same share answers of the last second. If the owners
// cannot be asked, Ask returns the last answer, which may be ten minutes old, and without one a failure with status 429
// or 503.
func (a *Asker) Ask(c *httpapi.Call, q Question) (Answer, error) {
	caller := httpapi.CallerOf(c.Context())
	e := a.cache.entryOf(q.values().Encode())

	answer, under, mine := e.shared(a.cache.lastWrite(caller.Who))
	if answer != nil {
		return *answer, nil
	}

	if mine {
		// Others may wait for the answer: it does not end with this caller.
		patience := busyPatience
		if _, ok := e.old(); ok {
			patience = 0
		}
		asked, err := a.askAll(context.WithoutCancel(c.Context()), caller, &q, patience)
		asked.entry = e
		e.finish(under, asked, err)
	}

	select {
	case <-under.done:
	case <-c.Context().Done():
		return Answer{}, c.Context().Err()
	}

	if under.err == nil {
		return under.answer, nil
	}

	if old, ok := e.old(); ok {
		return old, nil
	}

	return Answer{}, a.failure(c, under.err)
}

// AskNow is Ask without former answers, for questions that nobody else asks.
func (a *Asker) AskNow(c *httpapi.Call, q Question) (Answer, error) {
	answer, err := a.askAll(c.Context(), httpapi.CallerOf(c.Context()), &q, busyPatience)
	if err != nil {
		return Answer{}, a.failure(c, err)
	}

	return answer, nil
}

// AskComplete is AskNow, and fails if tasks that match may be missing from the answer.
func (a *Asker) AskComplete(c *httpapi.Call, q Question) (Answer, error) {
	answer, err := a.AskNow(c, q)
	if err == nil {
		err = answer.incomplete()
	}

	return answer, err
}

// KeepRows keeps the rows that were shown for an answer, for when etcd is away. view is what they depend on, apart from
// the question. rows must not be changed.
func (a *Answer) KeepRows(view string, rows any, n int) {
	if a.entry != nil && n <= maxKeptRows {
		a.entry.keepRows(view, rows, *a)
	}
}

// OldRows returns the rows that KeepRows has kept for the same question and view, with their answer.
func (a *Answer) OldRows(view string) (rows any, answer Answer, ok bool) {
	if a.entry == nil {
		return nil, Answer{}, false
	}
	return a.entry.oldRows(view)
}

// away is the error if no node answers for any shard.
type away struct {
	since task.Time
	why   string
}

func (a *away) Error() string {
	return fmt.Sprintf("no scheduling node has answered since %s: %s", a.since.Format(time.RFC3339), a.why)
}

// failure converts an error of askAll to one for the caller.
func (a *Asker) failure(c *httpapi.Call, err error) error {
	var busy *readmodel.Busy
	var gone *away

	switch {
	case errors.As(err, &busy):
		return busyFailure(c, busy)
	case errors.As(err, &gone):
		return httpapi.Fail(http.StatusServiceUnavailable, client.CodeUnavailable, "%s", gone).
			WithHint("lists by name, without other filters, need no scheduling node")
	}

	return err
}

// busyFailure returns the failure of a node that answers no query at the moment.
func busyFailure(c *httpapi.Call, busy *readmodel.Busy) error {
	seconds := max((busy.RetryAfter+time.Second-1)/time.Second, 1)
	c.Writer.Header().Set("Retry-After", strconv.Itoa(int(seconds)))

	return httpapi.Fail(http.StatusTooManyRequests, client.CodeBusy, "node %s is busy with other queries", busy.Node).
		WithHint("try again later, or list by name, without other filters")
}

// askAll asks all scheduling nodes, and merges their answers. It waits for nodes that are busy for as long as patience.
func (a *Asker) askAll(ctx context.Context, caller httpapi.Caller, q *Question, patience time.Duration) (Answer, error) {
	now := a.Now.Stamp()
	nodes := a.schedulingNodes(ctx)
	answers, failures := a.askNodes(ctx, caller, q, now, nodes, nil)

	for deadline := time.Now().Add(patience); ; {
		busy, wait := busyNodes(nodes, failures)
		if len(busy) == 0 || time.Now().Add(wait).After(deadline) || !clock.Sleep(ctx, wait) {
			break
		}

		// The nodes that have answered are not asked again: that would cost them another scan.
		later, failed := a.askNodes(ctx, caller, q, now, busy, nil)
		for name := range later {
			delete(failures, name)
		}
		maps.Copy(answers, later)
		maps.Copy(failures, failed)
	}

	if lost := readmodel.Superseded(values(answers)); len(lost) > 0 {
		again := slices.DeleteFunc(slices.Clone(nodes), func(n task.Node) bool { return len(lost[n.Name]) == 0 })
		second, failedAgain := a.askNodes(ctx, caller, q, now, again, lost)
		maps.Copy(answers, second)
		maps.Copy(failures, failedAgain)

		// Without a second answer, nothing of the first one counts.
		for name := range failedAgain {
			delete(answers, name)
		}
	}

	answer := Answer{
		Page: readmodel.Merge(q.query(caller.Who, now.UnixMilli()), a.Shards, values(answers)),
		at:   now, shards: a.Shards, needsHistory: q.needsHistory(),
	}

	if err := ctx.Err(); err != nil {
		return answer, err
	}

	return answer, a.judge(&answer, failures, now)
}

// busyNodes returns the nodes that were too busy to answer, and after which time all of them may be asked again.
func busyNodes(nodes []task.Node, failures map[string]error) (list []task.Node, wait time.Duration) {
	for _, n := range nodes {
		var busy *readmodel.Busy
		if errors.As(failures[n.Name], &busy) {
			list, wait = append(list, n), max(wait, busy.RetryAfter)
		}
	}

	return list, wait
}

// values returns the answers in the order of the nodes' names.
func values(answers map[string]readmodel.NodeAnswer) []readmodel.NodeAnswer {
	list := make([]readmodel.NodeAnswer, 0, len(answers))
	for _, name := range slices.Sorted(maps.Keys(answers)) {
		list = append(list, answers[name])
	}

	return list
}

// judge returns why an answer cannot be given: a node is busy, or no node has answered.
func (a *Asker) judge(answer *Answer, failures map[string]error, now task.Time) error {
	var worst *readmodel.Busy
	var refused *task.Error
	for _, err := range failures {
		var busy *readmodel.Busy
		if errors.As(err, &busy) && (worst == nil || busy.RetryAfter > worst.RetryAfter) {
			worst = busy
		}
		_ = errors.As(err, &refused)
	}

	switch {
	case refused != nil:
		return refused
	case worst != nil:
		return worst
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	if len(answer.Missing) < a.Shards {
		a.since = task.Time{}
		return nil
	}

	if a.since.IsZero() {
		a.since = now
	}

	why := "no shard has an owner"
	if names := slices.Sorted(maps.Keys(failures)); len(names) > 0 {
		why = failures[names[0]].Error()
	}

	return &away{since: a.since, why: why}
}

// schedulingNodes returns the nodes that may own shards, this one first. While etcd is away, they are those that were
// last known.
func (a *Asker) schedulingNodes(ctx context.Context) []task.Node {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()

	nodes, err := a.Nodes(ctx)

	a.mu.Lock()
	defer a.mu.Unlock()

	if err == nil {
		a.nodes = nodes
	}

	list := []task.Node{{Name: a.Node}}
	for _, n := range a.nodes {
		if n.Name != a.Node && n.Has(task.RoleScheduler) {
			list = append(list, n)
		}
	}

	return list
}

// askNodes asks nodes at the same time. without contains, by node, the shards that it is to leave out. Each node is in
// one of the results.
func (a *Asker) askNodes(ctx context.Context, caller httpapi.Caller, q *Question, now task.Time, nodes []task.Node, without map[string][]int) (map[string]readmodel.NodeAnswer, map[string]error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()

	var mu sync.Mutex
	answers, failures := map[string]readmodel.NodeAnswer{}, map[string]error{}
	var g errgroup.Group
	g.SetLimit(peers.AtOnce)

	for _, n := range nodes {
		g.Go(func() error {
			answer, err := a.askNode(ctx, caller, q, now, n, without[n.Name])

			mu.Lock()
			defer mu.Unlock()

			if err != nil {
				failures[n.Name] = err
			} else {
				answers[n.Name] = answer
			}

			return nil
		})
	}

	_ = g.Wait() // the functions return no errors

	return answers, failures
}

// askNode asks one node.
func (a *Asker) askNode(ctx context.Context, caller httpapi.Caller, q *Question, now task.Time, n task.Node, without []int) (readmodel.NodeAnswer, error) {
	if n.Name == a.Node {
		return a.own(ctx, q.query(caller.Who, now.UnixMilli()), without)
	}

	return a.askPeer(ctx, caller, q, now, n, without)
}

// own answers a query for the shards of this node.
func (a *Asker) own(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
	if a.Own == nil {
		return readmodel.NodeAnswer{Node: a.Node}, nil
	}
	return a.Own(ctx, q, without)
}

// maxURI is the maximum length of the URI of a question. Nodes refuse longer ones, and the headers need space as well.
const maxURI = 56 << 10

// askPeer asks another node on behalf of the caller.
func (a *Asker) askPeer(ctx context.Context, caller httpapi.Caller, q *Question, now task.Time, n task.Node, without []int) (answer readmodel.NodeAnswer, err error) {
	v := q.values()
	v.Set("now", strconv.FormatInt(now.UnixMilli(), 10))
	if len(without) > 0 {
		v.Set("without", strings.Trim(strings.ReplaceAll(fmt.Sprint(without), " ", ","), "[]"))
	}

	req, err := a.Peers.NewRequest(ctx, caller, n, http.MethodGet, v, strings.Split(strings.Trim(askPath, "/"), "/")...)
	if err != nil {
		return answer, err
	}
	if len(req.URL.RequestURI()) > maxURI {
		return answer, task.Invalid(task.CodeTooLong, "", "the question, with the namespaces that you may read, is longer than %d bytes; ask for fewer names", maxURI)
	}

	host := req.URL.Host
	res, err := a.Peers.RoundTrip(req)
	if errors.Is(err, context.DeadlineExceeded) {
		return answer, fmt.Errorf("node %s: no answer from %s within %s", n.Name, host, answerWithin)
	}
	if err != nil {
		return answer, fmt.Errorf("node %s at %s: %w", n.Name, host, err)
	}

	defer res.Body.Close()

	if err := peers.Refusal(res); err != nil {
		return answer, fmt.Errorf("node %s at %s: %w", n.Name, host, err)
	}

	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusTooManyRequests:
		ms, _ := strconv.Atoi(res.Header.Get(retryHeader))
		return answer, &readmodel.Busy{Node: n.Name, RetryAfter: time.Duration(max(ms, 50)) * time.Millisecond}
	default:
		return answer, fmt.Errorf("node %s at %s: it answered %s", n.Name, host, res.Status)
	}

	if err := json.NewDecoder(io.LimitReader(res.Body, peers.MaxAnswer)).Decode(&answer); err != nil {
		return answer, fmt.Errorf("node %s at %s: it sent an unreadable answer: %w", n.Name, host, err)
	}
	// The address may meanwhile belong to another node, whose answer must not be counted for this one.
	if answer.Node != n.Name {
		return answer, fmt.Errorf("node %s: another node, %s, answers at %s", n.Name, task.Quote(answer.Node), host)
	}

	return answer, nil
}

// retryHeader is the header with which a busy node says after how many milliseconds it can be asked again. Retry-After
// has only seconds.
const retryHeader = "X-Carillon-Retry-Ms"

// askPath is the path of the operation with which nodes ask each other.
const askPath = "/v1/tasks:ask"

// answerNode serves the question of another node.
func (a *Asker) answerNode(c *httpapi.Call, r questionQuery) (httpapi.Answer, error) {
	caller := httpapi.CallerOf(c.Context())
	if caller.Forwarder == "" {
		return httpapi.Answer{}, httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "only nodes of the cluster may ask this").
			WithHint("GET /v1/tasks lists tasks")
	}

	q, without, err := r.question()
	if err != nil {
		return httpapi.Answer{}, err
	}
	if err := checkRights(c.Rights(), &q); err != nil {
		return httpapi.Answer{}, err
	}

	answer, err := a.own(c.Context(), q.query(caller.Who, cmp.Or(r.Now, a.Now.Stamp().UnixMilli())), without)
	var busy *readmodel.Busy
	if errors.As(err, &busy) {
		c.Writer.Header().Set(retryHeader, strconv.FormatInt(busy.RetryAfter.Milliseconds(), 10))
		err = busyFailure(c, busy)
	}

	return httpapi.Answer{Status: http.StatusOK, Body: answer}, err
}
