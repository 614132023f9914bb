package readmodel

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/task"
)

// matchesLine reports whether a row matches a query line.
func matchesLine(t *testing.T, text string, r *Row, now int64) bool {
	t.Helper()

	q, err := ParseQueryLine(text)
	if err != nil {
		t.Fatalf("ParseQueryLine(%q): %v", text, err)
	}

	f := Filter{Conditions: q.Conditions()}

	return f.matches(r, nil, now)
}

const (
	hourMS = int64(60 * minuteMS)
	dayMS  = 24 * hourMS
	nowMS  = int64(1_800_000_000_000)
)

// failedDump is a task that failed half an hour ago and is due in ten minutes.
func failedDump() Row {
	return Row{
		Name: "prod/db-dump", Labels: map[string]string{"team": "data", "tier": ""},
		Next: nowMS + 10*minuteMS, LastEnd: nowMS - hourMS/2, LastSuccess: Seconds(nowMS - 2*dayMS),
		Duration: 90_000, Lateness: 1500, Failures: 3, Flags: History | Failing | OutcomeOf(task.Failed).flags(),
	}
}

func TestQueryLine_Matches(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		line string
		want bool
	}{
		{"", true},
		{" \t\n", true},
		{"dump", true},
		{"DUMP", true},
		{"prod", false},
		{"prod/db", true},
		{"-dump", false},
		{"-other", true},
		{"other,dump", true},
		{`"dump"`, true},
		{`"db dump"`, false},
		{"name:db-dump", true},
		{"name:db", false},
		{"name:db-*", true},
		{"name:web-*,db-?ump", true},
		{"name:prod/db-*", true},
		{"name:test/db-*", false},
		{"name:prod/db-dump,other", true},
		{"name:test/db-dump,other", false},
		{"name:db-dump-2,other", false},
		{"name:prod*", false},
		{"name:p*/db-?ump", true},
		{"name:*", true},
		{"name:d[a-c]-dump", true},
		{"name:db,w*-2,web-[2-9],db-dump", true},
		{"name:db,w*-2,web-[2-9]", false},
		{"name~other,ump", true},
		{"namespace:prod", true},
		{"namespace:p*", true},
		{"namespace:pro", false},
		{"-namespace:test", true},
		{"state:failed", true},
		{"state:succeeded", false},
		{"state:succeeded,failed", true},
		{"state:running,failing", true},
		{"state:idle", true},
		{"state:running", false},
		{"state:waiting", false},
		{"state:paused", false},
		{"action:workflow", false},
		{"-action:workflow", true},
		{"state:overdue", false},
		{"state:unreadable", false},
		{"-state:failed", false},
		{"label:team", true},
		{"label:tier", true},
		{"label:env", false},
		{"label:env,team", true},
		{"label:team=data", true},
		{"label:team=ops,data", true},
		{"label:team=ops", false},
		{"label:tier=", true},
		{"label:tier=,gold", true},
		{"label:team=", false},
		{"label:team!=ops", true},
		{"label:team!=ops,data", false},
		{"label:env!=prod", true},
		{"-label:team=data", false},
		{"selector:team", true},
		{"selector:team=data,!env", true},
		{`selector:"team in (ops, data), tier notin (gold)"`, true},
		{`selector:"team in (ops), tier"`, false},
		{`selector:"team > 3"`, false},
		{"-selector:team=ops", true},
		{"next:<1h", true},
		{"next:<10m", false},
		{"next:<=10m", true},
		{"next:>10m", false},
		{"next:>=10m", true},
		{"next:>5m", true},
		{"next:>1d", false},
		{"next:none", false},
		{"-next:none", true},
		{"last:<1h", true},
		{"last:>1h", false},
		{"last:none", false},
		{"success:>26h", true},
		{"success:>1d2h", true},
		{"success:<26h", false},
		{"success:<1w", true},
		{"success:none", false},
		{"duration:>1m", true},
		{"duration:>5m", false},
		{"duration:<2m", true},
		{"lateness:>1s", true},
		{"lateness:<1s", false},
		{"failures:>=3", true},
		{"failures:>3", false},
		{"failures:3", true},
		{"failures:=3", true},
		{"failures:0", false},
		{"failures:<4", true},
		{"state:failed label:team=data next:<1h name~dump", true},
		{"state:failed label:team=data next:<1h name~restore", false},
	} {
		r := failedDump()
		if got := matchesLine(t, c.line, &r, nowMS); got != c.want {
			t.Errorf("%q matches: %t, want %t", c.line, got, c.want)
		}
	}
}

