package wording

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// TaskFields returns the fields of a task that are set, and those whose defaults people need to know, except for its names,
// its schedule and the times between which it runs. A value can have several lines.
func TaskFields(t client.Task) []Field {
	var list fields
	if std := task.Defaults().DST; t.DST != std && t.DST != (task.DST{}) {
		list.add("Clock changes", fmt.Sprintf("gap %s, fold %s", cmp.Or(t.DST.Gap, std.Gap), cmp.Or(t.DST.Fold, std.Fold)))
	}
	list.add("After", AfterText(t.Spec))
	if t.Shadow {
		list.add("Shadow", fmt.Sprintf("its ticks are recorded but start nothing; end it with: carillon task update %s --set shadow=false", t.Name))
	}
	if t.Jitter > 0 {
		list.add("Jitter", "up to "+t.Jitter.String())
	}
	if t.MaxRuns > 0 {
		list.add("Runs", RunsLeftText(t))
	}
	if t.TTL > 0 {
		list.add("Deleted", fmt.Sprintf("%s after its last run, when no ticks are left", t.TTL))
	}

	list = append(list, actionFields(t.Action)...)
	if t.Action.Workflow != nil {
		list.add("Timeout", task.FlowTimeout(t.Timeout).String()+" for the whole run")
	} else if t.Action.HTTP != nil {
		list.add("Timeout", cmp.Or(t.Timeout, task.DefaultHTTPTimeout).String())
	} else if t.Timeout > 0 {
		list.add("Timeout", fmt.Sprintf("%s, then %s, then SIGKILL after %s", t.Timeout, cmp.Or(t.KillSignal, task.DefaultKillSignal), t.KillGrace))
	}

	list.add("Success", SuccessText(t.Success))
	list.add("Output", OutputText(t.Output))
	list.add("Overlap", OverlapText(t.Spec))
	if len(t.After) == 0 || t.Schedule.HasTicks() {
		list.add("Missed", MissedPolicyText(t.Missed))
	}
	if t.Deadline > 0 {
		list.add("Start deadline", fmt.Sprintf("%s after it falls due", t.Deadline))
	}

	list.add("Retry", RetryText(t.Retry))
	if t.PauseAfter > 0 {
		words := "a run has failed"
		if t.PauseAfter > 1 {
			words = fmt.Sprintf("%d runs in a row have failed", t.PauseAfter)
		}
		if t.Failures > 0 {
			words += fmt.Sprintf("; %d have", t.Failures)
		}
		list.add("Pauses when", words)
	}

	list.add("Runs on", PlaceText(t.Target))
	list.add("Parts", PartsOfRunsText(t.Target))
	list.add("History", HistoryText(t.History))
	list.add("Manual runs give", AcceptText(t.Accept))
	list.add("Alerts when", AlertsText(t.Alerts))
	list.add("Receives", ReceiverText(t.Receiver))
	list.add("Metrics", metricsText(t.Metrics))

	return list
}

// metricsText describes what a task says about metrics of its own, or returns "" if its namespace decides.
func metricsText(has *bool) string {
	switch {
	case has == nil:
		return ""
	case *has:
		return "of its own"
	}

	return "none of its own"
}

// AlertsText describes what is expected of a task and whom its alerts notify, or returns "" if nothing is.
func AlertsText(a *task.Alerts) string {
	if a == nil {
		return ""
	}

	var words []string
	switch n := a.FailuresInARow(); {
	case n == 1:
		words = append(words, "a run fails")
	case n > 1:
		words = append(words, fmt.Sprintf("%d runs in a row fail", n))
	}
	if a.SuccessWithin > 0 {
		words = append(words, "no run succeeds within "+a.SuccessWithin.String())
	}
	if a.SuccessBy != "" {
		words = append(words, "the newest tick has not succeeded by "+a.SuccessBy)
	}
	if a.MaxLateness > 0 {
		words = append(words, "a tick has not started within "+a.MaxLateness.String())
	}
	if a.MaxDuration > 0 {
		words = append(words, "a run takes longer than "+a.MaxDuration.String())
	}
	if a.MaxPause > 0 {
		words = append(words, "a person pauses it for longer than "+a.MaxPause.String())
	}

	return cmp.Or(strings.Join(words, ", or "), "never") + "; notifies " + cmp.Or(strings.Join(a.Notify, ", "), "nobody")
}

// ReceiverText describes what a receiver of alerts gets, or returns "" if the task is none.
func ReceiverText(r *task.Receiver) string {
	if r == nil {
		return ""
	}

	words := "alerts of its namespace"
	if len(r.From) > 0 {
		words += " and of " + strings.Join(r.From, ", ")
	}
	words += ", after " + task.Duration(r.OpenFor()).String()

	if repeat := r.RepeatAfter(); repeat > 0 {
		words += ", and again after " + task.Duration(repeat).String()
	}
	if !r.AllowsOutput() {
		words += ", without output"
	}

	return words
}

// RunsLeftText describes how many runs are left of the maximum number.
func RunsLeftText(t client.Task) string {
	return fmt.Sprintf("%d of %s left", max(t.MaxRuns-t.Counted, 0), Plural(int64(t.MaxRuns), "run"))
}

