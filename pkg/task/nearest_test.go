package task

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestErrors_SuggestTheNearestRightThing checks the suggestions for common mistakes.
func TestErrors_SuggestTheNearestRightThing(t *testing.T) {
	duration := func(text string) error { _, err := ParseDuration("timeout", text); return err }
	spec := func(doc string) error {
		s, err := DecodeSpec([]byte(doc))
		if err == nil {
			err = s.Validate()
		}
		return err
	}

	selector := func(text string) error { _, err := ParseSelector(text); return err }
	name := func(text string) error { return CheckName("name", text) }
	label := func(text string) error { return CheckLabels("labels", map[string]string{text: "x"}) }
	value := func(text string) error { return CheckLabels("labels", map[string]string{"k": text}) }
	const noop = `{"name": "a", "schedule": "@daily", "action": {"noop": {}}`
	for _, c := range []struct {
		err  error
		want string
	}{
		{duration("10 secs"), `timeout: "10 secs" is not a duration; did you mean "10s"?`},
		{duration("5min"), `did you mean "5m"?`},
		{duration("1 day"), `did you mean "24h"?`},
		{duration("1 day 12 hours"), `did you mean "36h"?`},
		{duration("1h, 30 minutes and 5 seconds"), `did you mean "1h30m5s"?`},
		{duration("90"), `did you mean "1m30s"?`},
		{duration("2 weeks"), `did you mean "336h"?`},
		{duration("PT5M"), `did you mean "5m"?`},
		{duration("10 secnods"), `did you mean "10s"?`},
		{duration("1.5 hours"), `did you mean "1h30m"?`},
		{duration("soon"), `is not a duration, such as 90s, 10m, 1h30m or 2d`},
		{duration("10 parsecs"), `is not a duration, such as 90s`},
		{duration(""), `"" is not a duration, such as`},
		{duration("999999999w"), `is not a duration, such as`},
		{spec(`{"nmae": "a"}`), `nmae: is not a field; did you mean name?`},
		{spec(`{"scheduel": "@daily"}`), `scheduel: is not a field; did you mean schedule?`},
		{spec(`{"retry": {"atempts": 3}}`), `retry.atempts: is not a field; did you mean attempts?`},
		{spec(`{"maxRuns": 3}`), `maxRuns: is not a field; did you mean max_runs?`},
		{spec(`{"backoff": "3s"}`), `backoff: is not a field here; did you mean retry.backoff?`},
		{spec(`{"command": ["a"]}`), `command: is not a field here; did you mean action.process.command?`},
		{spec(`{"colour": "red"}`), `colour: is not a field`},
		{spec(noop + `, "overlap": "skpi"}`), `overlap: "skpi" is not one of skip, queue, replace, allow; did you mean skip?`},
		{spec(noop + `, "missed": {"policy": "newest"}}`), `missed.policy: "newest" is not one of latest, skip, all`},
		{spec(noop + `, "retry": {"on": ["timedout"]}}`), `retry.on[0]: "timedout" is not one of failed, timed_out, lost; did you mean timed_out?`},
		{spec(noop + `, "history": {"record": "failure"}}`), `did you mean failures?`},
		{name("Nightly_Backup"), `beginning and ending with a letter or digit; "nightly_backup" would be allowed`},
		{name("_private"), `"private" would be allowed`},
		{name("my task!"), `"my-task" would be allowed`},
		{name("a..b"), `two dots in a row are not allowed; "a.b" would be allowed`},
		{name("-"), `beginning and ending with a letter or digit`},
		{label("team name"), `is not a label key: letters, digits, '.', '_', '-' and '/', at most 63 bytes; "team-name" would be allowed`},
		{value("Müller & Co"), `"M-ller-Co" would be allowed`},
		{selector("team: data"), `did you mean "team = data"?`},
		{selector("env in a"), `did you mean "env in (a)"?`},
		{selector("env in [a b]"), `k or !k`},
		{selector("env not in (a, b)"), `did you mean "env notin (a, b)"?`},
		{selector("a = b and c = d"), `did you mean "a = b, c = d"?`},
		{selector("a=b c=d"), `did you mean "a=b, c=d"?`},
		{selector("a <> b"), `did you mean "a != b"?`},
		{selector("not gpu"), `did you mean "!gpu"?`},
		{selector("team = 'data'"), `label value`},
		{selector("disk_free => 10Gi"), `did you mean "disk_free >= 10Gi"?`},
		{selector("cpus ≥ 8"), `did you mean "cpus >= 8"?`},
		{selector("disk_free > 10 GB"), `did you mean "disk_free > 10GB"?`},
		{selector("load1 below 4"), `did you mean "load1 < 4"?`},
		{selector("memory free > 1Gi"), `did you mean "memory_free > 1Gi"?`},
		{selector("10Gi < disk_free"), `did you mean "disk_free > 10Gi"?`},
		{selector("role = db and load1 < 4"), `did you mean "role = db, load1 < 4"?`},
		{selector("diskFree > 10Gi"), `"diskFree" is not a fact of nodes; did you mean disk_free?`},
		{selector("free-memory >= 1Gi"), `did you mean memory_free?`},
		{selector("disk_free > 10%"), `"10%" is not a number to compare "disk_free" with: use 4, 0.5, 10Gi or 500M`},
		{selector("cpus > eight"), `"eight" is not a number`},
	} {
		switch {
		case c.err == nil:
			t.Errorf("nothing is refused where %q was expected", c.want)
		case !strings.Contains(c.err.Error(), c.want):
			t.Errorf("got  %s\nwant … %s", c.err, c.want)
		case strings.HasSuffix(c.want, "?") != strings.HasSuffix(c.err.Error(), "?"):
			t.Errorf("a suggestion, or none: %s", c.err)
		}
	}
}

// TestErrors_WhatIsAllowedIsAllowed: a suggested name is a valid one.
func TestErrors_WhatIsAllowedIsAllowed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		if name := suggestName(text); name != "" && CheckName("name", name) != nil {
			t.Errorf("%q for %q: %v", name, text, CheckName("name", name))
		}

		if key := reshapeName(text, "._-/", MaxLabel); key != "" && checkLabelKey(key) != nil {
			t.Errorf("%q for %q: %v", key, text, checkLabelKey(key))
		}

		if value := reshapeName(text, "._-", MaxLabel); checkLabelValue(value) != nil {
			t.Errorf("%q for %q: %v", value, text, checkLabelValue(value))
		}
	})
}

func TestNearest_FindsWhatWasMeant(t *testing.T) {
	words := []string{"list", "lint", "get", "next", "delete", "resume", "nightly-backup", "export", "history", "logout", "metrics", "top"}

	for typed, want := range map[string]string{"lsit": "list", "lst": "list", "del": "delete", "GET": "get", "nigthly-backup": "nightly-backup",
		"resmue": "resume", "undelete": "", "unresume": "", "xyz": "", "": "", "q": "",
		"expotr": "export", "logot": "logout", "nightli-backup": "nightly-backup",
		// These are words of their own, and mean something else.
		"rename": "", "restore": "", "import": "", "rollout": "", "retries": "", "job": "", "context": "", "put": "", "set": "", "new": "", "test": "", "lift": "", strings.Repeat("a", 1000): ""} {
		if got := Nearest(typed, words); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", typed, got, want)
		}
	}
}

// TestNearest_AgreesWithDistanceByDefinition compares Nearest with the definition of edit distance.
func TestNearest_AgreesWithDistanceByDefinition(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"abc", "abd", 2}, {"kitten", "sitting", 5}, {"ca", "abc", 3}, {"lsit", "list", 1}} {
		if got := editDistance(c.a, c.b); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
