package cronlog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Job is what a shadow task has recorded.
type Job struct {
	Task          string
	User, Command string // Command as Normalize returns it
	Hosts         []string
	Since         time.Time // from when on each tick is on record
	Ticks         []Tick

	// Runs is on how many of Hosts a tick runs; 0 means all. Cron starts the command on each of them.
	Runs int

	// Inexact means that cron and the task start at different times by design. Lines with such a job are not compared: the job
	// only says whose starts they are.
	Inexact bool
}

// Tick is a tick of a task.
type Tick struct {
	Time    time.Time
	Outcome string // "" if the tick was recorded as that of a shadow; otherwise what became of it
}

// Line is what the log and the tasks say about a command of a user on a host.
type Line struct {
	Host    string
	User    string
	Command string
	Tasks   []string // none: no task has this command

	// Both is the number of minutes in which cron started the command and a task recorded a tick.
	Both       int
	OnlyCron   []time.Time
	OnlyShadow []time.Time
	Outcomes   []Tick // ticks in OnlyShadow or Both with an outcome
}

// Same reports whether cron and the tasks agree.
func (l *Line) Same() bool { return len(l.OnlyCron)+len(l.OnlyShadow)+len(l.Outcomes) == 0 }

// Difference identifies the differences of a line: lines with the same text differ at the same times. It is "" if there are none.
func (l *Line) Difference() string {
	if l.Same() {
		return ""
	}
	return fmt.Sprint(l.OnlyCron, l.OnlyShadow, l.Outcomes)
}

// Limits is the time to compare. Zero times are not limits.
type Limits struct{ Since, Until time.Time }

// Compare compares the starts in a log with the ticks of jobs, for each host, user and command. It compares each host only from
// its first line to its last one, because nothing is known of other times: a minute in which the log begins or ends counts only
// if both sides have it. Limits replace these two. silent are the hosts of the jobs that the log does not have.
func Compare(log Log, jobs []Job, limits Limits) (lines []Line, silent []string) {
	type key struct{ host, user, command string }
	all := map[key]*comparison{}

	find := func(host, user, command string) *comparison {
		k := key{host, user, command}
		if all[k] == nil {
			all[k] = &comparison{Line: Line{Host: host, User: user, Command: command}, limits: limits, span: log.Spans[host]}
		}
		return all[k]
	}

	// Logs of a host that overlap contain the same start more than once.
	seen := map[Start]bool{}
	for _, s := range log.Starts {
		s.Time = s.Time.UTC() // equal times are equal keys
		if s.PID != "" && seen[s] {
			continue
		}
		seen[s] = true

		c := find(s.Host, s.User, s.Command)
		c.starts = append(c.starts, s.Time)
	}

	for _, j := range jobs {
		j.limitRuns()
		for _, h := range j.Hosts {
			if _, known := log.Spans[h]; known {
				find(h, j.User, j.Command).addJob(j)
			} else if !j.Inexact && !slices.Contains(silent, h) {
				silent = append(silent, h)
			}
		}
	}

	for _, c := range all {
		if c.inexact {
			continue
		}
		if c.match(); c.Both > 0 || !c.Same() || len(c.Tasks) > 0 {
			lines = append(lines, c.Line)
		}
	}

	slices.SortFunc(lines, func(a, b Line) int {
		return cmp.Or(slices.Compare(a.Tasks, b.Tasks), strings.Compare(a.User, b.User), strings.Compare(a.Command, b.Command),
			strings.Compare(a.Difference(), b.Difference()), strings.Compare(a.Host, b.Host))
	})
	slices.Sort(silent)

	return lines, silent
}

// comparison is a Line in progress.
type comparison struct {
	Line
	limits Limits
	span   Span
	since  time.Time // when the last of the tasks has begun to record its ticks

	inexact bool // a task of the line starts at other times than cron
	starts  []time.Time
	ticks   []Tick
}

// limitRuns gives the ticks of a job an outcome if they would run on fewer hosts than those on which cron starts the command. One
// tick would otherwise count for each host.
func (j *Job) limitRuns() {
	if j.Runs == 0 || j.Runs >= len(j.Hosts) {
		return
	}

	outcome := fmt.Sprintf("%d runs for %d hosts", j.Runs, len(j.Hosts))
	if j.Runs == 1 {
		outcome = fmt.Sprintf("1 run for %d hosts", len(j.Hosts))
	}

	j.Ticks = slices.Clone(j.Ticks)
	for i := range j.Ticks {
		j.Ticks[i].Outcome = cmp.Or(j.Ticks[i].Outcome, outcome)
	}
}

// addJob adds a task with the command.
func (c *comparison) addJob(j Job) {
	c.inexact = c.inexact || j.Inexact
	c.Tasks = append(c.Tasks, j.Task)
	c.ticks = append(c.ticks, j.Ticks...)
	if j.Since.After(c.since) {
		c.since = j.Since
	}
}

// minute is the beginning of a minute, in seconds since 1970.
type minute int64

func minuteOf(t time.Time) minute { return minute(t.Unix() / 60 * 60) }

// match pairs starts and ticks of the same minute.
func (c *comparison) match() {
	// from and to are the first and the last minute to compare. edges are those of which the log may have only a part.
	from, to := minuteOf(c.span.First), minuteOf(c.span.Last)
	edges := []minute{from, to}

	if !c.limits.Since.IsZero() {
		from = minuteOf(c.limits.Since.Add(time.Minute - 1))
		edges[0] = from - 60
	}
	if !c.limits.Until.IsZero() {
		to = minuteOf(c.limits.Until.Add(-1))
		edges[1] = to + 60
	}
	if !c.since.IsZero() {
		from = max(from, minuteOf(c.since.Add(time.Minute-1)))
	}

	within := func(m minute) bool { return from <= m && m <= to }
	started, ticked := map[minute]int{}, map[minute]int{}

	for _, s := range c.starts {
		if m := minuteOf(s); within(m) {
			started[m]++
		}
	}

	for _, t := range c.ticks {
		if m := minuteOf(t.Time); within(m) {
			ticked[m]++
			if t.Outcome != "" {
				c.Outcomes = append(c.Outcomes, t)
			}
		}
	}

	for m, n := range started {
		c.Both += min(n, ticked[m])
		if !slices.Contains(edges, m) {
			c.OnlyCron = appendTimes(c.OnlyCron, m, n-ticked[m])
		}
	}

	for m, n := range ticked {
		if !slices.Contains(edges, m) {
			c.OnlyShadow = appendTimes(c.OnlyShadow, m, n-started[m])
		}
	}

	slices.SortFunc(c.OnlyCron, time.Time.Compare)
	slices.SortFunc(c.OnlyShadow, time.Time.Compare)
	slices.SortFunc(c.Outcomes, func(a, b Tick) int { return a.Time.Compare(b.Time) })
	slices.Sort(c.Tasks)
}

// appendTimes appends a minute n times.
func appendTimes(list []time.Time, m minute, n int) []time.Time {
	for ; n > 0; n-- {
		list = append(list, time.Unix(int64(m), 0).UTC())
	}
	return list
}
