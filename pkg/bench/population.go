package bench

import (
	"fmt"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// population is a set of many tasks as users have them, of some hundred kinds. They have no tick for
// quietAfterOrigin after the origin. Instead, the first few of them have a tick each second from fireAt on, spread
// over the second.
type population struct {
	tasks, firing  int // how many tasks there are, and how many of them fire each second
	origin, fireAt time.Time
	rules          []rule
	keep           int
	apps           int // how many values the label app has, and with it how many sets of labels there are
}

// usualApps is how many values the label app has, unless the benchmark says otherwise.
const usualApps = 1000

// rule is the schedule of tasks of one kind.
type rule struct{ expr, zone string }

// quietAfterOrigin is how long after its origin a population has no ticks: longer than it takes to measure a
// scheduler's memory.
const quietAfterOrigin = 2 * time.Hour

// newPopulation returns a population without the rules that would have a tick too early.
func newPopulation(tasks, firing, keep int, origin time.Time) (population, error) {
	p := population{tasks: tasks, firing: firing, keep: keep, origin: origin, fireAt: origin.Add(quietAfterOrigin / 2), apps: usualApps}
	for _, r := range populationRules() {
		s, err := schedule.Parse(task.Timing{Schedule: task.Schedules{r.expr}, Timezone: r.zone}, origin)
		if err != nil {
			return p, fmt.Errorf("%s: %w", r.expr, err)
		}

		if next, ok := s.Next(origin); ok && next.After(origin.Add(quietAfterOrigin)) {
			p.rules = append(p.rules, r)
		}
	}

	return p, nil
}

// populationRules lists the schedules of reports, backups and cleanups, as many clusters have them.
func populationRules() (all []rule) {
	add := func(zone, format string, args ...any) {
		all = append(all, rule{fmt.Sprintf(format, args...), zone})
	}

	for _, zone := range []string{"UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo"} {
		for hour := range 24 {
			for _, minute := range []int{0, 15, 30, 47} {
				add(zone, "%d %d * * *", minute, hour)
			}

			add(zone, "5 %d * * 1-5", hour)
			add(zone, "10 %d * * 0", hour)
			add(zone, "20 %d 1 * *", hour)
			add(zone, "0 %d 1 1,4,7,10 *", hour)
		}
	}

	for hours := 3; hours <= 24; hours++ {
		add("UTC", "@every %dh", hours)
	}

	return all
}

// makeTask returns the spec and the entry of task i.
func (p population) makeTask(i int) (task.Task, task.Entry) {
	spec := task.Defaults()
	spec.Namespace, spec.History.Keep = benchNamespace, p.keep
	anchor := p.origin
	if i < p.firing {
		spec.Name, spec.Schedule, spec.Overlap, spec.Action = fmt.Sprintf("heartbeat-%07d", i), task.Schedules{"@every 1s"}, task.OverlapAllow, noopAction
		anchor = p.fireAt.Add(time.Duration(i*1000/p.firing)*time.Millisecond - time.Second)
	} else {
		r := p.rules[i%len(p.rules)]
		spec.Schedule, spec.Timezone = task.Schedules{r.expr}, r.zone
		p.addDetails(&spec, i)
	}

	created := task.At(p.origin)
	t := task.Task{Spec: spec, UID: task.NewUID(), Generation: 1, CreatedAt: created, UpdatedAt: created, UpdatedBy: "bench"}

	return t, task.NewEntry(t, created, task.At(anchor))
}

// addDetails gives task i a name and an action. The sizes of the tasks differ.
func (p population) addDetails(s *task.Spec, i int) {
	what := []string{"report", "backup", "sync-orders", "cleanup", "reindex"}[i%5]
	s.Name = fmt.Sprintf("%s-%07d", what, i)
	s.Labels = map[string]string{"team": fmt.Sprintf("team-%d", i%40), "app": fmt.Sprintf("app-%d", i%p.apps), "env": []string{"prod", "staging"}[i%2]}

	process := &task.Process{Command: []string{"/usr/local/bin/" + what, "--customer", fmt.Sprintf("c%07d", i)}}
	if i%4 == 0 {
		process = &task.Process{Shell: fmt.Sprintf("/usr/local/bin/%s --customer c%07d | zstd > /var/backups/%s-%07d.zst", what, i, what, i)}
	}

	if i%3 == 0 {
		process.Env = map[string]string{"BUCKET": fmt.Sprintf("s3://%s-%d", what, i%100), "LANG": "C.UTF-8"}
	}

	s.Action = task.Action{Process: process}
	if i%2 == 0 {
		s.Timeout = task.Duration(10 * time.Minute)
	}

	if i%10 == 0 {
		s.Retry.Attempts = 3
	}
}
