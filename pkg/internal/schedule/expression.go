package schedule

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	maxLength  = 256                       // bytes of an expression
	minPeriod  = 100 * time.Millisecond    // of @every
	maxPeriod  = 10 * 365 * 24 * time.Hour // of @every: ten years, 87600h
	maxFields  = len(cronFields)           // with seconds
	manualExpr = task.ManualSchedule
	bootExpr   = task.BootSchedule
	inExpr     = "@in"
)

// nicknameFields maps the nicknames of crontab(5) to expressions of six fields.
var nicknameFields = map[string]string{
	"@yearly":   "0 0 0 1 1 *",
	"@annually": "0 0 0 1 1 *",
	"@monthly":  "0 0 0 1 * *",
	"@weekly":   "0 0 0 * * 0",
	"@daily":    "0 0 0 * * *",
	"@midnight": "0 0 0 * * *",
	"@hourly":   "0 0 * * * *",
}

// expression is one parsed expression. Exactly one of its fields is set, or none for @manual.
type expression struct {
	boot  bool // whenever a node boots
	cron  *rule
	every int64  // a period in ms
	after int64  // a period in ms, counted from the end of each run
	at    int64  // an instant in ms
	in    int64  // a duration in ms, counted from when the task is written
	local string // a time in the time zone, which becomes an instant when the task is written
}

// parseExpression parses one expression. It checks everything itself before it passes anything to another parser.
// name is the field's name for errors. With written, the expression may contain H or @in. An arbitrary value then
// takes the place of H.
func parseExpression(name, text string, written bool) (expression, error) {
	return readExpression(name, text, written, suggestMeant)
}

// readExpression is parseExpression with a function that suggests corrections for error messages. A suggestion is
// itself parsed to verify it, which must not search for suggestions again.
func readExpression(name, text string, written bool, suggest func(words []string) string) (expression, error) {
	fail := func(code, format string, args ...any) (expression, error) {
		return expression{}, task.Invalid(code, name, "%s: %s", task.Quote(text), fmt.Sprintf(format, args...))
	}

	if len(text) > maxLength {
		return fail(task.CodeTooLong, "is %d bytes long; at most %d are allowed", len(text), maxLength)
	}

	// Only printable ASCII and spaces are allowed. Tabs are rejected, because they look like spaces in an error
	// message.
	for _, c := range []byte(text) {
		switch {
		case c == '\t':
			return fail(task.CodeBadSchedule, "contains a tab; separate fields with spaces")
		case c < ' ' || c == 0x7f:
			return fail(task.CodeBadSchedule, "contains a control character")
		case c > 0x7f:
			return fail(task.CodeBadSchedule, "contains a character that is not ASCII")
		}
	}

	// The first word determines the form.
	words := strings.Fields(text)
	switch {
	case len(words) == 0:
		return fail(task.CodeRequired, "a schedule is required: a cron expression, @every, @at, @manual or @reboot")
	case strings.Contains(strings.ToUpper(text), "TZ="):
		return fail(task.CodeBadSchedule, "an expression cannot contain a time zone; use the field timezone")
	case words[0] == "@every":
		period, err := parseEvery(words[1:])
		if err != nil {
			return fail(task.CodeBadDuration, "%v", err)
		}
		if len(words) > 2 {
			return expression{after: period}, nil
		}

		return expression{every: period}, nil
	case words[0] == inExpr:
		wait, err := parseIn(words[1:])
		if err != nil {
			return fail(task.CodeBadDuration, "%v", err)
		}
		if !written {
			return fail(task.CodeBadSchedule, "@in is allowed only when a task is written, and is stored as \"@at\"")
		}

		return expression{in: wait}, nil
	case words[0] == "@at" && isDelay(text):
		local := strings.Join(words[1:], " ")
		if !isTimeText(words[1:]) {
			return fail(task.CodeBadTime, "@at needs a time, such as \"@at 2026-12-24 18:00\" in the task's time zone, or \"@at 2026-12-24T18:00:00Z\"")
		}
		if !written {
			return fail(task.CodeBadSchedule, "@at without an offset is allowed only when a task is written, and is stored as \"@at 2026-12-24T18:00:00Z\"")
		}

		return expression{local: local}, nil
	case words[0] == "@at":
		instant, err := parseAt(words[1:])
		if err != nil {
			return fail(task.CodeBadTime, "%v", err)
		}
		return expression{at: instant}, nil
	case words[0] == manualExpr && len(words) == 1:
		return expression{}, nil
	case words[0] == bootExpr && len(words) == 1:
		return expression{boot: true}, nil
	case words[0][0] == '@':
		sixFields, ok := nicknameFields[words[0]]
		if !ok || len(words) > 1 {
			return fail(task.CodeBadSchedule, "%s", wrongNickname(words))
		}
		words = strings.Fields(sixFields)
	}

	given := words

	isCron := len(words) == maxFields || len(words) == maxFields-1
	if isCron && slices.ContainsFunc(words, hasH) {
		if !written {
			return fail(task.CodeBadSchedule, "H requires the name of the task, which determines the value")
		}
		if len(text) > maxSpread {
			return fail(task.CodeTooLong, "is %d bytes long; at most %d are allowed with H", len(text), maxSpread)
		}

		var err error
		if words, err = spreadWords(words, "", ""); err != nil {
			return fail(task.CodeBadSchedule, "%v%s", err, suggest(given))
		}
	}

	// From here on it is a cron expression of five or six fields.
	r, err := parseCron(words)
	if err != nil {
		return fail(task.CodeBadSchedule, "%v%s", err, suggest(given))
	}

	// An expression such as February 30 has no day at all.
	if r.nextDay(firstSecond/daySeconds, endSecond/daySeconds-1) == noInstant {
		return fail(task.CodeNeverFires, "never fires: none of its months has such a day")
	}
	if !firesForAnyName(given, words) {
		return fail(task.CodeNeverFires, "never fires for some names: H may be a month without such a day; name the months, or use days up to 28 or L")
	}

	return expression{cron: r}, nil
}

