package alert

import (
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func ruleNamed(name, selector string, revision int64) task.AlertRule {
	return task.AlertRule{Namespace: "shop", Name: name, Selector: selector, Alerts: task.Alerts{Notify: []string{name}}, Revision: revision}
}

// The first rule by name applies, to tasks without alerts of their own.
func TestRules_TheFirstByNameApplies(t *testing.T) {
	t.Parallel()

	r := CompileRules([]task.AlertRule{ruleNamed("b", "", 1), ruleNamed("a", "team=data", 2), ruleNamed("0", "team=(", 3), {Namespace: "web", Name: "a"}}, 3, nil)
	for name, c := range map[string]struct {
		entry     task.Entry
		namespace string
		want      string
	}{
		"both match":           {task.Entry{Labels: map[string]string{"team": "data"}}, "shop", "a"},
		"one matches":          {task.Entry{}, "shop", "b"},
		"alerts of its own":    {task.Entry{Alerts: &task.Alerts{}}, "shop", ""},
		"another namespace":    {task.Entry{}, "web", "a"},
		"an unknown one":       {task.Entry{}, "shop-1", ""},
		"other values":         {task.Entry{Labels: map[string]string{"team": "web"}}, "shop", "b"},
		"an entry with labels": {task.Entry{Labels: map[string]string{"team": "data", "x": "y"}}, "shop", "a"},
	} {
		got := ""
		if rule := r.RuleOfEntry(c.namespace, &c.entry); rule != nil {
			got = rule.Name
		}
		if got != c.want {
			t.Errorf("%s: rule %q, want %q", name, got, c.want)
		}
	}

	var none *Rules
	if none.RuleOf("shop", nil) != nil || none.AlertsOf("shop", nil) != nil {
		t.Error("a rule is known before rules are read")
	}
}

// A rule that has not changed is the same one, so that the rows of its tasks need not be judged again.
func TestCompileRules_KeepsWhatHasNotChanged(t *testing.T) {
	t.Parallel()

	list := []task.AlertRule{ruleNamed("a", "team=data", 1), ruleNamed("b", "", 2)}
	first := CompileRules(list, 2, nil)
	same := CompileRules(list, 9, first)
	if !same.IsSame(first) || same.Revision != 9 {
		t.Errorf("unchanged rules are new, at revision %d", same.Revision)
	}

	list[1].Revision = 10
	changed := CompileRules(list, 10, same)
	labels := map[string]string{"team": "data"}
	if changed.IsSame(first) || changed.AlertsOf("shop", labels) != first.AlertsOf("shop", labels) || changed.AlertsOf("shop", nil) == first.AlertsOf("shop", nil) {
		t.Error("the rule that has changed is not the only new one")
	}
	if less := CompileRules(list[:1], 11, changed); less.IsSame(changed) || less.AreNone() || less.AlertsOf("shop", nil) != nil {
		t.Error("a deleted rule still applies")
	}

	// One that cannot be parsed changes nothing, unless it could be parsed before.
	broken := append(slices.Clone(list), ruleNamed("c", "a=(", 12))
	with := CompileRules(broken, 12, nil)
	if again := CompileRules(broken, 13, with); !again.IsSame(with) {
		t.Error("rules are new at each revision, because one of them cannot be parsed")
	}
	broken[1] = ruleNamed("b", "a=(", 14)
	if less := CompileRules(broken, 14, with); less.IsSame(with) || less.AlertsOf("shop", nil) != nil {
		t.Error("a rule still applies after it was changed to one that cannot be parsed")
	}
}

// Alerts of a rule open and close like those of a block. They close when the rule does not apply any more.
func TestDecide_OfRules(t *testing.T) {
	t.Parallel()

	failed := func() *facts {
		f := watched("0 * * * *", task.Alerts{}).tick("2026-11-24 01:00:00", task.Failed, "2026-11-24 01:00:03")
		f.entry.Alerts, f.entry.History.Keep = nil, 20
		return f
	}
	rule := func(change func(a *task.Alerts)) *Rule {
		r := &Rule{AlertRule: ruleNamed("nightly", "", 7)}
		r.Alerts.Notify = []string{"slack", "sync"} // sync is the task itself
		if change != nil {
			change(&r.Alerts)
		}
		return r
	}
	open := &task.Alert{UID: testUID, Rule: "nightly", Notify: []string{"shop/slack"}}
	set := func(n int) func(a *task.Alerts) { return func(a *task.Alerts) { a.Failures = &n } }

	for name, c := range map[string]struct {
		facts   *facts
		rule    *Rule
		current *task.Alert
		opens   bool
		rewrite bool
		why     task.AlertReason
		by      string
	}{
		"a rule":                       {facts: failed(), rule: rule(nil), opens: true},
		"no rule":                      {facts: failed()},
		"alerts of its own":            {facts: failed().change(func(e *task.Entry) { e.Alerts = &task.Alerts{Failures: new(0)} }), rule: rule(nil)},
		"a receiver":                   {facts: failed().change(func(e *task.Entry) { e.Receiver = &task.Receiver{} }), rule: rule(nil)},
		"a long history":               {facts: failed().change(func(e *task.Entry) { e.History.Keep = 501 }), rule: rule(nil)},
		"more failures than are kept":  {facts: failed().change(func(e *task.Entry) { e.History.Keep = 1 }), rule: rule(set(2))},
		"open, and the rule applies":   {facts: failed(), rule: rule(nil), current: open},
		"open, other receivers":        {facts: failed(), rule: rule(func(a *task.Alerts) { a.Notify = []string{"mail"} }), current: open, rewrite: true},
		"open, the rule expects less":  {facts: failed(), rule: rule(set(0)), current: open, why: task.AlertNotWatched},
		"open, the rule is gone":       {facts: failed(), current: open, why: task.AlertNotWatched},
		"open, and exempt now":         {facts: failed().change(func(e *task.Entry) { e.Alerts = &task.Alerts{Failures: new(0)} }), rule: rule(nil), current: open, why: task.AlertNotWatched, by: "ann"},
		"open, and expected by itself": {facts: failed().change(func(e *task.Entry) { e.Alerts = &task.Alerts{Notify: []string{"slack"}} }), rule: rule(nil), current: open, rewrite: true},
	} {
		e := c.facts.evidence()
		e.Rule, e.Spec = c.rule, &c.facts.spec
		for i := range e.Records {
			e.Records[i].IsRead, e.Records[i].Run = true, &c.facts.ends[e.Records[i].Mod-1]
		}

		now := berlin("2026-11-24 01:10:00")
		v, needs := Evaluate(e, task.AlertFailures, c.current, now)
		if needs.Any() {
			t.Fatalf("%s: %+v is needed", name, needs)
		}

		change := Decide(e, task.AlertFailures, c.current, v, now)
		got, by := task.AlertReason(""), ""
		if change != nil && change.Alert.Closed != nil {
			got, by = change.Alert.Closed.Why, change.Alert.Closed.By.String()
		}
		if opens := change != nil && change.Opens; opens != c.opens || got != c.why || by != c.by || (change != nil) != (c.opens || c.rewrite || c.why != "") {
			t.Errorf("%s: %+v", name, change)
		}
		if c.opens && (change.Alert.Rule != "nightly" || len(change.Alert.Notify) != 1 || change.Alert.Notify[0] != "shop/slack") {
			t.Errorf("%s: %+v", name, change.Alert)
		}
	}
}

func TestCheckRule(t *testing.T) {
	t.Parallel()

	for want, r := range map[string]task.AlertRule{
		"": {Name: "a", Namespace: "shop", Selector: "team=data", Alerts: task.Alerts{Failures: new(100), SuccessWithin: task.Duration(time.Hour), SuccessBy: "0 6 * * *"}},
		`name: "A": use a-z, 0-9, '.', '_' and '-', beginning and ending with a letter or digit; "a" would be allowed`:          {Name: "A", Namespace: "shop"},
		"alerts: expects nothing, so the rule has no effect; delete it, or set failures, success_within or another expectation": {Name: "a", Namespace: "shop", Alerts: task.Alerts{Failures: new(0)}},
		"alerts.success_within: 1s is not between 1m and 8784h":                                                                 {Name: "a", Namespace: "shop", Alerts: task.Alerts{SuccessWithin: task.Duration(time.Second)}},
		`alerts.success_by: "@manual" is not a cron expression, such as "0 6 * * *"`:                                            {Name: "a", Namespace: "shop", Alerts: task.Alerts{SuccessBy: "@manual"}},
	} {
		got := ""
		if err := CheckRule(&r); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
