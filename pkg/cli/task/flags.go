package task

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/task"
)

// taskFlags are the fields of a task as flags. The given flags become a JSON merge patch. create applies it to
// the defaults, update sends it, so that a flag means the same for both.
type taskFlags struct {
	labels, env, limits []string

	noop  bool
	shell string
	http  httpFlags
}

// taskFlag is a flag that sets one field.
type taskFlag struct {
	name  string
	path  string // of the field, separated by dots
	value any    // "", 0, false, []string{} or []int{}; defines the type of the flag
	help  string
}

// taskFields are the flags for fields.
var taskFields = []taskFlag{
	{"schedule", "schedule", []string{}, "`EXPR`: cron (5 or 6 fields), @hourly and the like, @every 90s, @at TIME, @in 10m, @manual; may be repeated"},
	{"timezone", "timezone", "", "time `ZONE` of the schedule, for example Europe/Berlin (default UTC)"},
	{"dst-gap", "dst.gap", "", "`POLICY` for ticks whose local time does not exist: run-after (default) or skip"},
	{"dst-fold", "dst.fold", "", "`POLICY` for ticks whose local time exists twice: first (default) or both"},
	{"start", "start", "", "no ticks before this `TIME`: RFC 3339, or local in the schedule's zone"},
	{"end", "end", "", "no ticks after this `TIME`"},
	{"jitter", "jitter", "", "delay each tick by up to this `DURATION`, but never past the next tick"},
	{"max-runs", "max_runs", 0, "stop after `N` ticks have run (default: no limit)"},
	{"ttl", "ttl", "", "delete the task this `DURATION` after its schedule has ended (default: never)"},
	{"description", "description", "", "`TEXT` that describes the task"},
	{"stdin", "action.process.stdin.text", "", "`TEXT` of the standard input (default: empty)"},
	{"stdin-secret", "action.process.stdin.secret", "", "read the standard input from this value of a secret, `NAME/KEY`"},
	{"stdin-file", "action.process.stdin.file", "", "read the standard input from this `FILE` on the node, opened as the process's user"},
	{"dir", "action.process.dir", "", "working `DIRECTORY` (default: the user's home)"},
	{"user", "action.process.user", "", "run as this `USER` (default: the node's default_user)"},
	{"group", "action.process.group", "", "run with this `GROUP` (default: the user's own)"},
	{"groups", "action.process.groups", []string{}, "run with these supplementary `GROUPS` (default: the user's)"},
	{"umask", "action.process.umask", "", "set the umask to this octal `MASK`, such as 027"},
	{"nice", "action.process.nice", 0, "set the niceness to `N`, from -20 (highest priority) to 19"},
	{"ionice", "action.process.ionice", "", "set the I/O scheduling `CLASS`: idle, best-effort or realtime, optionally with a level, such as best-effort/7"},
	{"no-new-privs", "action.process.no_new_privs", false, "do not let the process gain privileges, for example from setuid programs"},
	{"private-tmp", "action.process.private_tmp", false, "give each attempt its own empty /tmp and /var/tmp, and delete them when it ends"},
	{"scratch", "action.process.scratch", false, "give each attempt its own empty working directory, and delete it when it ends"},
	{"enforce", "action.process.enforce", "", "`MODE` for limits and isolation settings that a node cannot enforce: require (fail, the default) or report (run anyway)"},
	{"timeout", "timeout", "", "kill an attempt that runs longer than this `DURATION`, such as 10m (does not change the 30s limit of calls to the server)"},
	{"kill-grace", "kill_grace", "", "`DURATION` between the kill signal and SIGKILL (default 10s)"},
	{"kill-signal", "kill_signal", "", "`SIGNAL` that asks the process to stop (default SIGTERM)"},
	{"success-exit-codes", "success.exit_codes", []int{}, "exit `CODES` that count as success (default 0)"},
	{"success-output", "success.output", "", "succeed only if a line of output matches this `PATTERN` (RE2 syntax)"},
	{"success-not-output", "success.not_output", "", "fail if a line of output matches this `PATTERN` (RE2 syntax)"},
	{"overlap", "overlap", "", "`POLICY` for ticks that fall due while a run is active: skip (default), queue, replace or allow"},
	{"queue-limit", "queue.limit", 0, "with --overlap queue: let at most `N` ticks wait (default 10)"},
	{"queue-drop", "queue.drop", "", "with --overlap queue: skip this `TICK` when the queue is full: newest (default) or oldest"},
	{"max-active", "max_active", 0, "with --overlap allow: let at most `N` runs be active at the same time (default: no limit)"},
	{"missed", "missed.policy", "", "`POLICY` for ticks that are discovered late: latest (default), skip or all"},
	{"missed-grace", "missed.grace", "", "treat ticks that are at most this `DURATION` late as on time (default 10s)"},
	{"missed-window", "missed.window", "", "do not run ticks that are older than this `DURATION` (default 1h)"},
	{"missed-limit", "missed.limit", 0, "with --missed all: run at most the newest `N` ticks (default 100)"},
	{"start-deadline", "start_deadline", "", "record a tick as missed if it has not started within this `DURATION` after it fell due"},
	{"retry-attempts", "retry.attempts", 0, "make at most `N` attempts, including the first (default 1)"},
	{"retry-backoff", "retry.backoff", "", "`DURATION` to wait before the second attempt (default 10s)"},
	{"retry-factor", "retry.factor", "", "multiply the wait by this `FACTOR` after each attempt (default 2)"},
	{"retry-jitter", "retry.jitter", "", "vary each wait at random by up to this `FRACTION` of it, 0 to 1 (default 0.2)"},
	{"retry-max-backoff", "retry.max_backoff", "", "longest `DURATION` between attempts (default 5m)"},
	{"retry-on", "retry.on", []string{}, "retry attempts that end in these `STATES`: failed, timed_out, lost (default failed,timed_out)"},
	{"retry-exit-codes", "retry.exit_codes", []int{}, "retry failed attempts with these exit `CODES` only (default: any)"},
	{"pause-after-failures", "pause_after_failures", 0, "pause the task when `N` runs in a row have failed"},
	{"selector", "target.selector", "", "run only on nodes that match this `SELECTOR`, such as 'role=db, disk_free > 10Gi'"},
	{"strategy", "target.strategy", "", "`STRATEGY` that chooses among these nodes: auto (default), round-robin, random, weighted, least-loaded, hash, first or sticky"},
	{"hash-key", "target.key", "", "with --strategy hash: tasks with the same `KEY` run on the same node (default: the task's name)"},
	{"order", "target.order", []string{}, "with --strategy first: the `NODES` that may run it, in order of preference"},
	{"count", "target.count", "", "run one part of each run on each of `N` nodes, or on all matching nodes with all (default 1)"},
	{"parts", "target.parts", 0, "split each run into `N` parts, which run on any matching nodes"},
	{"stagger", "target.stagger", "", "wait for this `DURATION` between the starts of two parts"},
	{"succeed", "target.succeed", "", "`COUNT` of parts that must succeed: all (default), any, a number, or a percentage such as 80%"},
	{"output-streams", "output.streams", "", "`MODE` of stdout and stderr: merged (one pipe, the default) or apart (two pipes)"},
	{"output-limit", "output.limit", "", "keep at most this `SIZE` of each attempt's output, such as 10Mi (default and maximum: the node's setting)"},
	{"output-keep", "output.keep", "", "keep output for this `DURATION` after the attempt ends (default and maximum: the node's setting)"},
	{"output-mask", "output.mask", false, "replace values of secrets in the output by *** (default true)"},
	{"output-compress", "output.compress", false, "compress output after the attempt has ended (default true)"},
	{"keep", "history.keep", 0, "keep the last `N` ended runs in the history (default 20)"},
	{"keep-for", "history.keep_for", "", "keep the runs of ticks that are younger than this `DURATION`, such as 24h or 7d, in addition to the last N (at most 90d)"},
	{"ledger", "history.ledger", "", "remember for this `DURATION`, such as 36h or 7d, the outcomes of ticks whose runs are no longer in the history (at most 90d; default: the cluster's setting, 30d; 0s: not at all)"},
	{"record", "history.record", "", "keep these ended `RUNS` in the history: all (default) or failures"},
	{"accept-args", "accept.args", 0, "let a manual run append up to `N` arguments to the command (default 0)"},
	{"accept-env", "accept.env", []string{}, "let a manual run set these `VARIABLES` (default: none)"},
	{"accept-target", "accept.target", false, "let a manual run name its node: any node that the namespace allows"},
	{"shadow", "shadow", false, "shadow mode: record what would have run, but start no process"},
	{"paused", "paused", false, "pause the task: it has no ticks until you resume it"},
}

