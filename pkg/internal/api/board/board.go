// Package board contains the API handler for the board, which shows an operator problems, future ticks and
// active runs. Each scheduling node has its part of the board in memory. The node that receives a request
// collects the parts of all these nodes and combines them. Requests that arrive shortly afterwards get the same
// board.
//
// If a node does not answer in time, its part is missing and the board names the node. If etcd is unavailable,
// the board shows the nodes as last read, with a warning.
package board

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// partWithin is how long a board waits for the parts of other nodes.
	partWithin = time.Second
	// boardAge is how long a board is served again. It is shorter than a second, so that clients which refresh
	// every second always get a new board. statusAge is the same for the status of the cluster, which costs more
	// reads and changes less often.
	boardAge  = 700 * time.Millisecond
	statusAge = 5 * time.Second
	// etcdWithin is how long a board waits for etcd.
	etcdWithin = 1500 * time.Millisecond
)

const boardAbout = "The node that receives the request collects a part from each node that schedules. The parts are in memory, so you can poll every second. " +
	"silent lists the nodes that did not respond within a second. With part=true, the answer covers only the node that receives the request."

// boardQuery are the parameters of a request for the board.
type boardQuery struct {
	Span  boardSpan `query:"span" default:"10m0s" example:"10m" doc:"How far next looks ahead: a duration, at most 24h."`
	Limit int       `query:"limit" minimum:"1" maximum:"500" default:"50" doc:"The maximum number of items in each list."`
	Part  bool      `query:"part" default:"false" doc:"Only the part of the node that receives the request."`
	// Within is what the node that asks for a part lets its caller read. Other callers get what they may read.
	Within *string `query:"within" doc:"With part=true, from another node: only these namespaces, separated by commas."`
}

// boardSpan is how far ahead a board lists ticks.
type boardSpan time.Duration

// mostBoardSpan is the maximum span.
const mostBoardSpan = 24 * time.Hour

// UnmarshalText parses a span.
func (b *boardSpan) UnmarshalText(text []byte) error {
	span, err := time.ParseDuration(string(text))
	if err != nil {
		return task.Invalid(task.CodeBadValue, "", "%s is not a duration such as 10m", task.Quote(string(text)))
	}
	if span <= 0 || span > mostBoardSpan {
		return task.Invalid(task.CodeOutOfRange, "", "%s is not between 1ms and 24h", text)
	}

	*b = boardSpan(span)

	return nil
}

// boardCache holds the latest board, which all callers share, and what was last read from etcd.
type boardCache struct {
	mu     sync.Mutex
	boards map[boardKey]cachedBoard // the latest boards; at most maxBoards

	// The latest records of etcd. They are shown while etcd is unavailable, because the board is most useful
	// then.
	nodes    []task.Node
	owners   []record.Owner
	statusAt time.Time
	status   client.ClusterStatus
}

// boardKey is what a board depends on: its parameters, and what its caller may read.
type boardKey struct {
	span           time.Duration
	limit          int
	within         string // the namespaces, joined; "*" for all
	nodes, cluster bool
}

// cachedBoard is a board, and when it was made.
type cachedBoard struct {
	at    time.Time
	board task.Board
}

// maxBoards bounds the memory for the boards of callers that may read different namespaces.
const maxBoards = 64

// refreshNodes reads nodes and owners from etcd. If it returns an error, they keep their former values.
func (b *boardCache) refreshNodes(ctx context.Context, st *store.Store) error {
	ctx, cancel := context.WithTimeout(ctx, etcdWithin)
	defer cancel()

	nodes, owners, err := views.PresentNodes(ctx, st)
	if err == nil {
		b.nodes, b.owners = nodes, owners
	}

	return err
}

// refreshStatus reads the status of the cluster, if the known one is old. If it returns an error, the status keeps its
// former value.
func (b *boardCache) refreshStatus(ctx context.Context, status func(context.Context) (client.ClusterStatus, error)) error {
	if time.Since(b.statusAt) <= statusAge {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, etcdWithin)
	defer cancel()

	now, err := status(ctx)
	if err == nil {
		b.status, b.statusAt = now, time.Now()
	}

	return err
}

