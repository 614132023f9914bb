package readmodel

import (
	"fmt"
	"slices"
	"time"
)

// ShardAnswer is what the owner of a shard says about its tasks that match a query.
type ShardAnswer struct {
	Shard int   `json:"shard" doc:"The number of the shard."`
	Owner int64 `json:"owner" doc:"The mod revision of the owner key under which the shard is served."`
	// AgeMS is how many milliseconds ago the owner last heard from the shard's watch.
	AgeMS int64 `json:"age_ms" doc:"How many milliseconds ago the owner last heard from the watch of the shard."`
	// Rows is the number of all tasks of the shard, also of those that do not match. Unread is how many of them were not
	// asked for their last end yet, which happens after the shard has got a new owner.
	Rows   int `json:"rows" doc:"The number of all tasks of the shard, also of those that do not match."`
	Unread int `json:"unread,omitempty" doc:"The number of tasks whose history the owner has not read yet."`
	Counts
}

// NodeAnswer is what a node says about the shards that it owns.
type NodeAnswer struct {
	Node   string        `json:"node" doc:"The node that answers."`
	Shards []ShardAnswer `json:"shards" doc:"The shards for which it answers."`
	Places []Place       `json:"places" doc:"The first tasks that match in all these shards, in order."`
	More   bool          `json:"more" doc:"Further tasks match."`
	Load   *Load         `json:"load,omitempty" doc:"The load of all these shards, if the query asks for it."`
	// Recent are the newest runs of all these shards, if the query asks for them.
	Recent *RecentRuns `json:"recent,omitempty" doc:"The newest runs of the tasks that match, if the query asks for them."`
	// Splits are names of tasks that divide all tasks into parts of similar sizes, in no order, if the query asks for them.
	Splits []string `json:"splits,omitempty" doc:"Names of tasks that divide all tasks into parts of similar sizes, in no order, if the query asks for them."`
	// Board is what a board shows of all these shards, and of those that are being opened, if the query asks for it.
	Board *BoardAnswer `json:"board,omitempty" doc:"The board of these shards, if the query asks for it."`
}

// Scan answers a query for the shards of one node, one index after another.
type Scan struct {
	query  *Query
	first  *First
	load   *LoadScan  // nil: the query does not ask for it
	board  *boardScan // nil: the query does not ask for it
	answer NodeAnswer
}

// NewScan returns a Scan without shards.
func NewScan(q *Query, node string) *Scan {
	s := &Scan{query: q, first: NewFirst(q), answer: NodeAnswer{Node: node}}
	if q.Load != nil {
		s.load = NewLoadScan(q)
	}
	if q.Board != nil {
		s.board = newBoardScan(q)
	}

	return s
}

// Add adds a shard. Add sets the counts of its answer, unless the query asks for Splits or a Board.
func (s *Scan) Add(shard ShardAnswer, x *Index) {
	switch {
	case s.query.Filter.MatchesNothing():
	case s.query.Runs != nil:
		var r RecentRuns
		r.Runs, r.After = x.addRuns(s.query, nil)
		if s.answer.Recent == nil {
			s.answer.Recent = &RecentRuns{}
		}
		s.answer.Recent.Merge(r, s.query.Runs.Limit)
	case s.load != nil:
		shard.Counts = s.load.Scan(x)
	case s.board != nil:
		s.board.scan(x)
	case s.query.Splits > 0:
		s.answer.Splits = append(s.answer.Splits, x.splits(s.query, shard.Shard)...)
	default:
		shard.Counts = x.Scan(s.query, shard.Shard, s.first)
	}

	s.answer.Shards = append(s.answer.Shards, shard)
}

// Answer returns the answer for all shards that were added. s must not be used afterwards.
func (s *Scan) Answer() NodeAnswer {
	s.answer.Places, s.answer.More = s.first.Sorted(), s.first.More
	if s.load != nil {
		sum := s.load.Load()
		s.answer.Load = &sum
	}
	if s.board != nil {
		s.answer.Board = s.board.board()
	}

	return s.answer
}

// First keeps the first places of all that are offered, so that a scan of any length needs memory for one page only.
type First struct {
	limit int
	after *Place
	kept  []Place // a heap with the last place on top
	More  bool    // further places follow those that are kept
}

// NewFirst returns a First for the places that a query asks for.
func NewFirst(q *Query) *First { return &First{limit: q.Limit, after: q.After} }

// Offer keeps a place if it is among the first.
func (f *First) Offer(p Place) {
	if f.after != nil && p.Compare(f.after) <= 0 {
		return
	}

	if len(f.kept) < f.limit {
		f.kept = append(f.kept, p)
		f.siftUp(len(f.kept) - 1)

		return
	}

	f.More = true
	if f.limit > 0 && p.Compare(&f.kept[0]) < 0 {
		f.kept[0] = p
		f.siftDown(0)
	}
}