// bindFlags declares the flags.
func (f *taskFlags) bindFlags(cmd *cobra.Command) {
	flags := cmd.Flags()

	for _, t := range taskFields {
		t.bindFlag(flags)
	}

	flags.Int("retries", 0, "make at most `N` attempts after the first; --retries 2 is the same as --retry-attempts 3")
	flags.StringArrayVar(&f.labels, "label", nil, "set a label, as `KEY=VALUE`; may be repeated")
	flags.StringArrayVar(&f.env, "env", nil, "set an environment variable, as `NAME=VALUE`; may be repeated")
	flags.StringArrayVar(&f.limits, "limit", nil, "set a resource limit, as `NAME=VALUE`, such as memory=1Gi, cpu=1.5, open_files=64; may be repeated")
	flags.StringVar(&f.shell, "shell", "", "run this `LINE` with /bin/sh -c instead of a command")
	flags.BoolVar(&f.noop, "noop", false, "start no process and always succeed; for tests")
	f.http.bindFlags(flags)
	flags.SortFlags = false
	completeTaskFlags(cmd)
}

// bindFlag declares the flag.
func (t taskFlag) bindFlag(flags *pflag.FlagSet) {
	switch t.value.(type) {
	case int:
		flags.Int(t.name, 0, t.help)
	case bool:
		flags.Bool(t.name, false, t.help)
	case []int:
		flags.IntSlice(t.name, nil, t.help)
	case []string:
		if t.name == "schedule" { // expressions contain commas
			flags.StringArray(t.name, nil, t.help)
			return
		}
		flags.StringSlice(t.name, nil, t.help)
	default:
		flags.String(t.name, "", t.help)
	}
}

