package ask

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// answerTimeout is how long the asking node waits for the answers of other nodes. It asks at most twice, apart from
	// nodes that are busy.
	answerTimeout = time.Second
	// busyTimeout is how long a request waits for nodes that are busy, in total, if there is no former answer. A list of
	// many pages takes longer then, and does not fail.
	busyTimeout = 3 * time.Second
	// maxWaiting is how many requests may wait for busy nodes, and a quarter of that for one subject. Others fail at once:
	// each that waits asks again and again.
	maxWaiting = 64
	// scanTimeout is how long a node tries to answer, including the wait for other scans. It is shorter than answerTimeout, so
	// that the asking node learns that the node is busy.
	scanTimeout = 800 * time.Millisecond
)

// Config contains what an Asker needs from its node.
type Config struct {
	Node   string // the name of this node
	Shards int    // the number of shards
	Store  *store.Store
	Ref    func(namespace, name string) record.Ref // maps a task to its shard
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
	cache   cache
	splits  cache
	sizes   entry
	waiting httpapi.Slots // requests that wait for busy nodes

	mu    sync.Mutex
	nodes []task.Node // as last read
	since task.Time   // nobody answers since then; zero: somebody does
}

// New returns an Asker.
func New(cfg Config) *Asker { return &Asker{Config: cfg} }

// NoteWrite notes that the caller of a request has written something, so that it does not get an older answer. revisions
// are those of what it has written, by shard. For ten seconds, its answers contain these revisions, or name the shards
// as missing.
func (a *Asker) NoteWrite(caller httpapi.Caller, revisions map[int]int64) {
	a.cache.noteWrite(caller.Who, revisions)
}

// Ask returns the answer to a question. Callers that may read the same share answers of the last second, and loads of the
// last ten seconds. If the owners cannot be asked, Ask returns the last answer, which may be ten minutes old, and without
// one a failure with status 429 or 503.
func (a *Asker) Ask(c *httpapi.Call, q Question) (Answer, error) { return a.share(c, q, a.askAll) }

// share is Ask with another way to get a new answer, which may wait for busy nodes for as long as patience.
func (a *Asker) share(c *httpapi.Call, q Question, ask func(ctx context.Context, caller httpapi.Caller, q *Question, patience time.Duration) (Answer, error)) (Answer, error) {
	caller := httpapi.CallerOf(c.Context())
	wrote, needed := a.cache.lastWrite(caller.Who)
	e := a.cache.entryOf(q.Key(), caller.Who)
	needed = needed.With(q.MinRevisions)
	q.MinRevisions = needed

	answer, under, mine := e.shared(wrote, needed, q.shareFor())
	if answer != nil {
		return *answer, nil
	}

	if mine {
		// Others may wait for the answer: it does not end with this caller.
		patience := busyTimeout
		if _, ok := e.old(); ok {
			patience = 0
		}
		e.lead(under, func() (Answer, error) { return ask(context.WithoutCancel(c.Context()), caller, &q, patience) })
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
	_, needed := a.cache.lastWrite(httpapi.CallerOf(c.Context()).Who)
	q.MinRevisions = needed.With(q.MinRevisions)

	answer, err := a.askAll(c.Context(), httpapi.CallerOf(c.Context()), &q, busyTimeout)
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

// askAll asks all scheduling nodes, and merges their answers. It waits for nodes that are busy for as long as patience. It
// fails if a node is busy, or if no node answers.
func (a *Asker) askAll(ctx context.Context, caller httpapi.Caller, q *Question, patience time.Duration) (Answer, error) {
	answer, _, failures := a.askOwners(ctx, caller, q, patience)
	if err := ctx.Err(); err != nil {
		return answer, err
	}

	return answer, a.judge(&answer, failures)
}

// askOwners asks all scheduling nodes, and merges their answers. It waits for nodes that are busy for as long as patience.
// It also returns the answers, and why nodes have not answered, by node.
func (a *Asker) askOwners(ctx context.Context, caller httpapi.Caller, q *Question, patience time.Duration) (answer Answer, answers map[string]readmodel.NodeAnswer, failures map[string]error) {
	now := a.Now.Stamp()
	q.Now = now.UnixMilli()
	nodes := a.schedulingNodes(ctx)
	answers, failures = a.askNodes(ctx, caller, q, nodes, nil)

	a.askBusyAgain(ctx, caller, q, nodes, answers, failures, patience)

	if lost := readmodel.Superseded(inOrder(answers)); len(lost) > 0 {
		again := slices.DeleteFunc(slices.Clone(nodes), func(n task.Node) bool { return len(lost[n.Name]) == 0 })
		second, failedAgain := a.askNodes(ctx, caller, q, again, lost)
		maps.Copy(answers, second)
		maps.Copy(failures, failedAgain)

		// Without a second answer, nothing of the first one counts.
		for name := range failedAgain {
			delete(answers, name)
		}
	}

	answer = Answer{
		Page: readmodel.Merge(q.query(caller.Who), a.Shards, inOrder(answers)),
		at:   now, shards: a.Shards, needsHistory: q.needsHistory(), needed: q.MinRevisions,
	}

	return answer, answers, failures
}

// askBusyAgain asks the nodes that were busy again until they answer, for as long as patience. It updates answers and
// failures.
func (a *Asker) askBusyAgain(
	ctx context.Context, caller httpapi.Caller, q *Question, nodes []task.Node,
	answers map[string]readmodel.NodeAnswer, failures map[string]error, patience time.Duration,
) {
	busy, wait := busyNodes(nodes, failures)
	if len(busy) == 0 || wait > patience {
		return
	}

	release, err := a.waiting.AcquireLater(ctx, maxWaiting, "wait for busy nodes", a.Node)
	if err != nil {
		return // the failures say that nodes are busy
	}
	defer release()

	for deadline := time.Now().Add(patience); len(busy) > 0 && !time.Now().Add(wait).After(deadline); {
		if !clock.Sleep(ctx, wait) {
			return
		}

		// The nodes that have answered are not asked again: that would cost them another scan.
		later, failed := a.askNodes(ctx, caller, q, busy, nil)
		for name := range later {
			delete(failures, name)
		}
		maps.Copy(answers, later)
		maps.Copy(failures, failed)

		busy, wait = busyNodes(nodes, failures)
	}
}
