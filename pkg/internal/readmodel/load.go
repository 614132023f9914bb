package readmodel

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// minuteMS is a minute in milliseconds.
const minuteMS = 60_000

// MaxLoadMinutes is how many minutes a load may have.
const MaxLoadMinutes = 24 * 60

// maxMakers is how many makers of a minute a node names. Only a few are shown, but other nodes may have tasks of the
// same schedules.
const maxMakers = 100

// makerNames is how many tasks of a maker are named.
const makerNames = 3

// LoadRange says which part of the load a query asks for.
type LoadRange struct {
	From    int64 `json:"from"`    // the beginning of the first minute, in Unix milliseconds; not after the query's Now
	Minutes int   `json:"minutes"` // how many; at most MaxLoadMinutes
	// Makers are minutes, by their number from 0, whose makers and seconds are wanted.
	Makers []int `json:"makers,omitempty"`
}

// until returns the end of the last minute.
func (l *LoadRange) until() int64 { return l.From + int64(l.Minutes)*minuteMS }

// Load is how many runs ticks will cause. Limits such as max_runs, overlap policies and freezes are not considered: a
// Load is what falls due.
type Load struct {
	Runs []float64 `json:"runs" doc:"The number of runs in each minute. A part of a run is what falls into a minute on average."`
	// Tasks is how many tasks have a tick in this time.
	Tasks int `json:"tasks" doc:"The number of tasks with a tick in this time."`
	// Jittered is how many of Tasks have jitter. Their runs are spread evenly over the time in which they may be due.
	Jittered int `json:"jittered" doc:"How many of these tasks have jitter."`
	// Inexact is how many of Tasks combine @every with other expressions. The runs of @every are spread evenly over the
	// whole time, because a row does not contain when they begin.
	Inexact int `json:"inexact" doc:"How many of these tasks combine @every with other expressions."`
	// AfterCompletion is how many tasks have a tick that follows from the end of a run, and are not counted: it is not
	// known when their runs end.
	AfterCompletion int `json:"after_completion" doc:"The number of tasks whose ticks follow from the ends of runs."`
	// Makers are what makes the runs of the minutes that LoadRange.Makers names, in the same order.
	Makers [][]Maker `json:"makers,omitempty" doc:"For each minute that was asked for, the schedules with the most runs."`
	// Seconds are the runs of each second of the minutes that LoadRange.Makers names, in the same order.
	Seconds [][]float64 `json:"seconds,omitempty" doc:"For each minute that was asked for, the number of runs in each second."`
}

// minuteSeconds is how many seconds a minute has.
const minuteSeconds = 60

// Maker is all tasks with the same schedule, with what they contribute to a minute.
type Maker struct {
	MakerKey
	Tasks int      `json:"tasks" doc:"The number of tasks that may have a run in this minute."`
	Runs  float64  `json:"runs" doc:"The number of their runs in this minute."`
	Names []string `json:"names" doc:"The first few tasks in the order of their names."`
}

// MakerKey identifies a Maker.
type MakerKey struct {
	Schedule string `json:"schedule" doc:"The expressions of the schedule."` // see schedule.Schedule.Text
	Timezone string `json:"timezone" doc:"The time zone of the schedule."`
	JitterMS int64  `json:"jitter_ms,omitempty" doc:"The jitter of these tasks, in milliseconds."`
}

// LoadScan collects the load of rows. It counts tasks with the same schedule and next tick together, so a million tasks
// need little more than a look-up each.
type LoadScan struct {
	query  *Query
	groups map[loadGroup]*groupTasks
	load   Load
	makers []map[MakerKey]*Maker // by place in LoadRange.Makers
	wanted map[int]int           // the place in LoadRange.Makers of a minute
}

// loadGroup are tasks that are due at the same times, to the minute.
type loadGroup struct {
	schedule schedule.Schedule // without an anchor: equal for tasks that are alike
	next     int64
}

// groupTasks are the tasks of a group.
type groupTasks struct {
	count int
	named bool     // the names are wanted, because the group has runs in a minute whose makers are
	names []string // of the first makerNames tasks
}

// NewLoadScan returns a LoadScan without rows, for a query with a Load.
func NewLoadScan(q *Query) *LoadScan {
	s := &LoadScan{query: q, groups: map[loadGroup]*groupTasks{}, wanted: map[int]int{}}
	s.load.Runs = make([]float64, q.Load.Minutes)
	s.makers = make([]map[MakerKey]*Maker, len(q.Load.Makers))
	if len(q.Load.Makers) > 0 {
		s.load.Seconds = newSeconds(len(q.Load.Makers))
	}

	for i, minute := range q.Load.Makers {
		s.wanted[minute] = i
		s.makers[i] = map[MakerKey]*Maker{}
	}

	return s
}

