package importer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
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

// GuessForm guesses the form of a crontab whose path does not determine it: every line of a system crontab has a user
// before the command. known is false if that is not certain: some lines have one, or a user that is also a command.
func GuessForm(text string, exists func(user string) bool) (system, known bool) {
	lines, users, root := 0, 0, false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if systemLegend.MatchString(line) {
			return true, true
		}

		user, ok := sixthWord(line)
		if !ok {
			continue
		}

		lines++
		root = root || user == "root"
		if user == "root" || exists(user) {
			users++
		}
	}

	system = root && users == lines

	return system, system || users == 0 || !root && users < lines
}

// systemLegend matches a comment that names the fields of a system crontab.
var systemLegend = regexp.MustCompile(`(?i)^#\s*(m|min|minute)\s.*\b(dow|wday|weekday)\s+(user|user-name|who)\b`)

// sixthWord returns the first word after the schedule of a job.
func sixthWord(line string) (string, bool) {
	fields := 5
	if strings.HasPrefix(line, "@") {
		fields = 1
	}

	words := strings.Fields(line)
	if len(words) <= fields {
		return "", false
	}
	for _, w := range words[:fields] {
		if fields == 5 && !looksLikeField(strings.TrimPrefix(w, "-")) {
			return "", false
		}
	}

	return words[fields], true
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

	if n := firstOfWindows(text); n > 0 {
		r.result.addRefusal(Place{File: file, Line: n}, "the lines end with CR LF, and cron takes the CR as a part of each line: convert the file with dos2unix")
		return r.result
	}

	n := 0
	for line := range strings.Lines(text) {
		n++
		whole, complete := strings.CutSuffix(line, "\n")
		r.readLine(Place{File: file, Line: n}, whole, complete)
	}

	r.applyFileRules()

	for _, j := range r.jobs {
		r.result.addJob(*j)
	}

	return r.result
}

// firstOfWindows returns the first line that ends with CR LF if all lines with text do, or 0.
func firstOfWindows(text string) int {
	first, n := 0, 0
	for line := range strings.Lines(text) {
		n++
		switch {
		case strings.HasSuffix(line, "\r\n"):
			if first == 0 {
				first = n
			}
		case strings.TrimSpace(line) != "":
			return 0
		}
	}

	return first
}

// cronError is an error of a line that cron reports, too. It then ignores the line or, on Debian, the whole file.
type cronError struct{ text string }

func (e *cronError) Error() string { return e.text }

func ignoredByCron(format string, args ...any) error {
	return &cronError{fmt.Sprintf(format, args...)}
}

// refuseLine refuses a line, and remembers whether cron ignores it.
func (r *crontabReader) refuseLine(at Place, err error) {
	var invalid *task.Error
	if by := (*cronError)(nil); errors.As(err, &by) || errors.As(err, &invalid) && invalid.Code == task.CodeBadSchedule {
		r.bad = append(r.bad, at.Line)
	}

	r.result.addRefusal(at, "%v", err)
}

// applyFileRules applies what cron does with a file that has a line with an error: Debian's ignores the file, so that its
// other lines have not run either.
func (r *crontabReader) applyFileRules() {
	switch {
	case len(r.bad) == 0 || len(r.jobs) == 0:
	case r.Debian:
		r.result.addRefusal(Place{File: r.file}, "cron ignores the whole file because of line %d, so that its other jobs do not run: correct that line first", r.bad[0])
		r.jobs = nil
	default:
		r.result.addNote(Place{File: r.file}, "Debian's cron ignores the whole file because of line %d; others ignore only that line", r.bad[0])
	}
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
	bad     []int           // the lines that cron ignores
	advised bool            // a note about alerts was added
	result  Result
}