func TestQueryLine_MatchesTaskThatNeverRan(t *testing.T) {
	t.Parallel()

	for line, want := range map[string]bool{
		"next:none": true, "next:<1h": false, "next:>1h": false, "-next:<1h": true,
		"last:none": true, "last:<1h": false, "last:>1h": false,
		"success:none": true, "success:>26h": true, "success:>=26h": true, "success:<26h": false,
		"duration:<1h": false, "-duration:<1h": true, "lateness:<1h": false, "failures:0": true,
		"state:succeeded": false, "-state:succeeded": true, "state:idle": true,
	} {
		r := Row{Name: "a/b", Flags: History}
		if got := matchesLine(t, line, &r, nowMS); got != want {
			t.Errorf("%q matches: %t, want %t", line, got, want)
		}
	}
}

func TestQueryLine_WithoutHistoryNothingAboutRunsIsCertain(t *testing.T) {
	t.Parallel()

	unread := Row{Name: "a/b", Failures: 2}
	for _, line := range []string{
		"state:failed", "-state:failed", "last:none", "-last:none", "last:<1h", "success:none", "-success:none", "success:>26h",
		"-success:>26h", "duration:>1s", "-duration:>1s", "lateness:>1s", "failures:>=3", "-failures:>=3", "failures:2", "failures:<3",
	} {
		if matchesLine(t, line, &unread, nowMS) {
			t.Errorf("%q matches a task whose history is not known", line)
		}
	}
	for _, line := range []string{"state:failed,idle", "failures:>=2", "-failures:<2", "-failures:1"} {
		if !matchesLine(t, line, &unread, nowMS) {
			t.Errorf("%q does not match, although it holds whatever the history is", line)
		}
	}

	// A run has ended since the shard has got a new owner. It was the last one, but maybe not the last success.
	ended := Row{Name: "a/b", LastEnd: nowMS - minuteMS, Flags: OutcomeOf(task.Lost).flags(), Duration: 5}
	for line, want := range map[string]bool{"state:lost": true, "last:<1h": true, "duration:<1s": true, "success:none": false, "-success:none": false} {
		if got := matchesLine(t, line, &ended, nowMS); got != want {
			t.Errorf("%q matches: %t, want %t", line, got, want)
		}
	}
}