// buildPatch returns the patch that the flags and the command after "--" describe. A pair KEY- without a value
// removes a label or a variable.
func (f *taskFlags) buildPatch(flags *pflag.FlagSet, command []string) (map[string]any, error) {
	for _, pair := range [][2]string{{"retries", "retry-attempts"}, {"shell", "noop"}} {
		if flags.Changed(pair[0]) && flags.Changed(pair[1]) {
			return nil, failure.Usage("--%s and --%s cannot be used together", pair[0], pair[1])
		}
	}

	p := map[string]any{}

	for _, t := range slices.Concat(taskFields, httpFields) {
		if flags.Changed(t.name) {
			v, err := t.readValue(flags)
			if err != nil {
				return nil, err
			}
			putAtPath(p, t.path, v)
		}
	}

	if flags.Changed("retries") {
		n, _ := flags.GetInt("retries") // the flag is an int
		putAtPath(p, "retry.attempts", n+1)
	}

	if err := putPairs(p, "label", "labels", f.labels); err != nil {
		return nil, err
	}
	if err := putPairs(p, "env", "action.process.env", f.env); err != nil {
		return nil, err
	}
	if err := putLimits(p, f.limits); err != nil {
		return nil, err
	}
	if err := f.http.addTo(p, flags); err != nil {
		return nil, err
	}

	switch {
	case len(command) > 0 && (f.shell != "" || f.noop):
		return nil, failure.Usage("a command after -- excludes --shell and --noop")
	case len(command) > 0:
		putAction(p, "command", command, "shell")
	case flags.Changed("shell"):
		putAction(p, "shell", f.shell, "command")
	case f.noop:
		p["action"] = map[string]any{"process": nil, "http": nil, "noop": map[string]any{}}
	}

	return p, nil
}

// putAction sets one form of a process and clears the forms that it excludes.
func putAction(p map[string]any, form string, value any, other string) {
	putAtPath(p, "action.process."+form, value)
	putAtPath(p, "action.process."+other, nil)
	putAtPath(p, "action.http", nil)
	putAtPath(p, "action.noop", nil)
}

