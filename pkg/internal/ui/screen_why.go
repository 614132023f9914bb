package ui

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// whyScreen explains why a task ran, did not run, or will run, as "carillon why" does.
func whyScreen() Screen {
	return Screen{
		Name: "why", Pattern: "/ui/why/{ns}/{name}", Nav: "tasks",
		Title:   func(v *View) string { return "Why " + v.Value("name") },
		Load:    loadWhy,
		Command: whyCommand,
		Parts:   []Part{{Name: "answers"}},
		Every:   5 * time.Second, // each rendering reads the history of the task from etcd
	}
}

// whyPage is what the screen shows.
type whyPage struct {
	Namespace, Name string
	At, From, To    string // the question
	Answers         []whyAnswer
}

// whyAnswer is an answer: the sentence, what the timetable says, and what was decided.
type whyAnswer struct {
	task.Answer
	Look      string // whose looks the verdict has
	Word      string // the verdict
	Means     string
	Timetable []setting
	Decision  []setting
	// Earlier and Later are the ticks before and after; zero if they are not known.
	Earlier, Later task.Time
}

func loadWhy(ctx context.Context, r *Request) (any, error) {
	p := whyPage{
		Namespace: r.Value("ns"), Name: r.Value("name"),
		At: r.Query.Get("at"), From: r.Query.Get("from"), To: r.Query.Get("to"),
	}
	q, err := whyQuestion(r, p)
	if err != nil {
		return p, err
	}

	a, err := r.API.Tasks.Why(ctx, p.Namespace, p.Name, q)
	switch {
	case err != nil && problemOf(err).Field != "": // the time cannot be read: the form shows it
		return p, err
	case err != nil:
		return nil, err
	}

	p.Answers = []whyAnswer{whyAnswerOf(a)}
	for _, also := range a.Also {
		p.Answers = append(p.Answers, whyAnswerOf(also))
	}

	// Links lead from tick to tick. Without a time, the first answer is about the latest tick, and the second about the
	// next one.
	first, last := &p.Answers[0], &p.Answers[len(p.Answers)-1]
	first.Earlier, last.Later = neighbors(ctx, r, first.Answer, false), neighbors(ctx, r, last.Answer, true)

	return p, nil
}

// whyQuestion returns the question of a page.
func whyQuestion(r *Request, p whyPage) (client.WhyQuestion, error) {
	q := client.WhyQuestion{At: p.At, From: p.From, To: p.To, Timezone: r.Query.Get(zoneParam)}
	switch {
	case q.At != "" && q.From+q.To != "":
		return q, task.Invalid(task.CodeBadValue, "at", "cannot be combined with a range; clear one of them")
	case q.To != "" && q.From == "":
		return q, task.Invalid(task.CodeRequired, "from", "is required with an end of the range")
	}

	return q, nil
}

// onTimetable are the lines of evidence about what should happen. The others are about what was decided.
var onTimetable = []string{"Schedule", "Version", "Due", "Frozen"}

// whyAnswerOf returns an answer as the page shows it.
func whyAnswerOf(a task.Answer) whyAnswer {
	w := whyAnswer{Answer: a, Word: plainState(string(a.Verdict)), Look: verdictLook(a.Verdict)}
	for _, m := range task.Verdicts() {
		if m.Verdict == a.Verdict {
			w.Means = m.Means
		}
	}

	var timetable, decision settings
	zone, err := schedule.Location(a.Asked.Timezone)
	if err != nil {
		zone = time.UTC
	}
	tick := func(name string, t *task.Tick) {
		if t != nil {
			timetable.add(name, strings.TrimSpace(t.Time.In(zone).Format("Mon 2 Jan 2006 15:04:05 MST")+" "+t.Note))
		}
	}
	tick("Tick", a.Tick)
	tick("Tick before", a.Before)
	tick("Tick after", a.After)

	for _, l := range a.Lines {
		if slices.Contains(onTimetable, l.What) || l.What == "Paused" && a.Pause != nil {
			timetable.add(l.What, l.Says)
		} else {
			decision.add(l.What, l.Says)
		}
	}
	if len(a.Lines) == 0 {
		for _, u := range a.Unknown {
			decision.add("Not on record", u)
		}
	}
	w.Timetable, w.Decision = timetable, decision

	return w
}

// verdictLook returns whose looks a verdict has.
func verdictLook(v task.Verdict) string {
	switch v {
	case task.VerdictFailed, task.VerdictTimedOut, task.VerdictNoNode, task.VerdictUnreadable, task.VerdictForbidden:
		return string(task.Failed)
	case task.VerdictSucceeded:
		return string(task.Succeeded)
	case task.VerdictWillRun, task.VerdictWaiting, task.VerdictUndecided:
		return string(task.Queued)
	case task.VerdictPaused:
		return string(task.Paused)
	case task.VerdictOvertaken, task.VerdictInGap:
		return string(task.Skipped)
	case task.VerdictNoTick, task.VerdictOutside, task.VerdictEnded, task.VerdictNoTask, task.VerdictRange, task.VerdictForgotten:
		return "ended"
	}

	return string(v) // of a run, or frozen
}

// neighbors returns the tick before or after that of an answer; zero if it is not known. The API says it for a time that is
// not a tick.
func neighbors(ctx context.Context, r *Request, a task.Answer, later bool) task.Time {
	near := func(a task.Answer) *task.Tick {
		if later {
			return a.After
		}
		return a.Before
	}

	if a.Tick == nil {
		if t := near(a); t != nil {
			return t.Time
		}
		return task.Time{}
	}

	beside := a.Tick.Time.Add(-time.Second)
	if later {
		beside = a.Tick.Time.Add(time.Second)
	}
	answer, err := r.API.Tasks.Why(ctx, r.Value("ns"), r.Value("name"), client.WhyQuestion{At: beside.UTC().Format(time.RFC3339Nano), Timezone: r.Query.Get(zoneParam)})
	if err != nil {
		return task.Time{} // only a link is missing
	}
	if answer.Tick != nil && !answer.Tick.Time.Equal(a.Tick.Time.Time) {
		return answer.Tick.Time
	}
	if t := near(answer); t != nil {
		return t.Time
	}

	return task.Time{}
}

// Instant returns a tick as a question names it.
func (whyPage) Instant(t task.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// whyCommand returns the command line of the question.
func whyCommand(v *View) []string {
	words := []string{"carillon", "why", v.Value("name"), "-n", v.Value("ns")}
	for _, name := range []string{"at", "from", "to"} {
		if value := v.Query.Get(name); value != "" {
			words = append(words, "--"+name, value)
		}
	}
	if zone := v.Query.Get(zoneParam); zone != "" {
		words = append(words, "--timezone", zone)
	}

	return words
}