// newSeconds returns the seconds of minutes without runs.
func newSeconds(minutes int) [][]float64 {
	list := make([][]float64, minutes)
	for i := range list {
		list[i] = make([]float64, minuteSeconds)
	}

	return list
}

// Scan adds the rows of an index that match the query, and counts them.
func (s *LoadScan) Scan(x *Index) (c Counts) {
	x.each(s.query.Now, false, func(r *Row, _ *Details, a *task.Alerts) {
		if s.query.Filter.matches(r, a, s.query.Now) {
			c.add(r, s.query.Now)
			s.add(r)
		}
	})

	return c
}

// add adds a row.
func (s *LoadScan) add(r *Row) {
	if r.Schedule == nil || r.Next == 0 {
		return
	}

	if _, ok := r.Schedule.AfterCompletion(); ok {
		s.load.AfterCompletion++
		return
	}

	until := s.query.Load.until()
	if r.Next >= until {
		return
	}

	// Tasks with the same @every have their ticks in different seconds, so these are counted task by task.
	if r.Schedule.IsCounted() {
		s.addSeconds(r.Schedule, r.Next, 1)
	}

	key := loadGroup{*r.Schedule, r.Schedule.SamePerMinute(r.Next, until)}
	if r.Schedule.OnlyAt() { // it is not shared, so a group would cost more than it saves
		s.addGroup(key, &groupTasks{count: 1, names: []string{r.Name}})
		return
	}

	g := s.groups[key]
	if g == nil {
		g = &groupTasks{named: s.makesWanted(key)}
		s.groups[key] = g
	}

	g.count++
	if g.named && (len(g.names) < makerNames || r.Name < g.names[makerNames-1]) {
		g.names = firstNames(append(g.names, r.Name))
	}
}

// firstNames returns the first makerNames of names, which it may reorder.
func firstNames(names []string) []string {
	slices.Sort(names)
	return names[:min(len(names), makerNames)]
}

// Load returns the load of all rows. s must not be used afterwards.
func (s *LoadScan) Load() Load {
	for key, g := range s.groups {
		s.addGroup(key, g)
	}

	roundRuns(s.load.Runs)
	for _, seconds := range s.load.Seconds {
		roundRuns(seconds)
	}

	for _, makers := range s.makers {
		list := make([]Maker, 0, len(makers))
		for _, m := range makers {
			list = append(list, *m)
		}

		s.load.Makers = append(s.load.Makers, firstMakers(list, maxMakers))
	}

	return s.load
}

// roundRuns rounds numbers of runs, so that they do not depend on the order in which they were added up.
func roundRuns(runs []float64) {
	const grain = 1e6
	for i, r := range runs {
		runs[i] = math.Round(r*grain) / grain
	}
}

// addGroup adds the runs of a group.
func (s *LoadScan) addGroup(key loadGroup, g *groupTasks) {
	sched := &key.schedule
	var counted map[int]bool // minutes to whose makers the group was added
	due := false

	exact := s.eachRun(key, func(minute int, runs float64) {
		runs *= float64(g.count)
		s.load.Runs[minute] += runs
		due = true

		if at, ok := s.wanted[minute]; ok {
			s.addMaker(at, sched, g, runs, !counted[minute])
			if counted == nil {
				counted = map[int]bool{}
			}
			counted[minute] = true
		}
	})

	if !due {
		return
	}

	if !sched.IsCounted() {
		s.addSeconds(sched, key.next, g.count)
	}

	s.load.Tasks += g.count
	if sched.Jitter() > 0 {
		s.load.Jittered += g.count
	}
	if !exact {
		s.load.Inexact += g.count
	}
}

// makesWanted reports whether a group may have runs in a minute whose makers are wanted. It looks only at these minutes: to
// visit all ticks of a day takes longer than to scan the tasks.
func (s *LoadScan) makesWanted(key loadGroup) bool {
	q := s.query.Load

	return slices.ContainsFunc(q.Makers, func(minute int) bool {
		from := q.From + int64(minute)*minuteMS
		due, known := key.schedule.MayFallDue(key.next, from, from+minuteMS)

		return due || !known
	})
}

// eachRun calls add for each minute in which a task of the group has runs. It returns whether all times are exact, apart
// from jitter.
func (s *LoadScan) eachRun(key loadGroup, add func(minute int, runs float64)) (exact bool) {
	q := s.query.Load

	return key.schedule.PerMinute(key.next, q.until(), func(at, ticks, width int64) {
		if width == 0 {
			// A tick before the first minute is undecided because something is late. It is not to come.
			if at >= q.From {
				add(int((at-q.From)/minuteMS), float64(ticks))
			}
			return
		}

		// What is not decided yet falls due later than now.
		q.spread(max(at, s.query.Now), at+width, float64(ticks), add)
	})
}