// readLine reads one line: a comment, a setting, or a job. complete states that it ends with a line feed.
func (r *crontabReader) readLine(at Place, line string, complete bool) {
	line = strings.TrimLeft(line, " \t")
	switch {
	case line == "":
		r.comment = nil
	case line[0] == '#':
		r.addComment(line)
	case !complete:
		r.comment = nil
		r.refuseLine(at, ignoredByCron("cron ignores a last line that does not end with a line feed"))
	case strings.HasSuffix(line, "\r"):
		r.comment = nil
		r.refuseLine(at, errors.New("the line ends with CR LF, and cron takes the CR as a part of the line: remove it"))
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
	e, err := r.parseEntry(line)
	if err != nil {
		r.refuseLine(at, err)
		return
	}

	process, notes, err := r.vars.processAction(e.user, e.command)
	if err != nil {
		r.refuseLine(at, err)
		return
	}

	// Behave like cron: runs may overlap, and missed ticks do not run.
	s := r.newSpec("crontab", r.origin)
	s.Schedule, s.Timezone, s.Jitter = task.Schedules{e.schedule}, r.timeZone(), r.vars.delay
	s.DST = e.dstPolicy(s.Timezone)
	if s.Schedule.AtBoot() {
		s.Jitter = 0 // cron does not delay such jobs either
	}
	s.Action.Process = &process
	notes = append(notes, r.vars.mailOutput(&s.Output, e.user, r.MailOwner)...)
	s.Overlap, s.Missed.Policy = task.OverlapAllow, task.MissedSkip
	s.Description = makeDescription(strings.Join(r.comment, "\n"))
	if err := schedule.Check(s.Timing()); err != nil {
		r.refuseLine(at, err)
		return
	}

	notes = append(notes, commandNotes(e.command)...)
	j := &Job{Place: at, Spec: s, Notes: append(e.notes, notes...)}
	key, err := identifyExceptSchedule(s)
	if err != nil {
		r.refuseLine(at, err)
		return
	}

	for i, k := range r.keys {
		// @reboot cannot be combined with other schedules.
		if k == key && r.jobs[i].Spec.Schedule.AtBoot() == s.Schedule.AtBoot() && len(r.jobs[i].Spec.Schedule) < schedule.MaxExpressions {
			r.mergeSchedule(r.jobs[i], j)
			return
		}
	}

	r.nameJob(j, e)
	r.jobs, r.keys = append(r.jobs, j), append(r.keys, key)
}

// parseEntry parses a job, and checks its user.
func (r *crontabReader) parseEntry(line string) (entry, error) {
	e, err := readEntry(line, r.form.System, r.Debian)
	if err != nil {
		return e, err
	}

	if !r.form.System {
		if e.user = r.form.User; strings.HasPrefix(e.command, "root ") {
			e.notes = append(e.notes, "the command begins with root: if the file has a user column, use --system")
		}
		return e, nil
	}

	note, err := r.checkUser(e.user)
	if note != "" {
		e.notes = append(e.notes, note)
	}

	return e, err
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

// identifyExceptSchedule returns a text that is the same for two lines only if nothing but their schedules and comments
// differ. The second one then becomes another schedule of the same task.
func identifyExceptSchedule(s task.Spec) (string, error) {
	s.Schedule, s.Description = nil, ""
	b, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("compare with other lines: %w", err)
	}

	return string(b), nil
}

// mergeSchedule adds the schedule of a line to an earlier job with the same action.
func (r *crontabReader) mergeSchedule(into, j *Job) {
	if slices.Contains(into.Spec.Schedule, j.Spec.Schedule[0]) {
		r.result.addNote(j.Place, "is the same as line %d: cron runs it twice at the same time, the task runs once", into.Line)
		return
	}

	into.Spec.Schedule = append(into.Spec.Schedule, j.Spec.Schedule[0])
	r.result.addNote(j.Place, "is the same job as line %d: its schedule is added to the task of that line", into.Line)

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

	tag := hashTag(e.user + "\x00" + e.command)
	name := jobName(r.Prefix, what, tag)
	for n := 2; r.names[name]; n++ {
		tag = fmt.Sprintf("%s-%d", hashTag(e.user+"\x00"+e.command), n)
		name = jobName(r.Prefix, what, tag)
	}

	r.names[name] = true
	j.Spec.Name, j.what, j.tag = name, what, tag
}

// jobName returns the name of a task. what is shortened if the name would be too long.
func jobName(prefix, what, tag string) string {
	base := joinName(makeSlug(prefix), what)
	if len(base) > task.MaxName-9 {
		base = strings.Trim(base[:task.MaxName-9], "-._")
	}

	return joinName(base, tag)
}

// entry is a line of a crontab that is a job.
type entry struct {
	schedule, user, command string
	wild                    bool // the minute or the hour starts with *: at clock changes cron runs it by the clock alone
	notes                   []string
}

// cronNicknames are the nicknames that have the same meaning in Carillon.
var cronNicknames = strings.Fields("@yearly @annually @monthly @weekly @daily @midnight @hourly")

// readEntry parses a job, whose line begins with its first field. A system crontab has a column with the user. debian
// excludes what only other crons know.
func readEntry(line string, system, debian bool) (e entry, err error) {
	var fields []string

	if strings.HasPrefix(line, "@") {
		word, rest := cutField(line)
		switch {
		case word == task.BootSchedule:
			e.schedule = word
		case word == "@every_minute":
			e.schedule = "* * * * *"
		case slices.Contains(cronNicknames, word):
			e.schedule = word
		default:
			return e, ignoredByCron("%s is not one of %s", quoteShort(word), strings.Join(cronNicknames, ", "))
		}

		line = rest
	} else {
		if strings.HasPrefix(line, "-") {
			line = line[1:]
			e.notes = append(e.notes, "the - before the minute, which disables the log of cron, is not supported")
		}

		// The schedule.
		fields = make([]string, 5)
		for i := range fields {
			if fields[i], line = cutField(line); !looksLikeField(fields[i]) {
				return e, ignoredByCron("neither a job nor a setting: found %s instead of %s", quoteShort(fields[i]), fieldNames[i])
			}
		}

		e.wild = fields[0][0] == '*' || fields[1][0] == '*'
		e.notes = append(e.notes, scheduleNotes(fields)...)
	}

	// The rest of the line: a user in a system crontab, and the command.
	if system {
		if e.user, line = cutField(line); e.user == "" {
			return e, ignoredByCron("no user before the command, as a system crontab requires; if it is the crontab of a user, use --user")
		}
		if strings.ContainsAny(e.user, "/=:$\"'`;[") {
			return e, ignoredByCron("%s is not the name of a user: if the file has no user column, use --user NAME", quoteShort(e.user))
		}
	}

	if strings.HasPrefix(line, "*") || e.user == "*" {
		return e, ignoredByCron("a * follows the five fields: cron has no sixth field and rejects the line")
	}

	e.command = strings.TrimRight(line, " \t")
	if e.command == "" {
		return e, errors.New("no command")
	}

	if fields != nil {
		err = e.convertFields(fields, debian)
	}

	return e, err
}

// convertFields sets the schedule, and converts what cron and Carillon interpret differently.
func (e *entry) convertFields(fields []string, debian bool) (err error) {
	if strings.Contains(strings.Join(fields, " "), "~") {
		if debian {
			return ignoredByCron("Debian's cron does not know ~")
		}
		if fields, err = replaceRandomRanges(fields, e.user+"\x00"+e.command); err != nil {
			return err
		}
		e.notes = append(e.notes, "cron chooses the value of ~ each time it starts; the task has a fixed value derived from its name or command")
	}

	for i := range fields {
		if fields[i], err = cronSteps(i, fields[i]); err != nil {
			return err
		}
	}

	e.schedule = strings.Join(fields, " ")

	return nil
}

// cutField cuts the first word off a line.
func cutField(line string) (word, rest string) {
	at := strings.IndexAny(line, " \t")
	if at < 0 {
		return line, ""
	}
	return line[:at], strings.TrimLeft(line[at:], " \t")
}

var (
	fieldNames = []string{"the minute", "the hour", "the day of the month", "the month", "the day of the week"}
	oneField   = regexp.MustCompile(`^([*~]|\d+|(?i:sun|mon|tue|wed|thu|fri|sat|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\b)[A-Za-z0-9*,/~-]*$`)
)

// looksLikeField reports whether a word can be a field of a schedule.
func looksLikeField(word string) bool { return oneField.MatchString(word) }

var fieldBounds = [5][2]int{{0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 6}}

// replaceRandomRanges replaces the ranges of cronie from which it draws a value, such as 0~30, by H. H is at most the
// 28th day of a month, so that a range with later days becomes a number that is derived from seed.
func replaceRandomRanges(fields []string, seed string) ([]string, error) {
	const dayOfMonth, month = 2, 3
	list, late := slices.Clone(fields), false

	for i, text := range fields {
		items := strings.Split(text, ",")
		for n, item := range items {
			if !strings.Contains(item, "~") {
				continue
			}

			from, to, step, err := parseRandomRange(i, item)
			if err != nil {
				return nil, err
			}

			switch items[n] = fmt.Sprintf("H(%d-%d)%s", from, to, step); {
			case i == dayOfMonth && to > 28 && step == "":
				items[n], late = strconv.Itoa(from+hashOf(seed, to-from+1)), true
			case i == dayOfMonth && to > 28:
				return nil, fmt.Errorf("%s: a step after ~ is not supported with days after the 28th", quoteShort(item))
			case i == month && late:
				// Some months do not have such a day, so that it would not be certain that a task with H ever runs.
				items[n] = strconv.Itoa(from + hashOf(seed+"\x00month", to-from+1))
			}
		}

		list[i] = strings.Join(items, ",")
	}

	return list, nil
}

// parseRandomRange parses a range with ~, and the step after it.
func parseRandomRange(i int, item string) (from, to int, step string, err error) {
	values := item
	if at := strings.IndexByte(item, '/'); at >= 0 {
		values, step = item[:at], item[at:]
	}

	from, to = fieldBounds[i][0], fieldBounds[i][1]
	low, high, _ := strings.Cut(values, "~")
	if low != "" {
		from, err = strconv.Atoi(low)
	}
	if high != "" && err == nil {
		to, err = strconv.Atoi(high)
	}

	switch {
	case err != nil:
		err = fmt.Errorf("%s: a random range requires numbers on both sides of ~, or on neither", quoteShort(item))
	case from > to:
		err = ignoredByCron("%s: the number before ~ is greater than the one after it", quoteShort(item))
	case from < fieldBounds[i][0] || to > fieldBounds[i][1] && (i != 4 || to > 7):
		err = ignoredByCron("%s: %s is not between %d and %d", quoteShort(item), fieldNames[i], fieldBounds[i][0], fieldBounds[i][1])
	}

	return from, to, step, err
}

// hashOf returns a number below n that is derived from a text.
func hashOf(text string, n int) int {
	sum := sha256.Sum256([]byte(text))
	return int(binary.BigEndian.Uint32(sum[:4]) % uint32(n))
}

// cronSteps checks and rewrites steps that cron and Carillon interpret differently. Cron accepts a step beyond the
// field's maximum, which leaves only the first value: */60 in the minutes is 0. Debian's cron rejects a step
// without a range, and others ignore it.
func cronSteps(i int, text string) (string, error) {
	highest := fieldBounds[i][1]
	if i == 4 {
		highest = 7
	}

	items := strings.Split(text, ",")
	for n, item := range items {
		values, step, stepped := strings.Cut(item, "/")
		if !stepped || strings.HasPrefix(item, "H") {
			continue
		}

		low, _, ranged := strings.Cut(values, "-")
		if !ranged && values != "*" {
			return "", ignoredByCron("%s: cron rejects or ignores a step without a range: use %s, or %s-%d/%s", quoteShort(item), low, low, fieldBounds[i][1], step)
		}

		period, err := strconv.Atoi(step)
		if err != nil || period <= highest {
			continue // package schedule rejects what is not a number
		}

		switch {
		case values != "*":
			items[n] = low
		case i == 2 || i == 4:
			items[n] = fmt.Sprintf("*/%d", highest) // keep the *, which affects the rule of the two day fields; the first day is the only one
		default:
			items[n] = strconv.Itoa(fieldBounds[i][0])
		}
	}

	return strings.Join(items, ","), nil
}

// quoteShort quotes and shortens user text for messages.
func quoteShort(s string) string {
	const most = 40
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.Quote(s)
}