// firesForAnyName reports whether a cron expression fires whatever months H stands for in given. words are the same fields
// without H. It is enough if one item of the months has such a day whatever H is.
func firesForAnyName(given, words []string) bool {
	const monthsOfYear = 12
	at := len(given) - 2 // months are the last field but one
	if !hasH(given[at]) {
		return true
	}

	fires := func(months string) bool {
		alone := slices.Clone(words)
		alone[at] = months
		r, err := parseCron(alone)

		return err == nil && r.nextDay(firstSecond/daySeconds, endSecond/daySeconds-1) != noInstant
	}

	f := &cronFields[maxFields-len(given)+at]
	alwaysFires := func(item string) bool {
		if !hasH(item) {
			return fires(item)
		}

		for hash := range uint64(monthsOfYear) {
			if months, err := f.resolveHash(item, hash); err != nil || !fires(months) {
				return false
			}
		}

		return true
	}

	return slices.ContainsFunc(strings.Split(given[at], ","), alwaysFires)
}

// wrongNickname returns the message for a word that begins with @ and is not a nickname.
func wrongNickname(words []string) string {
	lower := strings.ToLower(words[0])

	// First the common mistakes, then the most similar name.
	switch _, known := nicknameFields[lower]; {
	case len(words) > 1 && (known || lower == manualExpr || lower == bootExpr):
		return words[0] + " takes no arguments"
	case known || lower == manualExpr || lower == bootExpr || lower == "@every" || lower == "@at" || lower == inExpr:
		return fmt.Sprintf("did you mean %q?", lower)
	}

	// What other schedulers call it.
	switch lower {
	case "@manually", "@never", "@none":
		return fmt.Sprintf("did you mean %q?", manualExpr)
	case "@boot", "@startup", "@start", "@restart":
		return fmt.Sprintf("did you mean %q?", bootExpr)
	case "@minutely", "@every_minute":
		return `did you mean "* * * * *"?`
	case "@weekdays", "@workdays":
		return `did you mean "0 0 * * MON-FRI"?`
	}

	// A space is missing: @every5m.
	for _, sign := range []string{"@every", "@at", inExpr} {
		if rest, ok := strings.CutPrefix(lower, sign); ok && rest[0] >= '0' && rest[0] <= '9' {
			return fmt.Sprintf("did you mean %q?", shorten(sign+" "+words[0][len(sign):]))
		}
	}

	const none = "is not one of @yearly, @monthly, @weekly, @daily, @hourly, @every, @at, @in, @manual, @reboot"

	if near := task.Nearest(words[0], slices.Concat(slices.Sorted(maps.Keys(nicknameFields)), []string{manualExpr, bootExpr, "@every", "@at", inExpr})); near != "" {
		return none + fmt.Sprintf("; did you mean %q?", near)
	}

	return none
}

// parseEvery returns the period in ms of @every, with or without "after completion".
func parseEvery(words []string) (int64, error) {
	switch {
	case len(words) == 3 && words[1] == "after" && words[2] == "completion":
	case len(words) > 1 && strings.HasPrefix(strings.ToLower(words[1]), "after"):
		return 0, fmt.Errorf("did you mean \"@every %s after completion\"?", shorten(words[0]))
	case len(words) != 1:
		return 0, fmt.Errorf("@every needs one duration, such as \"@every 90s\"%s", oneDuration("@every", words))
	}

	return parseDuration("period", words[0])
}