func TestParseQueryLine_NamesWhatIsWrong(t *testing.T) {
	t.Parallel()

	many := strings.Repeat("a ", MaxQueryTerms+1)
	values := "label:" + strings.TrimSuffix(strings.Repeat("a,", MaxQueryValues+1), ",")
	names := "name:" + strings.TrimSuffix(strings.Repeat("a,", MaxQueryNames), ",")

	for line, want := range map[string]string{
		"state:faild":                       `term "state:faild": "faild" is not one of failed, succeeded, timed_out, cancelled, lost, running, waiting, idle, paused, failing, overdue, unreadable; did you mean failed?`,
		"state:ok":                          `term "state:ok": ok is not a state; did you mean -state:failing,overdue,paused, or state:succeeded, if the last run counts?`,
		"state:":                            `term "state:": a value is missing`,
		"state:failed,":                     `term "state:failed,": a value is missing`,
		"stat:failed":                       `term "stat:failed": "stat" is not one of name, namespace, state, action, label, selector, next, tick, last, success, duration, lateness, failures, alert, notify; did you mean state?`,
		"status:failed":                     `term "status:failed": "status" is not one of name, namespace, state, action, label, selector, next, tick, last, success, duration, lateness, failures, alert, notify; did you mean state?`,
		":x":                                `term ":x": "" is not one of name, namespace, state, action, label, selector, next, tick, last, success, duration, lateness, failures, alert, notify`,
		"-":                                 `term "-": a value is missing`,
		"a name:[":                          `term "name:[": "[" is not a pattern of names: use *, ? and [a-z]`,
		"name:a/b/c":                        `term "name:a/b/c": "a/b/c" is not a pattern of names: use *, ? and [a-z]`,
		"namespace:a/b":                     `term "namespace:a/b": "a/b" is not a pattern of names: use *, ? and [a-z]`,
		"state~failed":                      `term "state~failed": only name can be used with ~; did you mean state:?`,
		"team=data":                         `term "team=data": no name contains '='; did you mean label:team=data?`,
		"failures>3":                        `term "failures>3": a key is followed by a colon; did you mean failures:>3?`,
		"web-*":                             `term "web-*": a word is not a pattern; did you mean name:web-*?`,
		"!old":                              `term "!old": a term is negated with -; did you mean -old?`,
		"label:":                            `term "label:": the key of the label is missing`,
		"label:=x":                          `term "label:=x": the key of the label is missing`,
		"label:a b:c":                       `term "b:c": "b" is not one of name, namespace, state, action, label, selector, next, tick, last, success, duration, lateness, failures, alert, notify`,
		"label:a=b,c=d":                     `term "label:a=b,c=d": "c=d" is not a label value; did you mean two terms, label:a and label:c=d?`,
		"action:process":                    `term "action:process": "process": use workflow, the only action that can be looked for`,
		"next:":                             `term "next:": a duration is missing: use next:<1h, next:>1h or next:none`,
		"next:<":                            `term "next:<": a duration is missing: use next:<1h, next:>1h or next:none`,
		"next:1h":                           `term "next:1h": a duration is compared with < or >; did you mean next:<1h?`,
		"next:<1hour":                       `term "next:<1hour": "1hour" is not a duration; did you mean "1h"?`,
		"next:non":                          `term "next:non": "non" is not a comparison: use next:<1h, next:>1h or next:none; did you mean none?`,
		"next:<-1h":                         `term "next:<-1h": "-1h" is not a duration, such as 90s, 10m, 1h30m or 2d`,
		"duration:none":                     `term "duration:none": "none" is not a comparison: use duration:<1h, duration:>1h`,
		"duration:>30d":                     `term "duration:>30d": "30d" is greater than 24d`,
		"tick:":                             `term "tick:": a value is missing`,
		"tick:03:00":                        `term "tick:03:00": "03:00" is not a minute with a zone, such as 2026-11-27T03:00Z`,
		"tick:2026-11-27T03:00:30Z":         `term "tick:2026-11-27T03:00:30Z": "2026-11-27T03:00:30Z" is not a minute with a zone, such as 2026-11-27T03:00Z`,
		"failures:many":                     `term "failures:many": "many" is not a whole number: use failures:>=3, failures:<3 or failures:0`,
		"failures:>99999":                   `term "failures:>99999": 99999 is greater than 65535`,
		`a "b c`:                            `term "\"b c": the quotes are not closed`,
		"a\x00b":                            `"a\x00b" contains control characters or is not UTF-8`,
		many:                                `41 terms; at most 40 are allowed`,
		values:                              `101 values; at most 100 are allowed`,
		"a " + names + " name:b":            `1001 names; at most 1000 are allowed`,
		`selector:`:                         `term "selector:": a label selector is missing`,
		`selector:" "`:                      `term "selector:\" \"": a label selector is missing`,
		`a selector:"team is data"`:         `term "selector:\"team is data\"": "team is data" is not a term: use k = v, k != v, k > n, k in (a, b), k notin (a, b), k or !k`,
		strings.Repeat("a", MaxQueryLine+1): `"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…" is longer than 65536 bytes`,
	} {
		_, err := ParseQueryLine(line)
		if err == nil {
			t.Errorf("ParseQueryLine(%q) succeeded", line)
		} else if err.Error() != want {
			t.Errorf("ParseQueryLine(%q):\n got %s\nwant %s", line, err, want)
		}
	}
}

