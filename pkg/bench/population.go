package bench

import (
	"fmt"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// population is many tasks such as people have, of some hundred kinds, that have
// no tick for quiet after the origin; the first few of them instead tick each
// second from fireAt on, spread over it.
type population struct {
	tasks, firing  int
	origin, fireAt time.Time
	rules          []rule
	keep           int
}

// rule is when tasks of one kind tick.
type rule struct{ expr, zone string }

// quietAfterOrigin is how long after its origin a population does nothing: longer than it
// takes to weigh a scheduler.
const quietAfterOrigin = 2 * time.Hour

// newPopulation leaves out what would tick too soon.
func newPopulation(tasks, firing, keep int, origin time.Time) (population, error) {
	p := population{tasks: tasks, firing: firing, keep: keep, origin: origin, fireAt: origin.Add(quietAfterOrigin / 2)}
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

// populationRules are the reports, backups and clean-ups of an ordinary fleet.
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

// makeTask makes the spec and the entry of task i.
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
		addDetails(&spec, i)
	}

	created := task.At(p.origin)
	t := task.Task{Spec: spec, UID: task.NewUID(), Generation: 1, CreatedAt: created, UpdatedAt: created, UpdatedBy: "bench"}

	return t, task.NewEntry(t, created, task.At(anchor))
}

// addDetails gives task i a name and something to do; some have more to say than others.
func addDetails(s *task.Spec, i int) {
	what := []string{"report", "backup", "sync-orders", "cleanup", "reindex"}[i%5]
	s.Name = fmt.Sprintf("%s-%07d", what, i)
	s.Labels = map[string]string{"team": fmt.Sprintf("team-%d", i%40)}

	p := &task.Process{Command: []string{"/usr/local/bin/" + what, "--customer", fmt.Sprintf("c%07d", i)}}
	if i%4 == 0 {
		p = &task.Process{Shell: fmt.Sprintf("/usr/local/bin/%s --customer c%07d | zstd > /var/backups/%s-%07d.zst", what, i, what, i)}
	}

	if i%3 == 0 {
		p.Env = map[string]string{"BUCKET": fmt.Sprintf("s3://%s-%d", what, i%100), "LANG": "C.UTF-8"}
	}

	s.Action = task.Action{Process: p}
	if i%2 == 0 {
		s.Timeout = task.Duration(10 * time.Minute)
	}

	if i%10 == 0 {
		s.Retry.Attempts = 3
	}
}