// getBoard serves the board, or this node's part of it. The lock makes concurrent callers wait for one board.
func (h *Handlers) getBoard(c *httpapi.Call, q boardQuery) (httpapi.Answer, error) {
	ask, err := queryOf(c, q)
	if err != nil {
		return httpapi.Answer{}, err
	}

	if q.Part {
		return httpapi.Answer{Status: http.StatusOK, Body: h.ownPart(c.Context(), ask)}, nil
	}

	rights := c.Rights()
	key := boardKey{
		span: ask.Span, limit: ask.Limit, within: "*",
		nodes:   rights.Allows(access.Need{Verb: access.Read, Kind: access.Nodes}),
		cluster: rights.Allows(access.Need{Verb: access.Read, Kind: access.Cluster}),
	}
	if ask.Within != nil {
		key.within = strings.Join(ask.Within, ",")
	}

	h.cache.mu.Lock()
	defer h.cache.mu.Unlock()

	b := &h.cache
	if made, ok := b.boards[key]; ok && time.Since(made.at) <= boardAge {
		return httpapi.Answer{Status: http.StatusOK, Body: made.board}, nil
	}

	board, err := h.makeBoard(c, ask)
	if err != nil {
		return httpapi.Answer{}, err
	}

	hideCluster(&board, ask, key)
	if len(b.boards) >= maxBoards {
		clear(b.boards)
	}
	if b.boards == nil {
		b.boards = map[boardKey]cachedBoard{}
	}
	b.boards[key] = cachedBoard{time.Now(), board}

	return httpapi.Answer{Status: http.StatusOK, Body: board}, nil
}

// queryOf returns what is asked of each node. Only another node may say what its caller can read.
func queryOf(c *httpapi.Call, q boardQuery) (task.BoardQuery, error) {
	ask := task.BoardQuery{Span: time.Duration(q.Span), Limit: q.Limit, Within: c.Rights().Readable(access.Tasks)}
	if q.Within == nil {
		return ask, nil
	}

	if !q.Part || httpapi.CallerOf(c.Context()).Forwarder == "" {
		return ask, task.Invalid(task.CodeBadValue, "within", "is allowed only in a request from another node, with part=true")
	}

	ask.Within = []string{}
	if *q.Within != "" {
		ask.Within = strings.Split(*q.Within, ",")
	}

	return ask, nil
}

// hideCluster removes from a board what its caller may not read of nodes and of the cluster. The nodes that do not
// answer stay: the board must not look complete.
func hideCluster(b *task.Board, ask task.BoardQuery, may boardKey) {
	if !may.nodes {
		b.Nodes = []task.BoardNode{}
	}

	if !may.cluster {
		b.WarningDetails, b.Warnings, b.Leader = []task.Warning{}, []string{}, ""
		b.Stuck = []task.BoardShard{}
		b.Freezes = slices.DeleteFunc(b.Freezes, func(f task.Freeze) bool { return f.Namespace != "" && !ask.Includes(f.Namespace) })
	}
}

// ownPart returns this node's part. A node that does not schedule has an empty part.
func (h *Handlers) ownPart(ctx context.Context, ask task.BoardQuery) task.BoardPart {
	if h.Part == nil {
		return task.BoardPart{Node: h.Node, At: h.Now.Stamp()}
	}
	return h.Part(ctx, ask)
}

// makeBoard collects the parts of all scheduling nodes and combines them. The caller must hold the lock of the
// cache.
func (h *Handlers) makeBoard(c *httpapi.Call, ask task.BoardQuery) (task.Board, error) {
	away := h.cache.refreshNodes(c.Context(), h.Store)
	if away != nil && (h.cache.nodes == nil || c.Context().Err() != nil) {
		return task.Board{}, away
	}

	// The status waits for etcd, and the parts for other nodes.
	var parts map[string]partAnswer
	callgroup.Run(
		func() { parts = h.askParts(c, h.cache.nodes, ask) },
		func() {
			if away == nil {
				away = h.cache.refreshStatus(c.Context(), h.Status)
			}
		},
	)

	nodes, st := h.cache.nodes, h.cache.status
	b := task.Board{
		At: h.Now.Stamp(), Node: h.Node, Version: h.Version, Cluster: h.Cluster.ID, Leader: st.Leader, Span: task.Duration(ask.Span),
		WarningDetails: append([]task.Warning{}, st.WarningDetails...), Freezes: append([]task.Freeze{}, st.Freezes...), Silent: []task.Silence{}, ShardCount: h.Cluster.Shards,
	}
	if away != nil {
		b.WarningDetails = slices.Insert(b.WarningDetails, 0, task.Warning{Code: task.WarnEtcdSilent,
			Text: "etcd does not answer node " + h.Node + ": the data about nodes and the cluster is outdated"})
	}

	b.Warnings = task.WarningTexts(b.WarningDetails)
	for _, o := range h.cache.owners {
		if slices.ContainsFunc(nodes, func(n task.Node) bool { return n.Name == o.Node }) {
			b.ShardsOwned++
		}
	}

	dropSuperseded(parts, h.shardOf)
	mergeBoard(&b, nodes, parts, ask.Limit)
	h.Attempts.AddToBoard(c.Context(), &b, nodes)

	return b, c.Context().Err() // a caller that has gone would make all nodes look silent
}