// A term tick finds each tick that may fall due in a minute, not only the next one.
func TestQueryLine_Tick(t *testing.T) {
	t.Parallel()

	// nowMS is 2027-01-15T08:00:00Z.
	row := func(expr ...string) Row {
		return rowOf("a/b", parseTiming(t, task.Timing{Schedule: expr}, nowMS), nowMS)
	}
	for _, c := range []struct {
		line string
		row  Row
		want bool
	}{
		{"tick:2027-01-15T08:00Z", row("0 * * * *"), true},
		{"tick:2027-01-15T09:00Z", row("0 * * * *"), true},
		{"tick:2027-01-15T10:00+01:00", row("0 * * * *"), true},
		{"tick:2027-01-15T09:01Z", row("0 * * * *"), false},
		{"-tick:2027-01-15T09:01Z", row("0 * * * *"), true},
		{"tick:2027-01-15T09:01Z,2027-01-15T10:00Z", row("0 * * * *"), true},
		{"tick:2027-01-15T07:00Z", row("0 * * * *"), false},
		{"tick:2027-01-15T09:30Z", row("@every 90m"), true},
		{"tick:2027-01-15T12:30Z", row("@every 90m"), true},
		{"tick:2027-01-15T12:31Z", row("@every 90m"), false},
		{"tick:2027-01-15T12:30Z", row("@every 90m", "0 3 * * *"), false},
		{"-tick:2027-01-15T12:30Z", row("@every 90m", "0 3 * * *"), false},
		{"tick:2027-01-16T03:00Z", row("@every 90m", "0 3 * * *"), true},
		{"tick:2027-01-15T08:00Z", row("@manual"), false},
		{"tick:2027-01-15T08:00Z", Row{Name: "a/b", Flags: Unreadable}, false},
	} {
		if got := matchesLine(t, c.line, &c.row, nowMS); got != c.want {
			t.Errorf("%q matches %+v: %t, want %t", c.line, c.row, got, c.want)
		}
	}
}

func TestQueryLine_CanonicalForm(t *testing.T) {
	t.Parallel()

	for line, want := range map[string]string{
		"  dump   state:failed ":         "name~dump state:failed",
		`-"db dump"`:                     `-name~"db dump"`,
		`name:"a,b",c`:                   `name:"a,b",c`,
		`"say \"hi\" \\"`:                `name~"say \"hi\" \\"`,
		"next:<90m":                      "next:<1h30m",
		"next:>1w":                       "next:>7d",
		"next:<2d12h":                    "next:<2d12h",
		"failures:=3":                    "failures:3",
		"tick:2026-11-27T03:00:00+01:00": "tick:2026-11-27T02:00Z",
		"label:a=b,c -label:d":           "label:a=b,c -label:d",
		"label:a!=b":                     "label:a!=b",
		"selector:a=b,!c":                `selector:"a=b,!c"`,
		"-selector:a":                    "-selector:a",
	} {
		q, err := ParseQueryLine(line)
		if err != nil || q.String() != want {
			t.Errorf("ParseQueryLine(%q) = %q, %v, want %q", line, q, err, want)
		}
	}
}

func TestQueryLine_AboutRuns(t *testing.T) {
	t.Parallel()

	for line, want := range map[string]bool{
		"": false, "dump label:a next:<1h state:running,failing,paused": false,
		"state:failing,lost": true, "-last:none": true, "success:>1h": true, "duration:<1s": true, "lateness:>1s": true, "failures:0": true,
	} {
		q, err := ParseQueryLine(line)
		if err != nil || q.AboutRuns() != want {
			t.Errorf("%q: AboutRuns() = %t, %v, want %t", line, q.AboutRuns(), err, want)
		}
	}
}