// siftUp moves the place at index i up until its parent comes after it.
func (f *First) siftUp(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if f.kept[i].Compare(&f.kept[parent]) <= 0 {
			return
		}

		f.kept[i], f.kept[parent] = f.kept[parent], f.kept[i]
		i = parent
	}
}

// siftDown moves the place at index i down until both children come before it.
func (f *First) siftDown(i int) {
	for {
		child := 2*i + 1
		if child >= len(f.kept) {
			return
		}

		if child+1 < len(f.kept) && f.kept[child+1].Compare(&f.kept[child]) > 0 {
			child++
		}
		if f.kept[child].Compare(&f.kept[i]) <= 0 {
			return
		}

		f.kept[i], f.kept[child] = f.kept[child], f.kept[i]
		i = child
	}
}

// Sorted returns the kept places in order. f must not be used afterwards.
func (f *First) Sorted() []Place {
	slices.SortFunc(f.kept, func(a, b Place) int { return a.Compare(&b) })
	return f.kept
}

// Page is the answer to a query.
type Page struct {
	Places  []Place
	More    bool
	Counts  Counts
	Load    *Load        // if the query asks for it
	Board   *BoardAnswer // if the query asks for it
	Missing []int        // shards that nobody has answered for
	AgeMS   int64        // the largest age of a shard
	Rows    int          // see ShardAnswer; only callers who may read the cluster may learn this number
	Unread  int          // see ShardAnswer
}

// Collected returns for how many percent of the tasks the last end is known. It is 100 only if it is known for all.
func (p *Page) Collected() int {
	if p.Unread == 0 {
		return 100
	}

	return min(100*(p.Rows-p.Unread)/max(p.Rows, 1), 99)
}

// Superseded returns, by node, the shards of answers that lose to another node's: both answer for the shard, and the
// other one has the newer owner key. Such a node must be asked once more without these shards, because its places may
// all be of them, and those that follow are not known.
func Superseded(answers []NodeAnswer) map[string][]int {
	newest := newestOwners(answers)
	lost := map[string][]int{}

	for i := range answers {
		a := &answers[i]
		for _, s := range a.Shards {
			if newest[s.Shard] != i {
				lost[a.Node] = append(lost[a.Node], s.Shard)
			}
		}
	}

	return lost
}

// newestOwners returns the index of the answer that counts for each shard.
func newestOwners(answers []NodeAnswer) map[int]int {
	newest, owner := map[int]int{}, map[int]int64{}

	for i := range answers {
		for _, s := range answers[i].Shards {
			if known, ok := owner[s.Shard]; !ok || s.Owner > known {
				newest[s.Shard], owner[s.Shard] = i, s.Owner
			}
		}
	}

	return newest
}

// Merge combines the answers of nodes for a cluster with this number of shards. All shards of a node whose answer
// contains superseded shards are missing: the caller asks such nodes again first, see Superseded.
func Merge(q *Query, shards int, answers []NodeAnswer) Page {
	lost := Superseded(answers)
	first := NewFirst(q)
	answered := make([]bool, shards)
	var loads []*Load
	var boards []*BoardAnswer
	var p Page

	for i := range answers {
		a := &answers[i]
		if len(lost[a.Node]) > 0 {
			continue
		}

		for _, s := range a.Shards {
			// Another node may send anything: a shard counts once.
			if s.Shard < 0 || s.Shard >= shards || answered[s.Shard] {
				continue
			}

			answered[s.Shard] = true
			p.Counts.Add(s.Counts)
			p.AgeMS = max(p.AgeMS, s.AgeMS)
			p.Rows += s.Rows
			p.Unread += s.Unread
		}

		for _, place := range a.Places {
			first.Offer(place)
		}

		p.More = p.More || a.More
		if a.Load != nil {
			loads = append(loads, a.Load)
		}
		if a.Board != nil {
			boards = append(boards, a.Board)
		}
	}

	if q.Load != nil {
		p.Load = mergeLoads(q.Load, loads)
	}
	if q.Board != nil {
		p.Board = mergeBoards(q.Board, boards)
	}

	p.Places = first.Sorted()
	p.More = p.More || first.More

	for shard, ok := range answered {
		if !ok {
			p.Missing = append(p.Missing, shard)
		}
	}

	return p
}

// Busy is the error of a node that answers no query at the moment: scans take as much of its processors as they may.
type Busy struct {
	Node       string
	RetryAfter time.Duration // when the node answers the same subject again, at the earliest
}

func (b *Busy) Error() string {
	return fmt.Sprintf("busy with other queries; retry in %s", b.RetryAfter.Round(time.Millisecond))
}
