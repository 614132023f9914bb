package readmodel

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