// The answer of an owner that has not read the history yet is complete if it does not depend on it.
func TestQueryLine_NeedsHistory(t *testing.T) {
	t.Parallel()

	for line, want := range map[string]bool{
		"": false, "dump label:a selector:b next:<1h tick:2026-11-27T03:00Z state:running,waiting,idle,paused,overdue,unreadable": false,
		"state:failing": true, "-state:paused,failing": true, "state:failed": true, "last:none": true, "failures:0": true,
	} {
		q, err := ParseQueryLine(line)
		if err != nil || q.NeedsHistory() != want {
			t.Errorf("%q: NeedsHistory() = %t, %v, want %t", line, q.NeedsHistory(), err, want)
		}
	}
}

// A key range is read only if all tasks in it match, and no others.
func TestQueryLine_NameRange(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		line, namespace string
		ns, prefix      string
		ok              bool
	}{
		{"", "", "", "", true},
		{"", "prod", "prod", "", true},
		{"name:*", "", "", "", true},
		{"name:web-*", "prod", "prod", "web-", true},
		{"name:web-*", "", "", "web-", false}, // in every namespace
		{"name:prod/web-*", "", "prod", "web-", true},
		{"name:prod/web-*", "prod", "prod", "web-", true},
		{"name:prod/*", "", "prod", "", true},
		{"name:test/web-*", "prod", "test", "web-", false},
		{"name:p*/web-*", "", "p*", "web-", false},
		{"name:web-1", "prod", "prod", "web-1", false}, // an exact name
		{"name:web-*,db", "prod", "", "", false},
		{"name:w?b*", "prod", "prod", "w?b", false},
		{"name:*b*", "prod", "prod", "*b", false},
		{"-name:web-*", "prod", "", "", false},
		{"name~web-*", "prod", "", "", false},
		{"web-", "prod", "", "", false},
		{"name:web-* name:web-1*", "prod", "", "", false},
		{"name:web-* state:paused", "prod", "", "", false},
		{"namespace:web-*", "", "", "", false},
	} {
		q, err := ParseQueryLine(c.line)
		if err != nil {
			t.Fatal(err)
		}
		if ns, prefix, ok := q.NameRange(c.namespace); ok != c.ok || ok && (ns != c.ns || prefix != c.prefix) {
			t.Errorf("%q in %q: %q %q %t, want %q %q %t", c.line, c.namespace, ns, prefix, ok, c.ns, c.prefix, c.ok)
		}
	}
}

func TestQueryLine_ExactNames(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		line, namespace, want string
		ok                    bool
	}{
		{"name:a,b", "prod", "prod/a prod/b", true},
		{"name:test/a,b", "prod", "prod/b", true},
		{"name:test/a", "prod", "", true},
		{"name:test/a,prod/b", "", "test/a prod/b", true},
		{"name:a", "", "", false}, // in every namespace
		{"name:a,b*", "prod", "", false},
		{"", "prod", "", false},
		{"-name:a", "prod", "", false},
		{"name~a", "prod", "", false},
		{"name:a label:b", "prod", "", false},
	} {
		q, err := ParseQueryLine(c.line)
		if err != nil {
			t.Fatal(err)
		}

		names, ok := q.ExactNames(c.namespace)
		var got []string
		for _, n := range names {
			got = append(got, n[0]+"/"+n[1])
		}
		if ok != c.ok || strings.Join(got, " ") != c.want {
			t.Errorf("%q in %q: %q, %t, want %q, %t", c.line, c.namespace, got, ok, c.want, c.ok)
		}
	}
}

