package ask

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

// The limits of a question.
const (
	// MaxLimit is the maximum number of places in one answer.
	MaxLimit = 20_000
	// MaxMakers is the maximum number of minutes whose makers one question asks for: those of the peaks, and a chosen one.
	MaxMakers = 21
	// MaxRecentRuns is the maximum number of runs in one answer.
	MaxRecentRuns = 5000
	// maxSplitEvery is the maximum number of tasks between two splits.
	maxSplitEvery = 100_000
)

// Question is a question about tasks. Nodes send it to each other as JSON.
type Question struct {
	Namespace string                `json:"namespace,omitempty"` // "": all namespaces
	Within    []string              `json:"within,omitzero"`     // with all namespaces: only these, in order; nil: all of them, and empty: none
	Query     readmodel.QueryLine   `json:"query,omitzero"`
	Order     readmodel.Order       `json:"order,omitempty"`
	After     *readmodel.Place      `json:"after,omitempty"`  // only tasks after this place; nil: from the beginning
	Limit     int                   `json:"limit,omitempty"`  // how many places to return, at most MaxLimit; 0: only counts
	Load      *readmodel.LoadRange  `json:"load,omitempty"`   // the load of the tasks instead of places
	Runs      *readmodel.RunsRange  `json:"runs,omitempty"`   // the newest runs of the tasks instead of places; nil: places
	Splits    int                   `json:"splits,omitempty"` // return every n-th name instead of places; 0: places
	Board     *readmodel.BoardRange `json:"board,omitempty"`  // what a board shows of the tasks instead of places

	// MinRevisions are, by shard, revisions that the answer must contain (see readmodel.Query). An Asker adds those of the
	// caller's last writes.
	MinRevisions Revisions `json:"min_revisions,omitempty"`
	// Now is the time to which relative conditions refer, in Unix milliseconds, and Without are shards to leave out. An Asker
	// sets both.
	Now     int64 `json:"now,omitempty"`
	Without []int `json:"without,omitempty"`
}

// AboutRuns reports whether the answer shows how runs have ended. Only callers who may read runs may ask this.
func (q *Question) AboutRuns() bool {
	return q.Runs != nil || q.Query.AboutRuns() || q.Order != "" && q.Order != readmodel.ByName && q.Order != readmodel.ByNext
}

// needsHistory reports whether the answer may change while the owners still read how runs have ended before.
func (q *Question) needsHistory() bool { return q.Query.NeedsHistory() || q.AboutRuns() }

// query returns the question in the form in which an index answers it.
func (q *Question) query(subject string) *readmodel.Query {
	return &readmodel.Query{
		Subject: subject, Order: q.Order,
		Filter: readmodel.Filter{Namespace: q.Namespace, Within: q.Within, Conditions: q.Query.Conditions(), Receivers: q.Query.Receivers()},
		After:  q.After, Limit: q.Limit, Now: q.Now, Load: q.Load, Runs: q.Runs, Splits: q.Splits, Board: q.Board, MinRevisions: q.MinRevisions,
	}
}

// shareFor returns for how long an answer to the question is given again.
func (q *Question) shareFor() time.Duration {
	switch {
	case q.Board != nil:
		return shareBoardFor
	case q.Load != nil:
		return shareLoadFor
	default:
		return shareFor
	}
}

// encode returns the question as JSON.
func (q *Question) encode() string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // it would make terms such as next:<1h longer, and the length of a question is limited

	if err := e.Encode(q); err != nil {
		panic(err) // impossible: each field can be encoded
	}

	return strings.TrimSuffix(b.String(), "\n")
}

// Key identifies a question, apart from MinRevisions: equal questions of callers who may read the same have equal keys.
func (q *Question) Key() string {
	asked := *q
	asked.MinRevisions = nil

	return asked.encode()
}

// decodeQuestion decodes and checks the question of another node. It refuses fields that it does not know, because they
// may limit which tasks match.
func decodeQuestion(text string) (q Question, err error) {
	if err = task.DecodeStrict([]byte(text), &q); err == nil {
		err = q.check()
	}

	return q, err
}

// check checks a question of another node. It sets the default order, and sorts Within, because the scan searches it.
func (q *Question) check() error {
	q.Order = cmp.Or(q.Order, readmodel.ByName)
	slices.Sort(q.Within)

	type limit struct {
		field        string
		n, low, high int64
	}
	limits := []limit{
		{"limit", int64(q.Limit), 0, MaxLimit}, {"splits", int64(q.Splits), 0, maxSplitEvery}, {"now", q.Now, 0, math.MaxInt64},
	}

	if r := q.Runs; r != nil {
		limits = append(limits, limit{"runs.limit", int64(r.Limit), 1, MaxRecentRuns})
	}

	if l := q.Load; l != nil {
		if l.From%minuteMS != 0 {
			return task.Invalid(task.CodeBadValue, "load.from", "%d is not the beginning of a minute", l.From)
		}

		limits = append(limits, limit{"load.from", l.From, 0, math.MaxInt64}, limit{"load.minutes", int64(l.Minutes), 1, readmodel.MaxLoadMinutes})
		limits = append(limits, limit{"load.makers", int64(len(l.Makers)), 0, MaxMakers})
		for _, minute := range l.Makers {
			limits = append(limits, limit{"load.makers", int64(minute), 0, int64(l.Minutes) - 1})
		}
	}

	if b := q.Board; b != nil {
		limits = append(limits, limit{"board.span", int64(b.Span), int64(minBoardSpan), int64(maxBoardSpan)}, limit{"board.limit", int64(b.Limit), 1, maxBoardLimit})
	}

	for shard, revision := range q.MinRevisions {
		limits = append(limits, limit{"min_revisions", int64(shard), 0, math.MaxInt32}, limit{"min_revisions", revision, 0, math.MaxInt64})
	}

	for _, l := range limits {
		if l.n < l.low || l.n > l.high {
			return task.Invalid(task.CodeOutOfRange, l.field, "%d is not between %d and %d", l.n, l.low, l.high)
		}
	}

	return nil
}

// minuteMS is a minute in milliseconds.
const minuteMS = 60_000

// PlaceCursor returns the cursor of the page that begins after a place.
func PlaceCursor(p readmodel.Place) string {
	return httpapi.Cursor(strconv.FormatInt(p.Key, 10), p.Name)
}

// ParsePlace parses the cursor of a page.
func ParsePlace(s string) (*readmodel.Place, error) {
	key, name, ok := strings.Cut(s, " ")
	at, err := strconv.ParseInt(key, 10, 64)
	if !ok || err != nil {
		return nil, task.Invalid(client.CodeBadPage, "page", "is not a page token of this list")
	}

	return &readmodel.Place{Key: at, Name: name}, nil
}

// Revisions are revisions by shard.
type Revisions map[int]int64

// With returns the larger of the revisions and others, for each shard. It changes neither.
func (r Revisions) With(others Revisions) Revisions {
	if len(others) == 0 {
		return r
	}

	all := Revisions{}
	maps.Copy(all, r)
	for shard, revision := range others {
		all[shard] = max(all[shard], revision)
	}

	return all
}

// cover reports whether an answer that contains r contains others as well.
func (r Revisions) cover(others Revisions) bool {
	for shard, revision := range others {
		if r[shard] < revision {
			return false
		}
	}

	return true
}