// parseIn returns the duration of @in, in ms.
func parseIn(words []string) (int64, error) {
	if len(words) != 1 {
		return 0, fmt.Errorf("@in needs one duration, such as \"@in 10m\"%s", oneDuration(inExpr, words))
	}
	return parseDuration("wait", words[0])
}

// parseDuration returns a duration in ms. noun is what messages call it.
func parseDuration(noun, text string) (int64, error) {
	read, err := task.ParseDuration("", text)
	if err != nil {
		return 0, err
	}

	switch d := read.Std(); {
	case d < 0:
		return 0, fmt.Errorf("the %s is negative", noun)
	case d < minPeriod:
		return 0, fmt.Errorf("a %s is at least 100ms", noun)
	case d > maxPeriod:
		return 0, fmt.Errorf("a %s is at most 87600h (ten years)", noun)
	case d%time.Millisecond != 0:
		return 0, fmt.Errorf("a %s is a whole number of milliseconds", noun)
	default:
		return d.Milliseconds(), nil
	}
}

// rfc3339 is the form of a time. time.Parse alone also accepts hours of one digit and a comma before the fraction.
var rfc3339 = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`)

// parseAt returns the instant of @at, in ms.
func parseAt(words []string) (int64, error) {
	err := fmt.Errorf("@at needs a time, such as \"@at 2026-12-24 18:00\" in the task's time zone, or \"@at 2026-12-24T18:00:00Z\"")

	if len(words) != 1 || !rfc3339.MatchString(words[0]) {
		return 0, err
	}

	at, parseErr := time.Parse(time.RFC3339, words[0])
	if parseErr != nil {
		return 0, err
	}

	switch {
	case at.Unix() < firstWritten || at.Unix() >= endSecond:
		return 0, fmt.Errorf("the time is outside the years 2000 to 2100")
	case at.Nanosecond()%int(time.Millisecond) != 0:
		return 0, fmt.Errorf("a time is a whole number of milliseconds")
	}

	return at.UnixMilli(), nil
}

// placeholderField is passed to the parser for a field that has only special items such as L. parseCron clears it
// afterwards.
const placeholderField = "1"

// cronParser converts checked fields to bit sets. It never receives what a user wrote.
var cronParser = cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// parseCron parses the fields of a cron expression.
func parseCron(words []string) (*rule, error) {
	switch {
	case len(words) == maxFields-1:
		words = append([]string{"0"}, words...)
	case len(words) == maxFields+1:
		return nil, fmt.Errorf("has 7 fields; years are not supported")
	case len(words) != maxFields:
		return nil, fmt.Errorf("has %d %s; a cron expression has 5 (minute, hour, day of month, month, day of week), or 6 with seconds first",
			len(words), pluralNoun(len(words), "field"))
	}

	// Take the special items out of each field, and check and normalize the rest.
	var days special
	plain := make([]string, maxFields)
	var empty [maxFields]bool // no items besides special ones
	for i := range cronFields {
		text, err := days.extractSpecial(&cronFields[i], words[i])
		if err == nil && text != "" {
			text, err = cronFields[i].checkSyntax(text)
		}

		if err != nil {
			return nil, err
		}

		plain[i], empty[i] = cmp.Or(text, placeholderField), text == ""
	}

	parsed, err := cronParser.Parse(strings.Join(plain, " "))
	if err != nil {
		return nil, err
	}

	sets, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return nil, fmt.Errorf("is not a cron expression")
	}

	// The parser marks fields that start with * by its highest bit, but not */2. Vixie's cron looks at the first
	// character, and so does this. So the bit is dropped. A ? counts as *; checkSyntax rejects it outside of the
	// day fields.
	star := func(i int) bool { return words[i][0] == '*' || words[i][0] == '?' }
	r := &rule{
		seconds:  sets.Second &^ (1 << 63),
		minutes:  sets.Minute &^ (1 << 63),
		hours:    uint32(sets.Hour),
		days:     uint32(sets.Dom),
		months:   uint16(sets.Month),
		weekdays: uint8(sets.Dow),
		bothDays: star(3) || star(5),
		realTime: star(2),
		special:  days,
	}
	r.hasSpecial = days != special{}
	if empty[3] {
		r.days = 0
	}

	if empty[5] {
		r.weekdays = 0
	}

	return r, nil
}

// pluralNoun returns the plural of a noun, unless n is 1.
func pluralNoun(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}