func TestQueryLine_MatchingAllocatesNothing(t *testing.T) {
	q, err := ParseQueryLine(`dump,x name:db-*,prod/*,db-dump namespace:p* selector:"team in (data, ops)" state:failed,running label:team=data,x label:a!=b next:<1h -tick:2026-11-27T03:00Z last:<1d success:>1h duration:>1s lateness:>1s failures:>=2 -state:paused -alert:any -notify:ops/pager`)
	if err != nil {
		t.Fatal(err)
	}

	f, r := Filter{Conditions: q.Conditions(), Receivers: q.Receivers()}, failedDump()
	a := &task.Alerts{Notify: []string{"slack"}}
	r.Schedule = parseTiming(t, task.Timing{Schedule: task.Schedules{"30 * * * *"}, Jitter: task.Duration(time.Minute)}, nowMS)
	r.Next = 1 // so that later ticks are searched
	if !f.matches(&r, a, nowMS) {
		t.Fatal("the row does not match")
	}
	if n := testing.AllocsPerRun(100, func() { f.matches(&r, a, nowMS) }); n != 0 {
		t.Errorf("%v allocations for a row, want none", n)
	}

	r.Schedule = parseTiming(t, task.Timing{Schedule: task.Schedules{"30 * * * *", "@every 7m"}}, nowMS)
	if n := testing.AllocsPerRun(100, func() { f.matches(&r, a, nowMS) }); n != 0 {
		t.Errorf("%v allocations for a row with two expressions, want none", n)
	}
}

func FuzzParseQueryLine(f *testing.F) {
	for _, seed := range []string{
		"state:failed label:team=data next:<1h name~dump", `-"a b" name:"x,y",z*`, "label:a!=,b success:>1d2h failures:3", `"\\" "\""`, "next:none -last:none tick:2026-11-27T03:00Z", "İ ~ : -:",
	} {
		f.Add(seed)
	}

	r := failedDump()
	f.Fuzz(func(t *testing.T, line string) {
		q, err := ParseQueryLine(line)
		if err != nil {
			return
		}

		matches := func(q QueryLine) bool {
			f := Filter{Conditions: q.Conditions()}
			return f.matches(&r, nil, nowMS)
		}

		text := q.String()
		if len(text) > MaxQueryLine {
			return
		}

		again, err := ParseQueryLine(text)
		if err != nil {
			t.Fatalf("%q became %q: %v", line, text, err)
		}
		if again.String() != text || matches(again) != matches(q) {
			t.Fatalf("%q became %q, and that %q", line, text, again)
		}
	})
}

// naiveTask is a task as a naive model of query lines sees it: with times and without limits.
type naiveTask struct {
	namespace, name  string
	labels           map[string]string
	next, end, good  *time.Duration // from now; nil: none
	took, late       time.Duration
	last             task.State
	active, waiting  int
	failures         int
	paused, failing  bool
	unreadable, know bool
}

// naiveTerm is a term with its meaning in the naive model.
type naiveTerm struct {
	text string
	// holds returns whether it holds, and whether that is known.
	holds func(n *naiveTask) (ok, known bool)
}

// drawTask draws a task and its row.
func drawTask(t *rapid.T) (*naiveTask, *Row) {
	n := &naiveTask{
		namespace: rapid.SampledFrom([]string{"a", "ab", "prod"}).Draw(t, "namespace"),
		name:      rapid.StringMatching(`[a-c]{1,4}`).Draw(t, "name"),
		labels:    rapid.MapOfN(rapid.SampledFrom([]string{"k", "l"}), rapid.SampledFrom([]string{"", "v", "w"}), 0, 2).Draw(t, "labels"),
		active:    rapid.IntRange(0, 1).Draw(t, "active"), waiting: rapid.IntRange(0, 1).Draw(t, "waiting"),
		failures: rapid.IntRange(0, 4).Draw(t, "failures"),
		paused:   rapid.Bool().Draw(t, "paused"), failing: rapid.Bool().Draw(t, "failing"), unreadable: rapid.Bool().Draw(t, "unreadable"),
		know: rapid.Bool().Draw(t, "know"),
	}

	minutes := func(low, high int, label string) *time.Duration {
		if rapid.Bool().Draw(t, label+" exists") {
			d := time.Duration(rapid.IntRange(low, high).Draw(t, label)) * time.Minute
			return &d
		}
		return nil
	}
	n.next, n.end, n.good = minutes(-5, 5, "next"), minutes(-5, 0, "end"), minutes(-5, 0, "good")

	if n.end != nil {
		n.last = rapid.SampledFrom([]task.State{task.Succeeded, task.Failed, task.TimedOut, task.Cancelled, task.Lost}).Draw(t, "last")
		n.took = time.Duration(rapid.IntRange(0, 5).Draw(t, "took")) * time.Minute
		n.late = time.Duration(rapid.IntRange(0, 5).Draw(t, "late")) * time.Minute
	}

	r := &Row{
		Name: n.namespace + "/" + n.name, Labels: n.labels, Active: Count(n.active), Waiting: Count(n.waiting), Failures: Count(n.failures),
		Duration: Milliseconds(n.took), Lateness: Milliseconds(n.late), Flags: OutcomeOf(n.last).flags(),
	}
	for at, d := range map[*int64]*time.Duration{&r.Next: n.next, &r.LastEnd: n.end} {
		if d != nil {
			*at = nowMS + d.Milliseconds()
		}
	}
	if n.good != nil {
		r.LastSuccess = Seconds(nowMS + n.good.Milliseconds())
	}
	for flag, set := range map[Flags]bool{Paused: n.paused, Failing: n.failing, Unreadable: n.unreadable, History: n.know} {
		if set {
			r.Flags |= flag
		}
	}

	return n, r
}

