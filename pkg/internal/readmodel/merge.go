package readmodel

// ShardAnswer is what the owner of a shard says about its tasks that match a query.
type ShardAnswer struct {
	Shard int   `json:"shard"`
	Owner int64 `json:"owner"` // mod revision of the owner key under which the shard is served
	// AgeMS is how many milliseconds ago the owner last heard from the shard's watch.
	AgeMS int64 `json:"age_ms"`
	// Rows is the number of all tasks of the shard, also of those that do not match. Unread is how many of them were not
	// asked for their last end yet, which happens after the shard has got a new owner.
	Rows   int `json:"rows"`
	Unread int `json:"unread,omitempty"`
	Counts
}

// NodeAnswer is what a node says about the shards that it owns.
type NodeAnswer struct {
	Node   string        `json:"node"`
	Shards []ShardAnswer `json:"shards"`
	Places []Place       `json:"places"`         // the first of all these shards, in order
	More   bool          `json:"more"`           // further places follow
	Load   *Load         `json:"load,omitempty"` // of all these shards, if the query asks for it
	// Recent are the newest runs of all these shards, if the query asks for them.
	Recent *RecentRuns `json:"recent,omitempty"`
	// Splits are names of tasks that divide all tasks into parts of similar sizes, in no order, if the query asks for them.
	Splits []string `json:"splits,omitempty"`
	// Board is what a board shows of all these shards, and of those that are being opened, if the query asks for it.
	Board *BoardAnswer `json:"board,omitempty"`
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
			if s.Shard < 0 || s.Shard >= shards {
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
