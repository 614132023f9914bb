package wording

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// OverlapText describes the overlap policy with its limits.
func OverlapText(s task.Spec) string {
	switch {
	case s.Overlap == task.OverlapQueue:
		return fmt.Sprintf("queue, at most %d; when the queue is full, the %s tick is skipped", s.Queue.Room(), cmp.Or(s.Queue.Drop, task.DropNewest))
	case s.MaxActive > 0:
		return fmt.Sprintf("allow, at most %d at once", s.MaxActive)
	}

	return s.Overlap
}

// MissedPolicyText describes the policy for missed ticks.
func MissedPolicyText(m task.MissedPolicy) string {
	words := fmt.Sprintf("%s, grace %s, window %s", m.Policy, m.Grace, m.Window)
	if m.Policy == task.MissedAll {
		words += fmt.Sprintf(", at most %d", m.Limit)
	}
	return words
}

// RetryText describes the retry policy, or returns "none" for a single attempt.
func RetryText(r task.Retry) string {
	if r.Attempts <= 1 {
		return "none"
	}

	on := make([]string, len(r.On))
	for i, s := range r.On {
		on[i] = string(s)
	}

	if len(r.ExitCodes) > 0 {
		codes := strings.Trim(strings.ReplaceAll(fmt.Sprint(r.ExitCodes), " ", ", "), "[]")
		on[slices.Index(r.On, task.Failed)] = "failed with exit code " + codes
	}

	return fmt.Sprintf("%d attempts on %s; %s × %v up to %s, ± %v %%",
		r.Attempts, strings.Join(on, ", "), r.Backoff, r.Factor, r.MaxBackoff, r.Jitter*100)
}

// HistoryText describes which runs the history keeps, and for how long the ledger remembers ticks if the task says so.
func HistoryText(h task.History) string {
	words := fmt.Sprintf("the last %d runs", h.Keep)
	if h.Record == task.RecordFailures {
		words += " that did not succeed"
	}

	if h.KeepFor > 0 {
		words += fmt.Sprintf(", and those of the last %s", h.KeepFor.Approximate())
	}

	switch {
	case h.Ledger == nil:
	case *h.Ledger == 0:
		words += "; no ledger"
	default:
		words += fmt.Sprintf("; the ledger remembers ticks for %s", h.Ledger.Approximate())
	}

	return words
}

// CommandLine formats a command so that it can be pasted into a shell.
func CommandLine(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		if w == "" || strings.ContainsAny(w, " \t\n\"'`$\\|&;<>()*?[]{}~#!") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		out[i] = w
	}

	return strings.Join(out, " ")
}

// AcceptText describes what a manual run may give in addition to its task, or returns "" if that is nothing.
func AcceptText(a task.Accept) string {
	var words []string
	switch {
	case a.Args == 1:
		words = append(words, "1 argument")
	case a.Args > 1:
		words = append(words, "up to "+strconv.Itoa(a.Args)+" arguments")
	}

	if len(a.Env) > 0 {
		words = append(words, "variables "+strings.Join(a.Env, ", "))
	}
	if a.Target {
		words = append(words, "its node")
	}

	return strings.Join(words, "; ")
}

// PlaceText describes on which nodes a task runs.
func PlaceText(t task.Target) string {
	words := cmp.Or(t.Selector, "any node")

	switch t.Strategy {
	case task.StrategyAuto, "":
	case task.StrategyHash:
		words += ", by the hash of " + cmp.Or(t.Key, "its name")
	case task.StrategyFirst:
		words += ", the first of " + strings.Join(t.Order, ", ")
	default:
		words += ", " + t.Strategy
	}

	return words
}

// SuccessText describes when attempts succeed, or returns "" if only exit code 0 counts.
func SuccessText(s task.Success) string {
	if !s.Any() {
		return ""
	}

	codes := make([]string, len(s.ExitCodes))
	for i, code := range s.ExitCodes {
		codes[i] = strconv.Itoa(code)
	}

	words := []string{"exit code " + cmp.Or(strings.Join(codes, ", "), "0")}
	if s.Output != "" {
		words = append(words, "a line like "+task.Quote(s.Output))
	}

	if s.NotOutput != "" {
		words = append(words, "no line like "+task.Quote(s.NotOutput))
	}

	return strings.Join(words, "; ")
}

// OutputText describes a task's settings for output, or returns "" if there are none.
func OutputText(o task.Output) string {
	var words []string
	if o.Apart() {
		words = append(words, "separate streams")
	}

	if o.Limit > 0 {
		words = append(words, "the first "+o.Limit.String())
	}

	if o.Keep > 0 {
		words = append(words, "for "+o.Keep.String())
	}

	if !o.MasksSecrets() {
		words = append(words, "secrets not masked")
	}

	if o.Raw() {
		words = append(words, "not compressed")
	}

	return strings.Join(words, ", ")
}

// PartsOfRunsText describes the parts of a task's runs, or returns "" if they have none.
func PartsOfRunsText(t task.Target) string {
	if !t.FansOut() {
		return ""
	}

	var words string

	switch {
	case t.Parts > 0:
		words = strconv.Itoa(t.Parts)
	case t.Count == task.All:
		words = "one on every matching node"
	default:
		words = fmt.Sprintf("one on each of %d nodes", t.Count)
	}

	then := ", "

	if t.Stagger > 0 {
		words += fmt.Sprintf(", %s apart", t.Stagger)
	}

	if strings.Contains(words, " ") {
		then = "; "
	}

	return fmt.Sprintf("%s%s%s must succeed", words, then, cmp.Or(string(t.Succeed), "all"))
}

// ScheduleText returns the schedules of a task with the last part of the name of its zone, unless that is UTC.
func ScheduleText(s task.Spec) string {
	words := OneLine(strings.Join(s.Schedule, ", "))
	if s.Timezone == "" || s.Timezone == "UTC" {
		return words
	}
	return words + " " + strings.ReplaceAll(OneLine(s.Timezone[strings.LastIndex(s.Timezone, "/")+1:]), "_", " ")
}

// IsManual reports whether a task runs only when it is triggered.
func IsManual(s task.Spec) bool { return len(s.Schedule) == 1 && s.Schedule[0] == "@manual" }

// PausedBy names who has paused a task, or what: "ann", "after failures". It returns "" if that is not known.
func PausedBy(p *task.Pause) string {
	switch {
	case p == nil:
		return ""
	case p.By == task.PausedByFailures:
		return "after failures"
	}

	return OneLine(task.ActorName(p.By))
}
