package ask

import (
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

// MaxLimit is the maximum number of places in one answer.
const MaxLimit = 20_000

// Question is a question about tasks. All of its conditions must hold.
type Question struct {
	Namespace string   // "": all namespaces
	Within    []string // with all namespaces: only these, in order; nil: all of them
	Names     Globs    // empty: all names
	Selector  SelectorText
	Failing   bool // only tasks with a dead run and no success since
	Paused    bool // only paused tasks
	Active    bool // only tasks with a waiting or an active run
	Query     QueryText
	Order     readmodel.Order
	After     *readmodel.Place     // only tasks after this place; nil: from the beginning
	Limit     int                  // how many places to return, at most MaxLimit; 0: only counts
	Load      *readmodel.LoadRange // the load of the tasks instead of places
	Runs      *readmodel.RunsRange // the newest runs of the tasks instead of places; nil: places
	Splits    int                  // the names of one in so many tasks instead of places; 0: places

	// MinRevisions are, by shard, revisions that the answer must contain (see readmodel.Query). An Asker adds those of the
	// caller's last writes.
	MinRevisions Revisions
}

// SelectorText is a label selector as a query parameter.
type SelectorText struct {
	task.Selector
	text string
}

// UnmarshalText parses a selector.
func (s *SelectorText) UnmarshalText(text []byte) (err error) {
	s.text = string(text)
	s.Selector, err = task.ParseSelector(s.text)
	return err
}

// QueryText is a query line as a query parameter.
type QueryText struct {
	readmodel.QueryLine
	text string
}

// UnmarshalText parses a query line.
func (q *QueryText) UnmarshalText(text []byte) (err error) {
	q.text = string(text)
	q.QueryLine, err = readmodel.ParseQueryLine(q.text)
	return err
}

// OrderText is the order of a list of tasks as a query parameter.
type OrderText string

// UnmarshalText parses an order; an empty one is by name.
func (o *OrderText) UnmarshalText(text []byte) error {
	order, err := readmodel.ParseOrder(string(text))
	*o = OrderText(order)
	return err
}

// Order returns the order.
func (o OrderText) Order() readmodel.Order {
	if o == "" {
		return readmodel.ByName
	}
	return readmodel.Order(o)
}

// AboutRuns reports whether the answer tells how runs have ended. Only callers who may read runs may ask this.
func (q *Question) AboutRuns() bool {
	return q.Runs != nil || q.Query.AboutRuns() || q.Order != "" && q.Order != readmodel.ByName && q.Order != readmodel.ByNext
}

// needsHistory reports whether the answer may change while the owners still read how runs have ended before.
func (q *Question) needsHistory() bool { return q.Failing || !q.Query.Empty() || q.AboutRuns() }

// query returns the question in the form in which an index answers it, as of now.
func (q *Question) query(subject string, now int64) *readmodel.Query {
	f := readmodel.Filter{Namespace: q.Namespace, Within: q.Within}
	add := func(c readmodel.Condition) { f.Conditions = append(f.Conditions, c) }

	if q.Failing {
		add(func(r *readmodel.Row, _ int64) bool { return r.Flags.Has(readmodel.Failing) })
	}
	if q.Paused {
		add(func(r *readmodel.Row, _ int64) bool { return r.Flags.Has(readmodel.Paused) })
	}
	if q.Active {
		add(func(r *readmodel.Row, _ int64) bool { return r.Active > 0 || r.Waiting > 0 })
	}
	if len(q.Names) > 0 {
		add(q.Names.condition())
	}
	if q.Selector.Selector != nil {
		add(func(r *readmodel.Row, _ int64) bool { return q.Selector.Matches(r.Labels) })
	}

	f.Conditions = append(f.Conditions, q.Query.Conditions()...)

	return &readmodel.Query{Subject: subject, Filter: f, Order: q.Order, After: q.After, Limit: q.Limit, Now: now, Load: q.Load, Runs: q.Runs, Splits: q.Splits, MinRevisions: q.MinRevisions}
}

// questionQuery are the parameters of a question that one node asks another.
type questionQuery struct {
	Namespace string       `query:"namespace" doc:"Only tasks of this namespace."`
	Within    *string      `query:"within" doc:"Only tasks of these namespaces, separated by commas."`
	Name      Globs        `query:"name" doc:"Only tasks with these names or globs."`
	Selector  SelectorText `query:"selector" doc:"Only tasks with these labels."`
	Failing   bool         `query:"failing" default:"false" doc:"Only failing tasks."`
	Paused    bool         `query:"paused" default:"false" doc:"Only paused tasks."`
	Active    bool         `query:"active" default:"false" doc:"Only tasks with a waiting or an active run."`
	Query     QueryText    `query:"q" doc:"A query line."`
	Sort      OrderText    `query:"sort" doc:"The order."`
	After     string       `query:"after" doc:"Only tasks after this place: its key, a space, and the name of the task."`
	Limit     int          `query:"limit" minimum:"0" maximum:"20000" default:"0" doc:"The maximum number of tasks."`
	Load      loadText     `query:"load" doc:"The load instead of tasks: the beginning of the first minute in Unix milliseconds, how many minutes, and the numbers of those whose makers are wanted, separated by commas."`
	Runs      runsText     `query:"runs" doc:"The newest runs instead of tasks: how many, a comma, and the id before which they are."`
	Splits    int          `query:"splits" minimum:"0" maximum:"100000" default:"0" doc:"The names of one in so many tasks instead of tasks."`
	Min       Revisions    `query:"min" doc:"Revisions that the answer must contain, as SHARD:REVISION, separated by commas. If a shard does not reach its revision in time, it is left out."`
	Now       int64        `query:"now" minimum:"0" default:"0" doc:"The time to which the question refers, in Unix milliseconds."`
	Without   string       `query:"without" doc:"Shards to leave out, separated by commas."`
}

// question returns the question in a request, and the shards that it leaves out.
func (r *questionQuery) question() (q Question, without []int, err error) {
	q = Question{
		Namespace: r.Namespace, Names: r.Name, Selector: r.Selector, Failing: r.Failing, Paused: r.Paused, Active: r.Active,
		Query: r.Query, Order: r.Sort.Order(), Limit: r.Limit, Load: r.Load.LoadRange, Runs: r.Runs.RunsRange, Splits: r.Splits, MinRevisions: r.Min,
	}

	if r.Within != nil {
		q.Within = []string{}
		if *r.Within != "" {
			q.Within = strings.Split(*r.Within, ",")
		}
		slices.Sort(q.Within) // the scan searches it
	}

	if r.After != "" {
		if q.After, err = ParsePlace(r.After); err != nil {
			return q, nil, task.Invalid(task.CodeBadValue, "after", "is not a place")
		}
	}

	for text := range strings.SplitSeq(r.Without, ",") {
		if text == "" {
			continue
		}

		shard, err := strconv.Atoi(text)
		if err != nil {
			return q, nil, task.Invalid(task.CodeBadValue, "without", "%s is not a shard", task.Quote(text))
		}
		without = append(without, shard)
	}

	return q, without, nil
}

// Key identifies a question, apart from MinRevisions: equal questions of callers who may read the same have equal keys.
func (q *Question) Key() string {
	asked := *q
	asked.MinRevisions = nil

	return asked.values().Encode()
}

// values encodes the question for another node.
func (q *Question) values() url.Values {
	v := url.Values{"limit": {strconv.Itoa(q.Limit)}}
	set := func(name, value string) {
		if value != "" {
			v.Set(name, value)
		}
	}

	set("namespace", q.Namespace)
	set("name", strings.Join(q.Names, ","))
	set("selector", q.Selector.text)
	set("q", q.Query.text)
	set("sort", string(q.Order))
	set("min", q.MinRevisions.String())

	for name, is := range map[string]bool{"failing": q.Failing, "paused": q.Paused, "active": q.Active} {
		if is {
			v.Set(name, "true")
		}
	}

	if q.Within != nil {
		v.Set("within", strings.Join(q.Within, ","))
	}
	if q.After != nil {
		v.Set("after", PlaceCursor(*q.After))
	}
	if q.Load != nil {
		v.Set("load", formatLoad(q.Load))
	}
	if q.Runs != nil {
		v.Set("runs", formatRuns(q.Runs))
	}
	if q.Splits > 0 {
		v.Set("splits", strconv.Itoa(q.Splits))
	}

	return v
}

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
