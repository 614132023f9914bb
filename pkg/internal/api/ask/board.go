package ask

import (
	"context"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// shareBoardFor is how long a board is given again. It is shorter than a second, so that clients which refresh every
	// second always get a new one.
	shareBoardFor = 700 * time.Millisecond
	// statusAge is how old the status of the cluster on a board may be. It costs more reads and changes less often.
	statusAge = 5 * time.Second
	// etcdTimeout is how long a board waits for etcd.
	etcdTimeout = 1500 * time.Millisecond
)

const boardAbout = "The node that receives the request asks each node that schedules. They answer from memory, so you can poll every second. " +
	"silent lists the nodes that did not respond within a second. While nodes are busy with other queries, you get the last board; at is when it was made."

// Boards serves the board, which shows an operator problems, future ticks and active runs.
//
// The board shows the answer to a question to the owners of all shards, as lists do. If a node does not
// answer in time, the board names it, and the shards that are missing. If etcd does not answer, the board shows the nodes
// as last read, with a warning. Boards is safe for concurrent use.
type Boards struct {
	Asker   *Asker
	Store   *store.Store
	Cluster task.Cluster
	Version string // the version of Carillon
	// Status returns the status of the cluster.
	Status func(ctx context.Context) (client.ClusterStatus, error)
	// AddProgress adds what active runs report themselves, as far as the caller in ctx may read it. nodes are those that are
	// present.
	AddProgress func(ctx context.Context, b *task.Board, nodes []task.Node)

	// mu is held while etcd is read, so that boards that are made at the same time share the result.
	mu    sync.Mutex
	known fleet
}

// fleet is what a board shows of etcd's records, as they were last read.
type fleet struct {
	nodes    []task.Node // nil: never read
	owners   []record.Owner
	statusAt time.Time
	status   client.ClusterStatus
}

// boardQuery are the parameters of a request for the board.
type boardQuery struct {
	Span  boardSpan `query:"span" default:"10m0s" example:"10m" doc:"How far next looks ahead: a duration between 1ms and 24h."`
	Limit int       `query:"limit" minimum:"1" maximum:"500" default:"50" doc:"The maximum number of items in each list."`
}

// boardSpan is how far ahead a board lists ticks.
type boardSpan time.Duration

const (
	// minBoardSpan and maxBoardSpan limit the span, and maxBoardLimit is the maximum number of items in a list.
	minBoardSpan  = time.Millisecond
	maxBoardSpan  = 24 * time.Hour
	maxBoardLimit = 500
)

// UnmarshalText parses a span.
func (b *boardSpan) UnmarshalText(text []byte) error {
	span, err := task.ParseDuration("", string(text))
	if err != nil {
		return err
	}
	if span.Std() < minBoardSpan || span.Std() > maxBoardSpan {
		return task.Invalid(task.CodeOutOfRange, "", "%s is not between 1ms and 24h", text)
	}

	*b = boardSpan(span)

	return nil
}

// Routes returns the operations on the board.
func (b *Boards) Routes() []*httpapi.Operation {
	return []*httpapi.Operation{
		{ID: "get-board", Method: http.MethodGet, Path: "/v1/board", Tag: "cluster", Summary: "Read an overview: problems, next ticks, running runs and nodes",
			Description: boardAbout, Status: 200, Answer: reflect.TypeFor[task.Board](), Errors: []int{429}, Handler: httpapi.Query(b.getBoard)},
	}
}

// getBoard serves the board.
func (b *Boards) getBoard(c *httpapi.Call, q boardQuery) (httpapi.Answer, error) {
	within := c.Rights().Readable(access.Tasks)

	// Callers who may read the same tasks share a board, which has the progress of runs as its first caller may read it. Some of
	// them may not read runs: shownTo hides the active runs from those.
	answer, err := b.Asker.share(c, Question{Within: within, Board: &readmodel.BoardRange{Span: time.Duration(q.Span), Limit: q.Limit}}, b.ask)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return httpapi.Answer{Status: http.StatusOK, Body: shownTo(c.Rights(), within, *answer.board)}, nil
}

// shownTo returns a board without what its caller may not read of runs, of nodes and of the cluster. within are the namespaces
// whose tasks the caller may read. The names of failing tasks stay, because a list of tasks has them as well. The counts stay,
// and so do the nodes that do not answer: the board must not look complete. Other callers get the same board, so its lists
// stay as they are.
func shownTo(rights *httpapi.Rights, within []string, b task.Board) task.Board {
	if !rights.Allows(access.Need{Verb: access.Read, Kind: access.Nodes}) {
		b.Nodes = []task.BoardNode{}
	}

	if runs := rights.Readable(access.Runs); runs != nil {
		b.Failing = slices.Clone(b.Failing)
		for i, f := range b.Failing {
			if !slices.Contains(runs, f.Namespace) {
				b.Failing[i] = task.BoardFailing{Namespace: f.Namespace, Task: f.Task}
			}
		}
		b.Alerting = inNamespaces(b.Alerting, runs, func(a task.BoardAlerting) string { return a.Namespace })
		b.Away = inNamespaces(b.Away, runs, func(r task.BoardRun) string { return r.Namespace })
		b.Active = inNamespaces(b.Active, runs, func(r task.BoardRun) string { return r.Namespace })
		b.Waits = inNamespaces(b.Waits, runs, func(w task.BoardWait) string { return w.Namespace })
	}

	if !rights.Allows(access.Need{Verb: access.Read, Kind: access.Cluster}) {
		b.WarningDetails, b.Warnings, b.Leader = []task.Warning{}, []string{}, ""
		b.Stuck = []task.BoardShard{}
		b.Freezes = slices.DeleteFunc(slices.Clone(b.Freezes), func(f task.Freeze) bool {
			return f.Namespace != "" && within != nil && !slices.Contains(within, f.Namespace)
		})
	}

	return b
}