// drawTerm draws a term.
func drawTerm(t *rapid.T) naiveTerm {
	sign := rapid.SampledFrom([]string{"<", "<=", ">", ">="}).Draw(t, "sign")
	n := rapid.IntRange(0, 5).Draw(t, "n")
	limit := time.Duration(n) * time.Minute
	compare := func(v time.Duration) bool {
		return map[string]bool{"<": v < limit, "<=": v <= limit, ">": v > limit, ">=": v >= limit}[sign]
	}

	negate := func(d *time.Duration) *time.Duration {
		if d == nil {
			return nil
		}
		ago := -*d
		return &ago
	}
	span := sign + limit.String()
	certain := func(holds func(n *naiveTask) bool) func(*naiveTask) (bool, bool) {
		return func(n *naiveTask) (bool, bool) { return holds(n), true }
	}
	compared := func(d *time.Duration) bool { return d != nil && compare(*d) }
	endKnown := func(n *naiveTask) bool { return n.know || n.end != nil }

	text := rapid.StringMatching(`[a-c]{1,2}`).Draw(t, "text")
	key := rapid.SampledFrom([]string{"k", "l", "m"}).Draw(t, "label")
	values := rapid.SliceOfN(rapid.SampledFrom([]string{"", "v", "w"}), 1, 2).Draw(t, "values")
	list := strings.Join(values, ",")

	states := map[string]func(n *naiveTask) bool{
		"running": func(n *naiveTask) bool { return n.active > 0 }, "waiting": func(n *naiveTask) bool { return n.waiting > 0 },
		"idle": func(n *naiveTask) bool { return n.active+n.waiting == 0 }, "paused": func(n *naiveTask) bool { return n.paused },
		"failing": func(n *naiveTask) bool { return n.failing }, "unreadable": func(n *naiveTask) bool { return n.unreadable },
		"overdue": func(n *naiveTask) bool { return n.next != nil && *n.next < -2*time.Second },
	}
	state := rapid.SampledFrom(slices.Sorted(maps.Keys(states))).Draw(t, "state")
	outcome := rapid.SampledFrom([]task.State{task.Succeeded, task.Failed, task.TimedOut, task.Cancelled, task.Lost}).Draw(t, "outcome")

	return rapid.SampledFrom([]naiveTerm{
		{text, certain(func(n *naiveTask) bool { return strings.Contains(n.name, text) })},
		{"name:" + text + "*,prod/?" + text, certain(func(n *naiveTask) bool {
			long, _ := path.Match("?"+text, n.name)
			return strings.HasPrefix(n.name, text) || n.namespace == "prod" && long
		})},
		{"namespace:a,prod", certain(func(n *naiveTask) bool { return n.namespace != "ab" })},
		{"state:" + state, certain(states[state])},
		{"state:" + string(outcome), func(n *naiveTask) (bool, bool) { return n.last == outcome, endKnown(n) }},
		{"state:" + string(outcome) + "," + state, func(n *naiveTask) (bool, bool) {
			return n.last == outcome || states[state](n), endKnown(n) || states[state](n)
		}},
		{"label:" + key + ",k", certain(func(n *naiveTask) bool {
			_, a := n.labels[key]
			_, b := n.labels["k"]
			return a || b
		})},
		{"label:" + key + "=" + list, certain(func(n *naiveTask) bool { v, ok := n.labels[key]; return ok && slices.Contains(values, v) })},
		{"label:" + key + "!=" + list, certain(func(n *naiveTask) bool { v, ok := n.labels[key]; return !ok || !slices.Contains(values, v) })},
		{"next:none", certain(func(n *naiveTask) bool { return n.next == nil })},
		{"next:" + span, certain(func(n *naiveTask) bool { return compared(n.next) })},
		{"last:none", func(n *naiveTask) (bool, bool) { return n.end == nil, endKnown(n) }},
		{"last:" + span, func(n *naiveTask) (bool, bool) { return compared(negate(n.end)), endKnown(n) }},
		{"success:none", func(n *naiveTask) (bool, bool) { return n.good == nil, n.know || n.good != nil }},
		{"success:" + span, func(n *naiveTask) (bool, bool) {
			return compared(negate(n.good)) || n.good == nil && sign[0] == '>', n.know || n.good != nil
		}},
		{"duration:" + span, func(n *naiveTask) (bool, bool) { return n.end != nil && compare(n.took), endKnown(n) }},
		{"lateness:" + span, func(n *naiveTask) (bool, bool) { return n.end != nil && compare(n.late), endKnown(n) }},
		{"failures:" + sign + strconv.Itoa(n), func(task *naiveTask) (bool, bool) {
			// It is certain if it is the same for any greater number of failures.
			ok := compare(time.Duration(task.failures) * time.Minute)
			return ok, task.know || ok == compare(time.Hour)
		}},
	}).Draw(t, "term")
}