// partAnswer is the part of a node, or the reason why it is missing.
type partAnswer struct {
	part task.BoardPart
	err  error
}

// askParts collects the parts of all scheduling nodes, by name.
func (h *Handlers) askParts(c *httpapi.Call, nodes []task.Node, query task.BoardQuery) map[string]partAnswer {
	ctx, cancel := context.WithTimeout(c.Context(), partWithin)
	defer cancel()

	var mu sync.Mutex
	parts := map[string]partAnswer{}
	g := callgroup.New()
	g.SetLimit(peers.AtOnce)
	ask := func(name string, read func() (task.BoardPart, error)) {
		g.Go(func() error {
			p, err := read()
			mu.Lock()
			defer mu.Unlock()

			parts[name] = partAnswer{p, err}

			return nil
		})
	}

	ask(h.Node, func() (task.BoardPart, error) { return h.ownPart(ctx, query), nil })

	for _, n := range nodes {
		if n.Name != h.Node && n.Has(task.RoleScheduler) {
			ask(n.Name, func() (task.BoardPart, error) { return h.partOf(ctx, n, httpapi.CallerOf(c.Context()), query) })
		}
	}

	_ = g.Wait() // the functions return no errors

	return parts
}

// partOf requests the part of another node on behalf of the caller.
func (h *Handlers) partOf(ctx context.Context, n task.Node, who httpapi.Caller, ask task.BoardQuery) (p task.BoardPart, err error) {
	q := url.Values{"part": {"true"}, "span": {ask.Span.String()}, "limit": {fmt.Sprint(ask.Limit)}}
	if ask.Within != nil {
		q.Set("within", strings.Join(ask.Within, ","))
	}

	req, err := h.Peers.NewRequest(ctx, who, n, http.MethodGet, q, "v1", "board")
	if err != nil {
		return p, err
	}

	u := req.URL
	res, err := h.Peers.RoundTrip(req)
	if errors.Is(err, context.DeadlineExceeded) {
		return p, fmt.Errorf("no answer from %s within %s", u.Host, partWithin)
	}
	if err != nil {
		return p, fmt.Errorf("at %s: %w", u.Host, err)
	}

	defer res.Body.Close()

	if err := peers.Refusal(res); err != nil {
		return p, fmt.Errorf("%s: %w", u.Host, err)
	}
	if res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusUnprocessableEntity {
		return p, fmt.Errorf("version %s does not support the board", n.Version)
	}
	if res.StatusCode != http.StatusOK {
		return p, fmt.Errorf("%s answered %s", u.Host, res.Status)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, peers.MaxAnswer)).Decode(&p); err != nil {
		return p, fmt.Errorf("%s sent an unreadable answer: %w", u.Host, err)
	}
	// The address may meanwhile belong to another node, whose part must not be counted for this one.
	if p.Node != n.Name {
		return p, fmt.Errorf("another node, %s, answers at %s", task.Quote(p.Node), u.Host)
	}

	return p, nil
}

// shardOf returns the shard of a task.
func (h *Handlers) shardOf(namespace, name string) int { return h.Ref(namespace, name).Shard }

// dropSuperseded removes from the parts what they say of shards that another node serves under a newer owner key, so that
// a shard that moves is shown once. The part of the former owner may lack further items of its other shards then, because
// its lists are short; the next board has them.
func dropSuperseded(parts map[string]partAnswer, shardOf func(namespace, name string) int) {
	newest := map[int]int64{}
	for _, h := range parts {
		for _, s := range h.part.Shards {
			newest[s.Shard] = max(newest[s.Shard], s.Owner)
		}
	}

	for name, h := range parts {
		lost := map[int]bool{}
		for _, s := range h.part.Shards {
			if s.Owner < newest[s.Shard] {
				lost[s.Shard] = true
			}
		}
		if len(lost) == 0 {
			continue
		}

		p := &h.part
		p.Shards = without(p.Shards, func(s task.BoardShardCounts) bool { return lost[s.Shard] })
		p.Stuck = without(p.Stuck, func(s task.BoardShard) bool { return lost[s.ID] })
		p.Failing = without(p.Failing, func(f task.BoardFailing) bool { return lost[shardOf(f.Namespace, f.Task)] })
		tick := func(t task.BoardTick) bool { return lost[shardOf(t.Namespace, t.Task)] }
		p.Overdue, p.Next = without(p.Overdue, tick), without(p.Next, tick)
		run := func(r task.BoardRun) bool { return lost[shardOf(r.Namespace, r.Task)] }
		p.Away, p.Active = without(p.Away, run), without(p.Active, run)
		p.Waits = without(p.Waits, func(w task.BoardWait) bool { return lost[shardOf(w.Namespace, w.Task)] })
		parts[name] = h
	}
}

