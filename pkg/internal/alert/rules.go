package alert

import (
	"cmp"
	"slices"

	"github.com/carillonhq/carillon/pkg/task"
)

// Rule is a rule with its parsed selector.
type Rule struct {
	task.AlertRule
	selector task.Selector
}

// CheckRule checks a rule completely. Its deadlines are in the time zones of the tasks.
func CheckRule(r *task.AlertRule) error {
	if err := r.Validate(); err != nil {
		return err
	}
	if r.Alerts.SuccessBy == "" {
		return nil
	}

	return CheckSuccessBy(r.Alerts.SuccessBy, task.Timing{Timezone: "UTC"})
}

// Rules are the rules of all namespaces at a revision. They never change.
//
// A rule says what is expected of the tasks that its selector matches and that have no alerts of their own, not even an empty block. If
// several rules match a task, the first one by name applies.
type Rules struct {
	Revision int64 // all changes up to there are known
	set      *ruleSet
}

// ruleSet holds the rules of each namespace by name.
type ruleSet struct {
	byNamespace map[string][]*Rule
	all         int // with those that cannot be parsed
}

// CompileRules returns rules that were read at a revision. former are those that were known before; a rule that has not changed stays the
// same, so that the rows of its tasks stay, too. A rule that cannot be parsed matches no task.
func CompileRules(list []task.AlertRule, revision int64, former *Rules) *Rules {
	set := &ruleSet{byNamespace: map[string][]*Rule{}, all: len(list)}
	isSame := former != nil && len(list) == former.set.all

	for i := range list {
		r := former.named(list[i].Namespace, list[i].Name)
		if r == nil || r.Revision != list[i].Revision {
			selector, err := task.ParseSelector(list[i].Selector)
			if err != nil {
				isSame = isSame && r == nil
				continue
			}
			r, isSame = &Rule{AlertRule: list[i], selector: selector}, false
		}
		set.byNamespace[r.Namespace] = append(set.byNamespace[r.Namespace], r)
	}

	if isSame {
		return &Rules{Revision: revision, set: former.set}
	}
	for _, rules := range set.byNamespace {
		slices.SortFunc(rules, func(a, b *Rule) int { return cmp.Compare(a.Name, b.Name) })
	}

	return &Rules{Revision: revision, set: set}
}

// named returns the rule with a name, or nil.
func (r *Rules) named(namespace, name string) *Rule {
	if r == nil {
		return nil
	}
	for _, rule := range r.set.byNamespace[namespace] {
		if rule.Name == name {
			return rule
		}
	}

	return nil
}

// AreNone reports whether there are no rules.
func (r *Rules) AreNone() bool { return len(r.set.byNamespace) == 0 }

// IsSame reports whether the rules are the same as others, also if the revision is later.
func (r *Rules) IsSame(other *Rules) bool {
	if r == nil || other == nil {
		return r == other
	}
	return r.set == other.set
}

// RuleOf returns the rule of a task that has no alerts of its own, or nil.
func (r *Rules) RuleOf(namespace string, labels map[string]string) *Rule {
	if r == nil {
		return nil
	}
	for _, rule := range r.set.byNamespace[namespace] {
		if rule.selector.Matches(labels) {
			return rule
		}
	}

	return nil
}

// AlertsOf returns what a rule expects of a task that has no alerts of its own; nil: nothing.
func (r *Rules) AlertsOf(namespace string, labels map[string]string) *task.Alerts {
	if rule := r.RuleOf(namespace, labels); rule != nil {
		return &rule.Alerts
	}
	return nil
}

// RuleOfEntry returns the rule of a task, or nil if none applies, or if the task has alerts of its own.
func (r *Rules) RuleOfEntry(namespace string, e *task.Entry) *Rule {
	if e == nil || e.Alerts != nil {
		return nil
	}
	return r.RuleOf(namespace, e.Labels)
}

// fits reports whether a rule can expect something of a task. A task with such a block of its own would be refused. Receivers are only
// watched by their own block: a rule for all tasks must not expect messages.
func (r *Rule) fits(e *task.Entry, kind task.AlertKind) bool {
	h := &e.History
	switch {
	case e.Receiver != nil, h.Keep > task.MaxAlertKept:
		return false
	case kind == task.AlertFailures:
		return r.Alerts.FailuresInARow() <= h.Keep
	case kind == task.AlertSuccessWithin || kind == task.AlertSuccessBy:
		isForgetful := h.Ledger != nil && *h.Ledger == 0
		if h.Record == task.RecordFailures && (isForgetful || !e.Schedule.HasTicks()) {
			return false
		}
		return kind == task.AlertSuccessWithin || !isForgetful || h.KeepFor > 0
	}

	return true
}