func TestQueryLine_AgreesWithNaiveModel(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		n, r := drawTask(t)
		want := true
		var line []string

		for range rapid.IntRange(0, 4).Draw(t, "terms") {
			term := drawTerm(t)
			text := term.text
			ok, known := term.holds(n)
			if rapid.Bool().Draw(t, "negated") {
				text, ok = "-"+text, !ok
			}

			line = append(line, text)
			want = want && ok && known
		}

		q, err := ParseQueryLine(strings.Join(line, " "))
		if err != nil {
			t.Fatal(err)
		}

		f := Filter{Conditions: q.Conditions()}
		if got := f.matches(r, nil, nowMS); got != want {
			t.Fatalf("%q matches %+v: %t, want %t", q, *n, got, want)
		}
	})
}

// BenchmarkQueryLine_ThousandRows measures what 1,000 rows cost with a query line of four terms.
func BenchmarkQueryLine_ThousandRows(b *testing.B) {
	names := "name:db-dump-0"
	for i := range MaxQueryNames - 1 {
		names += ",other-dump-" + strconv.Itoa(i)
	}

	for _, line := range []string{"state:failed label:team=data next:<1h name~dump", "name~dump", "name:*dump*", "name:db-dump-0", names} {
		b.Run(line[:min(len(line), 50)], func(b *testing.B) {
			q, err := ParseQueryLine(line)
			if err != nil {
				b.Fatal(err)
			}

			var x Index
			for i := range 1000 {
				r := failedDump()
				r.Name = "prod/db-dump-" + strconv.Itoa(i)
				x.Put(NoSlot, r, Details{}, nil)
			}

			query := Query{Filter: Filter{Conditions: q.Conditions()}, Order: ByName, Limit: 50, Now: nowMS}
			for b.Loop() {
				x.Scan(&query, 0, NewFirst(&query))
			}
		})
	}
}
