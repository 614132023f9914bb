package readmodel

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// FigureState is the state of a task in Figures. Each task has exactly one, so that their numbers can be added.
type FigureState uint8

// The states, of which a task has the last one that applies.
const (
	FigureOK FigureState = iota
	FigurePaused
	FigureFailing
	FigureUnreadable
	figureStates
)

// String returns the state as a label.
func (s FigureState) String() string {
	return [figureStates]string{"ok", "paused", "failing", "unreadable"}[s]
}

// figureStateOf returns the state of a task.
func figureStateOf(f Flags) FigureState {
	switch {
	case f.Has(Unreadable):
		return FigureUnreadable
	case f.Has(Failing):
		return FigureFailing
	case f.Has(Paused):
		return FigurePaused
	}

	return FigureOK
}

// Figures are numbers about the tasks of some shards, for metrics. They have a bounded size.
type Figures struct {
	namespaces map[string]*NamespaceFigures
	limits     FigureLimits

	chosen []TaskFigures // the first tasks with metrics of their own, and some more
	last   *TaskFigures  // later ones are beyond the limit; nil: none is yet
	own    int           // tasks with metrics of their own
}

// FigureLimits bound Figures.
type FigureLimits struct {
	Namespaces int // further ones are counted as OtherNamespaces
	Tasks      int // tasks with metrics of their own: the first ones by namespace and name, so that restarts do not change them
}

// OtherNamespaces stands for all namespaces beyond the limit. It cannot be the name of one.
const OtherNamespaces = "~more"

// NamespaceFigures count the tasks of a namespace.
type NamespaceFigures struct {
	Name     string
	Tasks    [figureStates]int // by FigureState
	DeadRuns int               // see Details.DeadRuns

	hasTaskMetrics bool // what its record says; see Row.Flags
}

// TaskFigures are those of one task.
type TaskFigures struct {
	Namespace, Task string
	LastSuccess     uint32 // see Row
	LastEnd         int64
	Duration        int32
	Failures        uint16

	isKnown bool // how its runs have ended
}

// compare orders tasks by namespace and name.
func (t *TaskFigures) compare(namespace, name string) int {
	return cmp.Or(strings.Compare(t.Namespace, namespace), strings.Compare(t.Task, name))
}

// NewFigures returns Figures without tasks.
func NewFigures(limits FigureLimits) *Figures {
	return &Figures{namespaces: map[string]*NamespaceFigures{}, limits: limits}
}

// Add adds the tasks of a shard at an instant (Unix milliseconds). hasTaskMetrics reports whether the tasks of a namespace have metrics
// of their own unless they say otherwise.
func (f *Figures) Add(x *Index, now int64, hasTaskMetrics func(namespace string) bool) {
	var of *NamespaceFigures // of the last task: the next one is often in the same namespace
	x.scan(&indexScan{now: now, detailed: Paused | Failing, visit: func(r *Row, d *Details, _ *task.Alerts) {
		namespace, name := r.splitName()
		if of == nil || of.Name != namespace {
			of = f.namespace(namespace, hasTaskMetrics)
		}

		of.Tasks[figureStateOf(r.Flags)]++
		if d != nil {
			of.DeadRuns += d.DeadRuns
		}

		if r.Flags.Has(MetricsOn) || of.hasTaskMetrics && !r.Flags.Has(MetricsOff) {
			f.addTask(r, of.Name, name)
		}
	}})
}

// namespace returns the figures of a namespace, which may share the memory of a row.
func (f *Figures) namespace(name string, hasTaskMetrics func(string) bool) *NamespaceFigures {
	of := f.namespaces[name]
	if of == nil {
		name = strings.Clone(name)
		of = &NamespaceFigures{Name: name, hasTaskMetrics: hasTaskMetrics(name)}
		f.namespaces[name] = of
	}

	return of
}

// addTask adds a task with metrics of its own.
func (f *Figures) addTask(r *Row, namespace, name string) {
	if f.own++; f.last != nil && f.last.compare(namespace, name) < 0 {
		return
	}

	f.chosen = append(f.chosen, TaskFigures{
		Namespace: namespace, Task: strings.Clone(name),
		LastSuccess: r.LastSuccess, LastEnd: r.LastEnd, Duration: r.Duration, Failures: r.Failures, isKnown: r.Flags.Has(History),
	})
	if len(f.chosen) > 2*f.limits.Tasks { // so that sorting costs little for each task
		sortTasks(f.chosen)
		last := f.chosen[f.limits.Tasks]
		f.last, f.chosen = &last, slices.Delete(f.chosen, f.limits.Tasks, len(f.chosen))
	}
}

// sortTasks sorts tasks by namespace and name.
func sortTasks(list []TaskFigures) {
	slices.SortFunc(list, func(a, b TaskFigures) int { return a.compare(b.Namespace, b.Task) })
}

// Tasks returns the figures of the tasks with metrics of their own, in their order. A task of which it is not known yet how its runs
// have ended is left out: wrong values would raise false alarms, and those of another task in its place would disappear again.
func (f *Figures) Tasks() []TaskFigures {
	list := slices.Clone(f.chosen) // several scrapes may read the same figures
	sortTasks(list)
	list = list[:min(len(list), f.limits.Tasks)]

	return slices.DeleteFunc(list, func(t TaskFigures) bool { return !t.isKnown })
}

// Omitted returns the number of tasks with metrics of their own beyond the limit.
func (f *Figures) Omitted() int { return max(0, f.own-f.limits.Tasks) }

// Namespaces returns the figures of each namespace, in the order of their names. Nodes with the same namespaces choose the same ones if
// there are more than the limit.
func (f *Figures) Namespaces() []NamespaceFigures {
	names := slices.Sorted(maps.Keys(f.namespaces))
	list := make([]NamespaceFigures, 0, min(len(names), f.limits.Namespaces+1))

	for i, name := range names {
		switch of := f.namespaces[name]; {
		case i < f.limits.Namespaces:
			list = append(list, *of)
		case i == f.limits.Namespaces:
			list = append(list, *of)
			list[i].Name = OtherNamespaces
		default:
			list[f.limits.Namespaces].add(of)
		}
	}

	return list
}

// add adds the figures of another namespace.
func (n *NamespaceFigures) add(m *NamespaceFigures) {
	n.DeadRuns += m.DeadRuns
	for state, tasks := range m.Tasks {
		n.Tasks[state] += tasks
	}
}
