package importer

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Form is the form of a crontab. A system crontab has a column with the user.
type Form struct {
	System bool
	User   string // the owner; "" for a system crontab
}

// FormOf returns the form of a crontab from its path, or false if the path does not determine it.
func FormOf(file string) (Form, bool) {
	dir, base := path.Base(path.Dir(path.Clean(file))), path.Base(file)
	switch {
	case dir == "cron.d", dir == "etc" && base == "crontab":
		return Form{System: true}, true
	case dir == "crontabs", dir == "tabs", dir == "cron" && path.Base(path.Dir(path.Dir(path.Clean(file)))) == "spool":
		return Form{User: base}, true
	}

	return Form{}, false
}

// originName returns the name of a crontab for names and labels.
func (f Form) originName(file string) string {
	switch base := path.Base(file); {
	case !f.System && f.User != "":
		return f.User
	case file == "-" || base == "stdin":
		return "crontab"
	default:
		return base
	}
}

// Crontab reads a crontab as Vixie's cron and its descendants do. It refuses lines that it cannot convert, and
// continues with the others. Lines with the same user, command and environment become one task with several
// schedules.
//
// The tasks behave as under cron: missed ticks do not run, runs may overlap, and the command is a line for the
// shell, which runs as its user in that user's home directory.
func Crontab(file, text string, form Form, o Options) Result {
	r := &crontabReader{Options: o, file: file, form: form, origin: clipSlug(form.originName(file), 40), names: map[string]bool{}}
	r.vars.zone = o.Timezone

	if path.Base(file) == "anacrontab" {
		r.result.addRefusal(Place{File: file}, "an anacrontab is not a crontab: its jobs have a period in days and no time; use tasks with @daily, or with an hour of your choice")
		return r.result
	}

	n := 0
	for line := range strings.Lines(text) {
		n++
		r.readLine(Place{file, n}, strings.TrimRight(line, "\r\n"))
	}

	for _, j := range r.jobs {
		r.result.addJob(*j)
	}

	return r.result
}

// crontabReader holds the state while a crontab is read.
type crontabReader struct {
	Options
	file    string
	form    Form
	origin  string
	vars    settings // the settings in force at the current line
	comment []string // comment lines directly above the current line
	jobs    []*Job
	keys    []string        // what identifies the action of each job, by index of jobs
	names   map[string]bool // those in use
	result  Result
}

// readLine reads one line: a comment, a setting, or a job.
func (r *crontabReader) readLine(at Place, line string) {
	line = strings.TrimLeft(line, " \t")
	switch {
	case line == "":
		r.comment = nil
	case line[0] == '#':
		r.addComment(line)
	case strings.ContainsRune(line, 0):
		r.comment = nil
		r.result.addRefusal(at, "the line contains a NUL byte")
	default:
		if name, value, ok := parseAssignment(line); ok {
			r.comment = nil
			r.applySetting(at, name, value)
			return
		}

		r.readEntry(at, line)
		r.comment = nil
	}
}

// legendPattern matches a comment that names the fields, as many crontabs have above their first job.
var legendPattern = regexp.MustCompile(`(?i)^(m|min|minute)\s+(h|hour)\s+(dom|mday|day)`)

// addComment remembers a comment for the job below it. It drops jobs that are commented out, and pictures of the
// fields.
func (r *crontabReader) addComment(line string) {
	text := strings.TrimSpace(strings.TrimLeft(line, "#"))
	if words := strings.Fields(text); len(words) > 0 && (looksLikeField(words[0]) || legendPattern.MatchString(text) || strings.ContainsAny(text[:1], "|.`┌│├└")) || strings.HasPrefix(text, "@") {
		r.comment = nil
		return
	}

	if strings.ContainsFunc(text, func(c rune) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c > 0x7f }) {
		r.comment = append(r.comment, text)
	}
}

