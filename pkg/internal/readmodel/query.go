package readmodel

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Query is a question about tasks. It must not be changed while it is answered.
type Query struct {
	Subject string // who asks; subjects share fairly what a node spends on queries
	Filter  Filter
	Order   Order
	After   *Place // only tasks after this place; nil: from the beginning
	Limit   int    // how many places to return; 0: only counts
	Now     int64  // the time that relative conditions refer to, in Unix milliseconds

	// Load, if set, asks for the load of the tasks instead of places.
	Load *LoadRange
	// MinRevisions are, by shard, revisions that an answer must contain: those of what the caller has written. A shard
	// whose owner does not know them in time is left out, and so missing. Nothing is asked of other shards: if nothing
	// changes, a shard does not reach later revisions.
	MinRevisions map[int]int64
	// Runs, if set, asks for runs of the tasks instead of places and counts. The filter must have no conditions.
	Runs *RunsRange
	// Splits, if not 0, asks for every n-th name, instead of places and counts.
	Splits int
	// Board, if set, asks for what a board shows of the tasks, instead of places and counts.
	Board *BoardRange
}

// Filter selects tasks. All conditions must hold.
type Filter struct {
	Namespace  string      // "": all namespaces
	Within     []string    // with all namespaces: only these, in order; nil: all of them
	Conditions []Condition // further conditions

	// Receivers are conditions on which receivers of alerts a task names.
	Receivers []ReceiverCondition
}

// Condition reports whether a task matches. It must not keep or change the row. now is that of the query.
type Condition func(r *Row, now int64) bool

// MatchesNothing reports whether no row can satisfy the filter. A query with such a filter only asks which shards a node
// owns, and how many tasks they have.
func (f *Filter) MatchesNothing() bool {
	return f.Namespace == "" && f.Within != nil && len(f.Within) == 0
}

// ReceiverCondition holds for tasks whose alerts go to one of some receivers, each as NAMESPACE/NAME, or to none of them.
type ReceiverCondition struct {
	Names []string
	None  bool
}

// holds reports whether the condition holds for a task of a namespace with these expectations. It allocates nothing.
func (c *ReceiverCondition) holds(namespace string, a *task.Alerts) bool {
	if a != nil {
		for _, receiver := range a.Notify {
			if slices.ContainsFunc(c.Names, func(name string) bool { return isReceiver(name, namespace, receiver) }) {
				return !c.None
			}
		}
	}

	return c.None
}

// isReceiver reports whether a receiver that a task of a namespace names is the one with a full name.
func isReceiver(full, namespace, receiver string) bool {
	if full == receiver {
		return true
	}

	ns, name, _ := strings.Cut(full, "/")

	return ns == namespace && name == receiver
}

// matches reports whether a row satisfies the filter. a is what is expected of its task; nil: nothing.
func (f *Filter) matches(r *Row, a *task.Alerts, now int64) bool {
	if f.Namespace != "" {
		if len(r.Name) <= len(f.Namespace) || r.Name[len(f.Namespace)] != '/' || !strings.HasPrefix(r.Name, f.Namespace) {
			return false
		}
	} else if f.Within != nil {
		namespace, _, _ := strings.Cut(r.Name, "/")
		if _, found := slices.BinarySearch(f.Within, namespace); !found {
			return false
		}
	}

	for _, holds := range f.Conditions {
		if !holds(r, now) {
			return false
		}
	}

	for i := range f.Receivers {
		namespace, _ := r.splitName()
		if !f.Receivers[i].holds(namespace, a) {
			return false
		}
	}

	return true
}

// Order is the order of a list. Tasks with equal keys are in the order of their full names, as in etcd.
type Order string

// The orders.
const (
	ByName     Order = "name"
	ByNext     Order = "next"     // the earliest next tick first; tasks without one last
	ByLast     Order = "last"     // the latest end of a run first; tasks without one last
	ByLateness Order = "lateness" // the largest lateness of the last run first
	ByDuration Order = "duration" // the longest last run first
	ByFailures Order = "failures" // the most failures in a row first
)

// Orders are all orders.
var Orders = []Order{ByName, ByNext, ByLast, ByLateness, ByDuration, ByFailures}