// readValue returns the value of a flag.
func (t taskFlag) readValue(flags *pflag.FlagSet) (any, error) {
	switch t.value.(type) {
	case int:
		return flags.GetInt(t.name)
	case bool:
		return flags.GetBool(t.name)
	case []int:
		return flags.GetIntSlice(t.name)
	case []string:
		if t.name == "schedule" {
			list, err := flags.GetStringArray(t.name)
			return task.Schedules(list), err
		}
		return flags.GetStringSlice(t.name)
	}

	s, err := flags.GetString(t.name)
	if t.name == "count" && wholeOrDecimal.MatchString(s) {
		return json.Number(s), err
	}
	if (t.name == "retry-factor" || t.name == "retry-jitter") && json.Valid([]byte(s)) {
		return json.Number(s), err
	}
	if t.name == "ledger" || t.name == "keep-for" {
		// A document has hours, not days. The server explains what is wrong with other texts.
		if d, invalid := task.ParseDuration(t.name, s); invalid == nil {
			return d.String(), err
		}
	}

	return s, err
}

// putAtPath sets a field of a patch.
func putAtPath(p map[string]any, path string, v any) {
	keys := strings.Split(path, ".")
	for _, k := range keys[:len(keys)-1] {
		inner, ok := p[k].(map[string]any)
		if !ok {
			inner = map[string]any{}
			p[k] = inner
		}

		p = inner
	}

	p[keys[len(keys)-1]] = v
}

// putPairs adds pairs KEY=VALUE or KEY- to a patch.
func putPairs(p map[string]any, flag, path string, pairs []string) error {
	values := map[string]any{}
	for _, pair := range pairs {
		k, v, ok := strings.Cut(pair, "=")
		gone := !ok && strings.HasSuffix(k, "-") && len(k) > 1
		if gone {
			k = strings.TrimSuffix(k, "-")
		}

		if k == "" || (!ok && !gone) {
			return failure.Usage("--%s %s: use KEY=VALUE, or KEY- to remove it", flag, task.Quote(pair))
		}
		if _, twice := values[k]; twice {
			return failure.Usage("--%s %s: %s is given twice", flag, task.Quote(pair), task.Quote(k))
		}

		values[k] = v
		if gone {
			values[k] = nil
		}
	}

	if len(values) > 0 {
		putAtPath(p, path, values)
	}

	return nil
}

// putLimits is like putPairs, for limits: some of them are numbers.
func putLimits(p map[string]any, pairs []string) error {
	inner := map[string]any{}
	if err := putPairs(inner, "limit", "limits", pairs); err != nil || len(inner) == 0 {
		return err
	}

	for name, v := range inner["limits"].(map[string]any) {
		if text, ok := v.(string); ok && wholeOrDecimal.MatchString(text) {
			v = json.Number(text)
		}
		putAtPath(p, "action.process.limits."+name, v)
	}

	return nil
}

// wholeOrDecimal matches numbers that are sent as JSON numbers.
var wholeOrDecimal = regexp.MustCompile(`^(0|[1-9][0-9]{0,15})(\.[0-9]{1,6})?$`)

// specOf applies a patch to the defaults. A null means the default, so it is omitted.
func specOf(p map[string]any, namespace, name string) (task.Spec, error) {
	full := withoutNulls(p)
	full["name"], full["namespace"] = name, namespace

	b, err := json.Marshal(full)
	if err != nil {
		return task.Spec{}, fmt.Errorf("write the task as JSON: %w", err)
	}

	return task.DecodeSpec(b)
}

// withoutNulls returns a patch without its nulls.
func withoutNulls(p map[string]any) map[string]any {
	out := map[string]any{}
	for k, v := range p {
		if inner, ok := v.(map[string]any); ok {
			v = withoutNulls(inner)
		}

		if v != nil {
			out[k] = v
		}
	}

	return out
}