// actionFields returns the fields of the request or the process of a task, or that it has none.
func actionFields(a task.Action) []Field {
	if a.HTTP != nil {
		return HTTPFields(a.HTTP)
	}

	if a.Workflow != nil {
		return workflowFields(a.Workflow)
	}

	p := a.Process
	if p == nil {
		return []Field{{Name: "Does", Value: "nothing (noop)"}}
	}

	var list fields
	if p.Shell != "" {
		list.addCode("Shell", strings.TrimRight(p.Shell, "\n"))
	} else {
		list.addCode("Command", CommandLine(p.Command))
	}

	list.addCode("Environment", pairLines("%s=%s", p.Env))
	var from []string
	for _, f := range p.EnvFrom {
		from = append(from, f.Source())
	}
	list.addCode("Environment from", strings.Join(from, "\n"))
	if p.Stdin != nil {
		list.addCode("Standard input", p.Stdin.Source())
	}

	list.addCode("Directory", p.Dir)
	list.addCode("User", p.User)
	list.addCode("Group", p.Group)
	if p.Groups != nil {
		list.addCode("Groups", cmp.Or(strings.Join(p.Groups, ", "), "none"))
	}

	list.add("Umask", p.Umask)
	if p.Nice != 0 {
		list.add("Nice", strconv.Itoa(p.Nice))
	}
	list.add("I/O", p.IONice)

	var confined []string
	for _, is := range []struct {
		yes  bool
		word string
	}{{p.NoNewPrivs, "no new privileges"}, {p.PrivateTmp, "a /tmp of its own"}, {p.Scratch, "a scratch directory"}} {
		if is.yes {
			confined = append(confined, is.word)
		}
	}
	list.add("Confined", strings.Join(confined, ", "))
	list.add("Limits", limitsText(p.Limits))
	if p.Enforce == task.EnforceReport {
		list.add("Enforce", "what a node cannot enforce is reported")
	}

	return list
}

// limitsText describes the limits that are set, in the order of their declaration.
func limitsText(l task.Limits) string {
	var words []string
	v := reflect.ValueOf(l)

	for _, field := range reflect.VisibleFields(v.Type()) {
		f := v.FieldByIndex(field.Index)
		if f.IsZero() {
			continue
		}
		if f.Kind() == reflect.Pointer {
			f = f.Elem()
		}

		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		words = append(words, fmt.Sprint(strings.ReplaceAll(name, "_", " "), " ", f.Interface()))
	}

	return strings.Join(words, ", ")
}

// OverlapText describes the overlap policy with its limits.
func OverlapText(s task.Spec) string {
	switch {
	case s.Overlap == task.OverlapQueue:
		what := "tick"
		if len(s.After) > 0 && !s.Schedule.HasTicks() {
			what = "ended run of a source"
		}
		return fmt.Sprintf("queue, at most %d; when the queue is full, the %s %s is skipped", s.Queue.Room(), cmp.Or(s.Queue.Drop, task.DropNewest), what)
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
	words := "the last run"
	if h.Keep != 1 {
		words = fmt.Sprintf("the last %d runs", h.Keep)
	}
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
	if s.IsZero() {
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

	if len(o.Mail) > 0 {
		text := "mailed to " + strings.Join(o.Mail, ", ")
		if o.MailFrom != "" {
			text += " from " + o.MailFrom
		}
		if o.MailWhen == task.MailWhenFailure {
			text += " after failures"
		}
		words = append(words, text)
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

// AfterText says after which ends of which tasks a task runs, a line for each, with the results that it gets: etl has succeeded,
// with its results rows. It returns "" for other tasks.
func AfterText(s task.Spec) string {
	lines := make([]string, len(s.After))
	for i, source := range s.After {
		lines[i] = source.Describe()
		if len(source.Results) > 0 {
			lines[i] += ", with its results " + strings.Join(source.Results, ", ")
		}
	}

	return strings.Join(lines, "\n")
}

// DependentsText names the tasks that run after a task, with the ends that start them: report, ticket if it has failed. It returns
// "" for none.
func DependentsText(list []client.Dependent) string {
	const most = 8

	var words []string
	for _, d := range list[:min(len(list), most)] {
		switch d.When {
		case task.WhenFailed:
			words = append(words, d.Task+" if it has failed")
		case task.WhenEnded:
			words = append(words, d.Task+" in any case")
		default:
			words = append(words, d.Task)
		}
	}
	if n := len(list) - most; n > 0 {
		words = append(words, fmt.Sprintf("%d more", n))
	}

	return strings.Join(words, ", ")
}

// CausesOf names the runs that have started a run, a line for each: run 20261120T… of etl: succeeded.
func CausesOf(r task.Run) string {
	lines := make([]string, len(r.Causes))
	for i, c := range r.Causes {
		lines[i] = fmt.Sprintf("run %s of %s: %s", c.Run, c.Task, strings.ReplaceAll(string(c.State), "_", " "))
	}

	return strings.Join(lines, "\n")
}

// WithoutTicks says when a task runs that has no ticks: "after etl", "when triggered", or "at boot". It returns "" if the task has
// ticks.
func WithoutTicks(s task.Spec) string {
	switch {
	case s.Schedule.AtBoot():
		return "at boot"
	case !s.Schedule.HasTicks() && len(s.After) > 1:
		return fmt.Sprintf("after %s and %d more", s.After[0].Task, len(s.After)-1)
	case !s.Schedule.HasTicks() && len(s.After) > 0:
		return "after " + s.After[0].Task
	case !s.Schedule.HasTicks():
		return "when triggered"
	}

	return ""
}

// PausedBy names who has paused a task, or what: "ann", "after failures". It returns "" if that is not known.
func PausedBy(p *task.Pause) string {
	switch {
	case p == nil:
		return ""
	case p.By.Is(task.PausedByFailures):
		return "after failures"
	}

	return OneLine(p.By.Name())
}