// without returns the items of a list to which a condition does not apply. It leaves the list as it is, because the part
// that contains it may be shown again.
func without[T any](list []T, drop func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), drop)
}

// countShards adds up the counts of all shards, and names those of which none are known.
func countShards(b *task.Board, parts map[string]partAnswer) {
	known := make([]bool, b.ShardCount)
	for _, h := range parts {
		for _, s := range h.part.Shards {
			b.BoardCounts.Add(s.BoardCounts)
			if s.Shard >= 0 && s.Shard < len(known) && !s.Unknown {
				known[s.Shard] = true
			}
		}
	}

	for shard, is := range known {
		if !is {
			b.Missing = append(b.Missing, shard)
		}
	}
}

// mergeBoard combines the parts. The result does not depend on the order in which they arrived, except for
// ties.
func mergeBoard(b *task.Board, nodes []task.Node, parts map[string]partAnswer, limit int) {
	b.Waiting, b.Nodes, b.Missing = map[string]int{}, []task.BoardNode{}, []int{}
	var all task.Tally

	for _, n := range nodes {
		bn := task.BoardNode{
			Name: n.Name, Address: n.Address, Version: n.Version, State: n.State, Ineligible: n.Ineligible, Blocked: n.Blocked, Roles: n.Roles, Slots: n.Slots,
			Running: n.Running, Shards: n.Shards, Unreadable: n.Unreadable, JoinedAt: n.JoinedAt,
		}
		h, asked := parts[n.Name]
		if asked && h.err != nil {
			bn.Silent = true
			b.Silent = append(b.Silent, task.Silence{Node: n.Name, Reason: h.err.Error()})
		}

		bn.Serving, bn.Recent = h.part.Counts().Serving, h.part.Tally.Recent()
		b.Nodes = append(b.Nodes, bn)
	}

	countShards(b, parts)
	for _, h := range parts {
		if h.err == nil {
			all.Add(h.part.Tally)
		}
	}

	b.Recent = all.Recent()
	list := func(of func(*task.BoardPart)) {
		for _, h := range parts {
			of(&h.part)
		}
	}

	l := &b.BoardLists
	list(func(p *task.BoardPart) {
		l.Stuck, l.Failing, l.Overdue = append(l.Stuck, p.Stuck...), append(l.Failing, p.Failing...), append(l.Overdue, p.Overdue...)
		l.Away, l.Waits, l.Next, l.Active = append(l.Away, p.Away...), append(l.Waits, p.Waits...), append(l.Next, p.Next...), append(l.Active, p.Active...)
	})

	l.Stuck = firstSorted(l.Stuck, limit, func(a, b task.BoardShard) int { return a.Since.Compare(b.Since.Time) })
	l.Failing = firstSorted(l.Failing, limit, func(a, b task.BoardFailing) int {
		if c := b.EndedAt.Compare(a.EndedAt.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Namespace+"/"+a.Task, b.Namespace+"/"+b.Task)
	})

	l.Overdue, l.Next = firstSorted(l.Overdue, limit, compareTicks), firstSorted(l.Next, limit, compareTicks)
	l.Away, l.Active = firstSorted(l.Away, limit, compareRuns), firstSorted(l.Active, limit, compareRuns)
	l.Waits = firstSorted(l.Waits, limit, func(a, b task.BoardWait) int {
		return cmp.Or(cmp.Compare(task.WaitUrgency(a.Reason, a.Unsent), task.WaitUrgency(b.Reason, b.Unsent)), strings.Compare(a.Run, b.Run))
	})
}

// compareTicks orders ticks by their due time.
func compareTicks(a, b task.BoardTick) int {
	if c := a.Due().Compare(b.Due().Time); c != 0 {
		return c
	}
	return strings.Compare(a.Namespace+"/"+a.Task, b.Namespace+"/"+b.Task)
}

// compareRuns orders runs by the time at which they began.
func compareRuns(a, b task.BoardRun) int {
	if c := a.Began().Compare(b.Began().Time); c != 0 {
		return c
	}
	return strings.Compare(a.Run, b.Run)
}

// firstSorted sorts a list and returns its first most items. The result is never nil, because the API returns []
// and not null.
func firstSorted[T any](list []T, most int, before func(a, b T) int) []T {
	slices.SortStableFunc(list, before)
	return append([]T{}, list[:min(len(list), most)]...)
}