// unsetShortcuts returns the names that --unset accepts, with the paths of their fields.
func unsetShortcuts() map[string]string {
	s := map[string]string{"env": "action.process.env", "shell": "action.process.shell", "command": "action.process.command",
		"limit": "action.process.limits", "limits": "action.process.limits",
		"label": "labels", "labels": "labels", "header": "action.http.headers", "headers": "action.http.headers", "json": "action.http.json",
		"form": "action.http.form", "body": "action.http.body", "result": "action.http.results", "results": "action.http.results",
		"auth": "action.http.auth", "tls": "action.http.tls", "keep-body": "action.http.output", "retries": "retry.attempts",
		"dst": "dst", "missed": "missed", "retry": "retry", "target": "target", "success": "success", "output": "output", "history": "history",
		"queue": "queue", "paused_until": "paused_until", "pause_reason": "pause_reason"}
	for _, t := range slices.Concat(taskFields, httpFields) {
		if _, taken := s[t.name]; !taken {
			s[t.name] = t.path
		}
		s[t.path] = t.path
	}

	return s
}

// clearableFields returns the fields that --unset accepts.
func clearableFields() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(unsetShortcuts())), func(f string) bool { return f == "name" || f == "namespace" })
}

// unsetFields adds a null to a patch for each field to reset.
func unsetFields(p map[string]any, fields []string) error {
	known := unsetShortcuts()

	for _, f := range fields {
		if f == "name" || f == "namespace" {
			return failure.Usage("--unset %s: the %s of a task cannot be unset", f, f)
		}

		path, ok := known[f]
		for _, group := range []string{"labels.", "label.", "env.", "action.process.env.", "headers.", "header.", "action.http.headers."} {
			if key, found := strings.CutPrefix(f, group); found && key != "" {
				parent := known[strings.TrimSuffix(group, ".")]
				if parent == "" {
					parent = strings.TrimSuffix(group, ".")
				}

				if err := putPairs(p, "unset", parent, []string{key + "-"}); err != nil {
					return err
				}

				path, ok = "", true
			}
		}

		if !ok {
			names := clearableFields()
			e := failure.Usage("--unset %s: not a field of a task", task.Quote(f))

			if near := task.Nearest(f, names); near != "" {
				return e.WithHint("did you mean: --unset %s", near)
			}

			return e
		}

		if path != "" {
			putAtPath(p, path, nil)
		}
	}

	return nil
}

// completeUnset completes the fields that --unset accepts.
func completeUnset(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var offers []complete.Offer
	for _, name := range slices.Sorted(maps.Keys(unsetShortcuts())) {
		offers = append(offers, complete.Offer{Word: name, About: ""})
	}
	return complete.Matching(offers, nil, typed)
}

// completeTaskFlags registers completions for the values of flags.
func completeTaskFlags(cmd *cobra.Command) {
	complete.RegisterFixed(cmd, "strategy", task.Strategies()...)
	complete.RegisterFixed(cmd, "count", task.All.String())
	complete.RegisterFixed(cmd, "succeed", "all", "any")
	complete.RegisterFixed(cmd, "output-streams", task.StreamsMerged, task.StreamsApart)
	complete.RegisterFixed(cmd, "overlap", task.OverlapSkip, task.OverlapQueue, task.OverlapReplace, task.OverlapAllow)
	complete.RegisterFixed(cmd, "queue-drop", task.DropNewest, task.DropOldest)
	complete.RegisterFixed(cmd, "missed", task.MissedLatest, task.MissedSkip, task.MissedAll)
	complete.RegisterFixed(cmd, "dst-gap", task.GapRunAfter, task.GapSkip)
	complete.RegisterFixed(cmd, "dst-fold", task.FoldFirst, task.FoldBoth)
	complete.RegisterFixed(cmd, "enforce", task.EnforceRequire, task.EnforceReport)
	complete.RegisterFixed(cmd, "ionice", "idle", "best-effort", "best-effort/7", "realtime")
	complete.RegisterFixed(cmd, "limit", limitNames()...)
	completeHTTPFlags(cmd)
	complete.RegisterFixed(cmd, "retry-on", string(task.Failed), string(task.TimedOut), string(task.Lost))
}

// limitNames returns the names of limits in the form in which --limit begins.
func limitNames() (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[task.Limits]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name+"=")
	}
	return names
}