// readEntry converts a job, or adds its schedule to an earlier job with the same action.
func (r *crontabReader) readEntry(at Place, line string) {
	e, err := readEntry(line, r.form.System)
	if err != nil {
		r.result.addRefusal(at, "%v", err)
		return
	}

	if !r.form.System {
		e.user = r.form.User
	}

	process, notes, err := r.vars.processAction(e.user, e.command)
	if err != nil {
		r.result.addRefusal(at, "%v", err)
		return
	}

	// Behave like cron: runs may overlap, and missed ticks do not run.
	s := r.newSpec("crontab", r.origin)
	s.Schedule, s.Timezone, s.Jitter = task.Schedules{e.schedule}, r.timeZone(), r.vars.delay
	s.DST = e.dstPolicy(s.Timezone)
	s.Action.Process = &process
	s.Overlap, s.Missed.Policy = task.OverlapAllow, task.MissedSkip
	s.Description = makeDescription(strings.Join(r.comment, "\n"))
	if err := schedule.Check(s.Timing()); err != nil {
		r.result.addRefusal(at, "%v", err)
		return
	}

	// key identifies everything except the schedule. A line with the same key becomes another schedule of the same
	// task.
	j := &Job{Place: at, Spec: s, Notes: append(e.notes, notes...)}
	key := fmt.Sprintf("%q %q %q %q %q %s %s %s", process.User, process.Command, process.Shell, process.Env, process.Dir, s.Timezone, s.Jitter, s.DST)

	for i, k := range r.keys {
		if k == key && len(r.jobs[i].Spec.Schedule) < schedule.MaxExpressions {
			r.mergeSchedule(r.jobs[i], j)
			return
		}
	}

	r.nameJob(j, e)
	r.jobs, r.keys = append(r.jobs, j), append(r.keys, key)
}

// dstPolicy returns the DST policy of a job. Cron runs jobs whose minute or hour starts with * at every minute that
// the clock shows: not in a skipped hour, and twice in a repeated one. It runs all other jobs exactly once.
// Carillon considers only the hour, so that only a line such as "*/10 2 * * *" needs a policy other than the
// default.
func (e entry) dstPolicy(zone string) task.DST {
	hour := strings.Fields(e.schedule + " *")[1]
	location, err := schedule.Location(zone)
	if !e.wild || hour[0] == '*' || err != nil || len(clockChanges(location)) == 0 {
		return task.Defaults().DST
	}

	return task.DST{Gap: task.GapSkip, Fold: task.FoldBoth}
}

// timeZone returns the time zone in force.
func (r *crontabReader) timeZone() string {
	if r.vars.zone == "" {
		return task.Defaults().Timezone
	}
	return r.vars.zone
}

// mergeSchedule adds the schedule of a line to an earlier job with the same action.
func (r *crontabReader) mergeSchedule(into, j *Job) {
	if slices.Contains(into.Spec.Schedule, j.Spec.Schedule[0]) {
		r.result.addNote(j.Place, "is the same as line %d: cron runs it twice at the same time, the task runs once", into.Line)
		return
	}

	into.Spec.Schedule = append(into.Spec.Schedule, j.Spec.Schedule[0])
	r.result.addNote(j.Place, "is the same job as line %d; both become one task with two schedules", into.Line)

	if d := j.Spec.Description; d != "" && d != into.Spec.Description {
		into.Spec.Description = makeDescription(into.Spec.Description + "\n" + d)
	}

	into.Notes = append(into.Notes, slices.DeleteFunc(j.Notes, func(n string) bool { return slices.Contains(into.Notes, n) })...)
}

// nameJob derives the name of a job from its origin and its command.
func (r *crontabReader) nameJob(j *Job, e entry) {
	what := guessProgram(e.command)
	if what != r.origin && !strings.HasPrefix(what, r.origin+"-") {
		what = joinName(r.origin, what)
	}

	base := joinName(makeSlug(r.Prefix), what)
	if len(base) > task.MaxName-9 {
		base = strings.Trim(base[:task.MaxName-9], "-._")
	}

	name := joinName(base, hashTag(e.user+"\x00"+e.command))
	for n := 2; r.names[name]; n++ {
		name = fmt.Sprintf("%s-%s-%d", base, hashTag(e.user+"\x00"+e.command), n)
	}

	r.names[name] = true
	j.Spec.Name = name
}