// NoValue is the key of tasks that come after all others, because they have no value to sort by.
const NoValue = math.MaxInt64

// key returns the number by which a row is sorted. Descending orders use negative numbers.
func (o Order) key(r *Row) int64 {
	switch o {
	case ByNext:
		if r.Next != 0 {
			return r.Next
		}
	case ByLast:
		if r.LastEnd != 0 {
			return -r.LastEnd
		}
	case ByLateness:
		if r.LastEnd != 0 {
			return -int64(r.Lateness)
		}
	case ByDuration:
		if r.LastEnd != 0 {
			return -int64(r.Duration)
		}
	case ByFailures:
		return -int64(r.Failures)
	default:
		return 0
	}

	return NoValue
}

// Place is the position of a task in a list. No two tasks have the same.
type Place struct {
	Key   int64  `json:"key" doc:"What the task is sorted by."`
	Name  string `json:"name" doc:"The namespace and the name of the task."`
	Shard int    `json:"shard" doc:"The number of the shard."`

	Failing bool `json:"failing,omitempty" doc:"The task is failing."`
}

// Compare orders places.
func (p *Place) Compare(q *Place) int {
	// Names are somewhere else in memory, so a scan of a million rows compares them only if it must.
	if p.Key != q.Key {
		return cmp.Compare(p.Key, q.Key)
	}
	return strings.Compare(p.Name, q.Name)
}

// Counts are how many of the matching tasks have a property. A task may have several.
type Counts struct {
	Tasks      int `json:"tasks" doc:"The number of tasks that match."`
	Paused     int `json:"paused" doc:"How many of them are paused."`
	Failing    int `json:"failing" doc:"How many of them are failing."`
	Active     int `json:"active" doc:"How many of them have an active run."`
	Waiting    int `json:"waiting" doc:"How many of them have a waiting run."`
	Overdue    int `json:"overdue" doc:"How many of them have a tick that is overdue."`
	Unreadable int `json:"unreadable" doc:"How many of them have an entry that cannot be read."`
}

// OverdueAfter is the age from which an undecided tick counts as overdue.
const OverdueAfter = 2 * time.Second

// Due returns when the next tick is due, in Unix milliseconds, or 0 if there is none.
func (r *Row) Due() int64 {
	if r.Next == 0 {
		return 0
	}
	return r.Next + int64(r.Delay)
}

// isOverdue reports whether a row has an undecided tick that is overdue at now.
func (r *Row) isOverdue(now int64) bool {
	return r.Next != 0 && r.Due() < now-OverdueAfter.Milliseconds()
}

// add counts a row.
func (c *Counts) add(r *Row, now int64) {
	c.Tasks++

	if r.Flags.Has(Paused) {
		c.Paused++
	}
	if r.Flags.Has(Failing) {
		c.Failing++
	}
	if r.Flags.Has(Unreadable) {
		c.Unreadable++
	}
	if r.Active > 0 {
		c.Active++
	}
	if r.Waiting > 0 {
		c.Waiting++
	}
	if r.isOverdue(now) {
		c.Overdue++
	}
}

// Add adds other counts.
func (c *Counts) Add(d Counts) {
	c.Tasks, c.Paused, c.Failing, c.Active = c.Tasks+d.Tasks, c.Paused+d.Paused, c.Failing+d.Failing, c.Active+d.Active
	c.Waiting, c.Overdue, c.Unreadable = c.Waiting+d.Waiting, c.Overdue+d.Overdue, c.Unreadable+d.Unreadable
}

// UnmarshalText parses an order; an empty one is ByName.
func (o *Order) UnmarshalText(text []byte) error {
	*o = cmp.Or(Order(text), ByName)
	if !slices.Contains(Orders, *o) {
		return task.Invalid(task.CodeBadValue, "", "%s is not one of %s", task.Quote(string(text)), orderNames())
	}

	return nil
}

// orderNames returns the orders for a message.
func orderNames() string {
	names := make([]string, len(Orders))
	for i, o := range Orders {
		names[i] = string(o)
	}

	return fmt.Sprintf("%s or %s", strings.Join(names[:len(names)-1], ", "), names[len(names)-1])
}