// inNamespaces returns a copy of a list without the items of other namespaces.
func inNamespaces[T any](list []T, namespaces []string, namespaceOf func(T) string) []T {
	return slices.DeleteFunc(slices.Clone(list), func(item T) bool { return !slices.Contains(namespaces, namespaceOf(item)) })
}

// ask asks the owners of all shards for a board, and adds what they do not know. It fails if the question is refused (see refusal), or if
// etcd was never read. Nodes that do not answer are on the board instead.
func (b *Boards) ask(ctx context.Context, caller httpapi.Caller, q *Question, patience time.Duration) (Answer, error) {
	var answer Answer
	var answers map[string]readmodel.NodeAnswer
	var failures map[string]error
	var now fleet
	var etcdFault error

	callgroup.Run(
		func() { answer, answers, failures = b.Asker.askOwners(ctx, caller, q, patience) },
		func() { now, etcdFault = b.readFleet(ctx) },
	)

	if err := ctx.Err(); err != nil {
		return answer, err
	}
	if err := refusal(failures); err != nil {
		return answer, err
	}
	if now.nodes == nil {
		return answer, etcdFault
	}

	board := task.Board{
		At: answer.at, Node: b.Asker.Node, Version: b.Version, Cluster: b.Cluster.ID, Leader: now.status.Leader, Span: task.Duration(q.Board.Span),
		WarningDetails: append([]task.Warning{}, now.status.WarningDetails...), Freezes: append([]task.Freeze{}, now.status.Freezes...),
		ShardCount: b.Cluster.Shards, Missing: append([]int{}, answer.Missing...),
		BoardCounts: answer.Board.Counts, BoardLists: answer.Board.Lists, Recent: answer.Board.Tally.Recent(),
	}

	if etcdFault != nil {
		board.WarningDetails = slices.Insert(board.WarningDetails, 0, task.Warning{Code: task.WarnEtcdSilent,
			Text: "etcd does not answer node " + b.Asker.Node + ": the data about nodes and the cluster is outdated"})
	}

	board.Warnings = task.WarningTexts(board.WarningDetails)
	board.Serving = b.Cluster.Shards - len(board.Missing)

	for _, o := range now.owners {
		if slices.ContainsFunc(now.nodes, func(n task.Node) bool { return n.Name == o.Node }) {
			board.ShardsOwned++
		}
	}

	addNodes(&board, now.nodes, answers, failures)
	b.AddProgress(ctx, &board, now.nodes)
	answer.board = &board

	return answer, nil
}

// addNodes adds the nodes to a board, and names those that have not answered.
func addNodes(b *task.Board, nodes []task.Node, answers map[string]readmodel.NodeAnswer, failures map[string]error) {
	b.Nodes, b.Silent = []task.BoardNode{}, []task.Silence{}

	for _, name := range slices.Sorted(maps.Keys(failures)) {
		b.Silent = append(b.Silent, task.Silence{Node: name, Reason: failures[name].Error()})
	}

	for _, n := range nodes {
		shown := task.BoardNode{
			Name: n.Name, Address: n.Address, Version: n.Version, State: n.State, Ineligible: n.Ineligible, Blocked: n.Blocked, Roles: n.Roles, Slots: n.Slots,
			Running: n.Running, Shards: n.Shards, Unreadable: n.Unreadable, JoinedAt: n.JoinedAt, Silent: failures[n.Name] != nil, Recent: task.Tally{}.Recent(),
		}
		if answer := answers[n.Name]; answer.Board != nil {
			shown.Serving, shown.Recent = len(answer.Shards), answer.Board.Tally.Recent()
		}
		b.Nodes = append(b.Nodes, shown)
	}
}

// readFleet reads the nodes, the owners of shards and the status of the cluster. With an error, it returns what was read
// before.
func (b *Boards) readFleet(ctx context.Context) (fleet, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()

	nodes, owners, err := views.PresentNodes(ctx, b.Store)
	if err != nil {
		return b.known, err
	}
	b.known.nodes, b.known.owners = append([]task.Node{}, nodes...), owners

	if time.Since(b.known.statusAt) <= statusAge {
		return b.known, nil
	}

	status, err := b.Status(ctx)
	if err == nil {
		b.known.status, b.known.statusAt = status, time.Now()
	}

	return b.known, err
}