// addSeconds adds the runs of tasks with the same next tick to the seconds of the minutes that are wanted.
func (s *LoadScan) addSeconds(sched *schedule.Schedule, next int64, tasks int) {
	q := s.query.Load

	for i, minute := range q.Makers {
		from := q.From + int64(minute)*minuteMS
		seconds := s.load.Seconds[i]

		sched.Within(next, from, from+minuteMS, func(at, ticks, width int64) {
			runs := float64(ticks) * float64(tasks)
			if width == 0 {
				seconds[(at-from)/1000] += runs
				return
			}

			// What is not decided yet falls due later than now.
			begin, end := max(at, s.query.Now), at+width
			if begin >= end {
				return
			}
			share := runs / float64(end-begin)
			for second := range seconds {
				low := max(begin, from+int64(second)*1000)
				high := min(end, from+int64(second+1)*1000)
				seconds[second] += share * float64(max(high-low, 0))
			}
		})
	}
}

// spread calls add for each minute with its part of runs that are due evenly in [from, to).
func (l *LoadRange) spread(from, to int64, runs float64, add func(minute int, runs float64)) {
	if from >= to {
		return
	}

	share := runs / float64(to-from)
	for from < min(to, l.until()) {
		minute := (from - l.From) / minuteMS
		end := min(l.From+(minute+1)*minuteMS, to)
		add(int(minute), share*float64(end-from))
		from = end
	}
}

// addMaker adds runs of a group to a minute whose makers are wanted. first is set for the first runs of the group in
// this minute.
func (s *LoadScan) addMaker(at int, sched *schedule.Schedule, g *groupTasks, runs float64, first bool) {
	key := MakerKey{sched.Text(), sched.Location().String(), sched.Jitter().Milliseconds()}
	m := s.makers[at][key]
	if m == nil {
		m = &Maker{MakerKey: key}
		s.makers[at][key] = m
	}

	m.Runs += runs
	if first {
		m.Tasks += g.count
		m.Names = firstNames(append(m.Names, g.names...))
	}
}

// firstMakers returns at most limit makers, those with the most runs first.
func firstMakers(list []Maker, limit int) []Maker {
	slices.SortFunc(list, func(a, b Maker) int {
		return cmp.Or(cmp.Compare(b.Runs, a.Runs), cmp.Compare(a.Schedule, b.Schedule), cmp.Compare(a.Timezone, b.Timezone), cmp.Compare(a.JitterMS, b.JitterMS))
	})

	return list[:min(len(list), limit)]
}

// mergeLoads adds up loads.
func mergeLoads(q *LoadRange, loads []*Load) *Load {
	sum := &Load{Runs: make([]float64, q.Minutes), Makers: make([][]Maker, len(q.Makers)), Seconds: newSeconds(len(q.Makers))}

	for _, l := range loads {
		for minute, runs := range l.Runs[:min(len(l.Runs), q.Minutes)] {
			sum.Runs[minute] += runs
		}

		sum.Tasks, sum.Jittered, sum.Inexact = sum.Tasks+l.Tasks, sum.Jittered+l.Jittered, sum.Inexact+l.Inexact
		sum.AfterCompletion += l.AfterCompletion

		for at := range min(len(l.Makers), len(q.Makers)) {
			sum.Makers[at] = mergeMakers(sum.Makers[at], l.Makers[at])
		}
		for at := range min(len(l.Seconds), len(q.Makers)) {
			for second, runs := range l.Seconds[at][:min(len(l.Seconds[at]), minuteSeconds)] {
				sum.Seconds[at][second] += runs
			}
		}
	}

	roundRuns(sum.Runs)
	for _, seconds := range sum.Seconds {
		roundRuns(seconds)
	}
	for at, makers := range sum.Makers {
		sum.Makers[at] = firstMakers(makers, maxMakers)
	}

	return sum
}

// mergeMakers adds up makers with the same key.
func mergeMakers(a, b []Maker) []Maker {
	all := make(map[MakerKey]Maker, len(a))
	for _, m := range slices.Concat(a, b) {
		sum := all[m.MakerKey]
		sum.MakerKey = m.MakerKey
		sum.Tasks, sum.Runs = sum.Tasks+m.Tasks, sum.Runs+m.Runs
		sum.Names = firstNames(slices.Concat(sum.Names, m.Names))
		all[m.MakerKey] = sum
	}

	return slices.Collect(maps.Values(all))
}

// PeakMinutes returns the minutes with the most runs, at most limit of them, those with the most runs first. A minute
// without runs is none. Of a sequence of equal minutes only the first is returned, so that a load that is the same all
// day has one peak.
func (l *Load) PeakMinutes(limit int) []int {
	var list []int
	for minute, runs := range l.Runs {
		if runs > 0 && (minute == 0 || runs != l.Runs[minute-1]) {
			list = append(list, minute)
		}
	}

	slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(l.Runs[b], l.Runs[a]) })

	return list[:min(len(list), limit)]
}
