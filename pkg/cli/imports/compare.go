package imports

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/cronlog"
	"github.com/carillonhq/carillon/pkg/internal/importer"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// comparison is a comparison of logs with shadow tasks.
type comparison struct {
	*factory.Factory
	selector, since, until, timezone string

	log    cronlog.Log
	jobs   []cronlog.Job
	limits cronlog.Limits

	notShadow, inexact []string // tasks that are not compared
}

// compareCommand returns "carillon import compare".
func compareCommand(f *factory.Factory) *cobra.Command {
	c := &comparison{Factory: f}
	cmd := &cobra.Command{
		Use:   "compare LOG|-...",
		Short: "Compare cron's log with the ticks of shadow tasks",
		Long: "Compare when cron started its jobs with the ticks that the shadow tasks of an import have recorded, minute by minute,\n" +
			"for each host, user and command. A log is a file of syslog, or the output of journalctl -o short-iso or -o json,\n" +
			"of one or more hosts. It can contain other lines, too.\n\n" +
			"Each host is compared from the first line of its log to the last one, and from the time when its tasks became\n" +
			"shadows; --since and --until replace the times of the log. Not compared are tasks with jitter, or with H or @reboot\n" +
			"in their schedule, and starts of their commands. A start that is in several logs counts once, if the log names its\n" +
			"process.\n\n" +
			"A tick of a task that would run on fewer hosts than cron does, such as one of --any-node, is a difference.\n\n" +
			"The exit code is 8 if there are differences.",
		Example: `  journalctl -t CRON -t CROND -o short-iso | carillon import compare -
  ssh web1 sudo journalctl -t CRON -t CROND -o short-iso --since yesterday >>cron.log
  carillon import compare cron.log
  carillon import compare /var/log/syslog -l imported-from=ann --since 'yesterday 12:00'
  carillon import compare cron.log -o json | jq '.[] | select(.only_cron)'`,
		Args: factory.Args(1, -1, "the log"),
	}
	flags := cmd.Flags()
	flags.StringVarP(&c.selector, "selector", "l", importer.LabelKind+"=crontab", "compare the tasks whose labels match this `SELECTOR` (see help selectors)")
	flags.StringVar(&c.since, "since", "", "compare from this `TIME` on, such as 'yesterday 12:00' or 2h")
	flags.StringVar(&c.until, "until", "", "compare up to this `TIME`")
	flags.StringVar(&c.timezone, "timezone", "", "time `ZONE` of times in the log that have none (default: this host's)")
	complete.Register(cmd, "selector", complete.TaskLabels(f))
	for _, name := range []string{"since", "until"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	cmd.RunE = func(cmd *cobra.Command, files []string) error { return c.run(cmd, files) }

	return factory.LimitFormats(cmd, output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML)
}

// run implements the command.
func (c *comparison) run(cmd *cobra.Command, files []string) (err error) {
	if err := factory.RefuseEmpty(cmd, "selector", "since", "until", "timezone"); err != nil {
		return err
	}
	if c.limits.Since, err = c.ParseTime("since", c.since, c.Zone(output.ReaderZone), schedule.Past); err != nil {
		return err
	}
	if c.limits.Until, err = c.ParseTime("until", c.until, c.Zone(output.ReaderZone), schedule.Past); err != nil {
		return err
	}

	zone, err := c.logZone()
	if err != nil {
		return err
	}

	if err := c.readLogs(cmd.Context(), files, zone); err != nil {
		return err
	}
	if err := c.readTasks(cmd.Context()); err != nil {
		return err
	}

	lines, silent := cronlog.Compare(c.log, c.jobs, c.limits)

	return c.print(lines, silent)
}

// logZone returns the time zone of times in the log that have none. --time does not change it, because it chooses the zone of
// the output.
func (c *comparison) logZone() (*time.Location, error) {
	switch {
	case c.timezone != "":
		return schedule.Location(c.timezone)
	case c.Local != nil:
		return c.Local, nil
	}

	return time.Local, nil
}

// readLogs reads the logs. It is an error if cron has started nothing in any of them.
func (c *comparison) readLogs(ctx context.Context, files []string, zone *time.Location) error {
	for _, file := range files {
		var in io.Reader = c.In
		if file != "-" {
			f, err := os.Open(file)
			if err != nil {
				return fmt.Errorf("%s: %s", file, failure.FileReason(err))
			}
			defer f.Close()
			in = f
		}

		// The function may continue after ctx ends, so it must not change c.
		l, err := factory.ReadPatiently(ctx, func() (cronlog.Log, error) {
			var l cronlog.Log
			return l, l.Add(in, zone, c.Now())
		})
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}

		c.log.Join(l)
	}

	if len(c.log.Starts) == 0 {
		return (&failure.Error{Exit: failure.ExitFailure, Problem: failure.Problem{
			Code: failure.CodeFailure, Message: strings.Join(files, ", ") + ": contains no line in which cron starts a job",
		}}).WithHint("such a line is: 2026-11-20T02:17:01+01:00 web1 CRON[123]: (root) CMD (run-parts /etc/cron.hourly)")
	}

	return nil
}

// readTasks reads the shadow tasks and the ticks that they have recorded.
func (c *comparison) readTasks(ctx context.Context) error {
	namespace, query, err := selection.Query(c.Factory, nil, c.selector)
	if err != nil {
		return err
	}

	api, err := c.Connect()
	if err != nil {
		return err
	}

	nodes, _, err := listNodes(ctx, api)
	if err != nil {
		return err
	}

	for t, err := range api.Tasks.All(ctx, client.TaskListOptions{Namespace: namespace, Query: query, Complete: true, Brief: true}) {
		if err != nil {
			return err
		}

		name := selection.TaskName(c.Factory, t)
		user, command, ok := commandOf(t.Spec)
		switch {
		case !ok:
			continue // no crontab has such a job
		case !t.Shadow:
			c.notShadow = append(c.notShadow, name)
			continue
		}

		j := cronlog.Job{Task: name, User: user, Command: cronlog.Normalize(command), Inexact: isInexact(t.Spec)}
		if t.Target.Count != task.All {
			j.Runs = int(t.Target.Count)
		}
		if j.Hosts = hostsOf(t.Target.Selector, nodes); t.Target.Selector == "" {
			j.Hosts = c.hostsThatStart(j)
		}

		if j.Inexact {
			c.inexact = append(c.inexact, name)
			c.jobs = append(c.jobs, j)
			continue
		}

		runs, err := api.Runs.ListByTask(ctx, t.Namespace, t.Name, client.RunListOptions{Since: c.limits.Since, Until: c.limits.Until})
		if err != nil {
			return err
		}
		c.addTicks(&j, t, runs)
		c.jobs = append(c.jobs, j)
	}

	if len(c.jobs) == len(c.inexact) {
		return failure.NotFound("no shadow task matches %s", c.selector).WithHint("create shadow tasks with: carillon import crontab … --shadow")
	}

	return nil
}

// addTicks adds the ticks among the runs of a task, and the time from when on all of them are on record. The history keeps
// at least the newest history.keep of them.
func (c *comparison) addTicks(j *cronlog.Job, t client.Task, runs []task.Run) {
	j.Since = t.CreatedAt.Time

	for _, r := range runs { // the newest first
		if r.Trigger != task.TriggerSchedule && r.Trigger != task.TriggerCatchUp {
			continue
		}

		tick := cronlog.Tick{Time: r.ScheduledTime.Time}
		if r.Reason != task.ReasonShadow {
			tick.Outcome = strings.TrimSuffix(fmt.Sprintf("%s: %s", r.State, r.Reason), ": ")
		}
		j.Ticks = append(j.Ticks, tick)
	}

	if n := len(j.Ticks); n > 0 && (n >= t.History.Keep || j.Ticks[n-1].Time.Before(j.Since)) {
		j.Since = j.Ticks[n-1].Time
	}
}

// commandOf returns the user and the command of a task as they are in a crontab.
func commandOf(s task.Spec) (user, command string, ok bool) {
	p := s.Action.Process
	switch {
	case p == nil:
		return "", "", false
	case p.Shell != "":
		return p.User, p.Shell, true
	case len(p.Command) == 3 && p.Command[1] == "-c":
		return p.User, p.Command[2], true
	}

	return "", "", false
}

// isInexact reports whether cron and the task choose different times at random, or run when the host boots.
func isInexact(s task.Spec) bool {
	return s.Jitter > 0 || s.Schedule.AtBoot() || slices.ContainsFunc(s.Schedule, schedule.UsesHash)
}

// hostsOf returns the hosts of a selector: those that it names, or those of the nodes that match.
func hostsOf(selector string, nodes []task.Node) (hosts []string) {
	if named := importer.SelectedHosts(selector); named != nil {
		return named
	}

	s, err := task.ParseSelector(selector)
	if err != nil {
		return nil
	}

	for i := range nodes {
		if h := nodes[i].Labels["host"]; s.Accepts(&nodes[i]) && h != "" && !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}

	if len(hosts) == 0 {
		for key, value := range s.Equalities() {
			if key == "node" {
				hosts = []string{value} // the node is not there now, or may not be read
			}
		}
	}

	return hosts
}

// hostsThatStart returns the hosts of the log that have started the command of a task for any node: all hosts if none has.
func (c *comparison) hostsThatStart(j cronlog.Job) (hosts []string) {
	for _, s := range c.log.Starts {
		if s.User == j.User && s.Command == j.Command && !slices.Contains(hosts, s.Host) {
			hosts = append(hosts, s.Host)
		}
	}

	if len(hosts) == 0 {
		for h := range c.log.Spans {
			hosts = append(hosts, h)
		}
	}

	return hosts
}

// comparedLine is a line in the output.
type comparedLine struct {
	Host       string         `json:"host"`
	User       string         `json:"user"`
	Command    string         `json:"command"`
	Tasks      []string       `json:"tasks"`
	Both       int            `json:"both"`
	OnlyCron   []task.Time    `json:"only_cron,omitempty"`
	OnlyShadow []task.Time    `json:"only_shadow,omitempty"`
	Outcomes   []comparedTick `json:"outcomes,omitempty"`
}

// comparedTick is a tick that was not recorded as that of a shadow.
type comparedTick struct {
	Time    task.Time `json:"time"`
	Outcome string    `json:"outcome"`
}

// newComparedLine converts a line for the output.
func newComparedLine(l cronlog.Line) comparedLine {
	times := func(list []time.Time) (out []task.Time) {
		for _, t := range list {
			out = append(out, task.At(t))
		}
		return out
	}

	c := comparedLine{Host: l.Host, User: l.User, Command: l.Command, Tasks: l.Tasks, Both: l.Both, OnlyCron: times(l.OnlyCron), OnlyShadow: times(l.OnlyShadow)}
	for _, t := range l.Outcomes {
		c.Outcomes = append(c.Outcomes, comparedTick{task.At(t.Time), t.Outcome})
	}
	if c.Tasks == nil {
		c.Tasks = []string{}
	}

	return c
}

// print prints the result. The error has the exit code for differences.
func (c *comparison) print(lines []cronlog.Line, silent []string) error {
	list := make([]comparedLine, len(lines))
	ticks, differing, uncompared := 0, 0, 0
	for i, l := range lines {
		list[i] = newComparedLine(l)
		ticks += l.Both
		switch {
		case !l.Same():
			differing++
		case l.Both == 0:
			uncompared++
		}
	}

	err := output.EmitList(&c.Printer, list, nil, func(wide bool) *output.Table { return c.table(lines, wide) })
	if err != nil {
		return err
	}

	if c.ForPeople() {
		c.printDifferences(lines)
		c.noteNames("not compared, because their times are random or those of boots", "task", c.inexact)
		c.noteNames("not compared, because they are not shadows", "task", c.notShadow)
		c.noteNames("not compared, because the log contains nothing of them", "host", silent)
		if uncompared > 0 {
			c.Note("%s without a tick in the time that the log covers; see -o wide", output.Plural(int64(uncompared), "line"))
		}
		c.Say("%s compared, of %s on %s; lines that differ: %d", output.Plural(int64(ticks), "tick"), output.Plural(int64(len(lines)-uncompared), "line"),
			output.Plural(int64(len(c.log.Spans)), "host"), differing)
	}

	if differing > 0 || len(silent) > 0 {
		return failure.AlreadyReported([]int{failure.ExitFinding})
	}
	if ticks == 0 {
		return errors.New("the log and the shadow tasks have no time in common")
	}

	return nil
}

// noteNames prints a list of names, unless it is empty.
func (c *comparison) noteNames(why, noun string, names []string) {
	if len(names) > 0 {
		c.Note("%s: %s: %s", why, output.Plural(int64(len(names)), noun), output.Sanitize(strings.Join(names, " ")))
	}
}

// hostGroup are lines that differ only in their host, and have the same differences.
type hostGroup struct {
	cronlog.Line
	hosts []string
	both  int // the sum of all hosts
}

// groupHosts groups lines. It leaves out those without ticks.
func groupHosts(lines []cronlog.Line) (groups []hostGroup) {
	for _, l := range lines {
		if l.Same() && l.Both == 0 {
			continue
		}

		if n := len(groups); n > 0 && isSameJob(groups[n-1].Line, l) && groups[n-1].Difference() == l.Difference() {
			groups[n-1].hosts = append(groups[n-1].hosts, l.Host)
			groups[n-1].both += l.Both
			continue
		}

		groups = append(groups, hostGroup{l, []string{l.Host}, l.Both})
	}

	return groups
}

// name returns the hosts as text.
func (g hostGroup) name() string {
	const most = 4
	if n := len(g.hosts); n > most {
		return fmt.Sprintf("%s and %d other hosts", strings.Join(g.hosts[:most-1], " "), n-most+1)
	}
	return strings.Join(g.hosts, " ")
}

// table returns a row for each command that had a tick. Hosts with the same result are one row. A wide table has a row for
// each host, also without ticks.
func (c *comparison) table(lines []cronlog.Line, wide bool) *output.Table {
	g := &output.Table{Headers: []string{"TASK", "USER", "COMMAND", "HOST", "BOTH", "ONLY CRON", "ONLY SHADOW", "RESULT"}}

	groups := groupHosts(lines)
	if wide {
		groups = groups[:0]
		for _, l := range lines {
			groups = append(groups, hostGroup{l, []string{l.Host}, l.Both})
		}
	}

	for _, l := range groups {
		host, n := l.Host, len(l.hosts)
		if n > 1 {
			host = fmt.Sprintf("%d hosts", n)
		}

		result := "same"
		switch {
		case len(l.Tasks) == 0:
			result = "no shadow task"
		case len(l.Outcomes) > 0:
			result = l.Outcomes[0].Outcome
		case !l.Same():
			result = "different"
		case l.both == 0:
			result = "no ticks"
		}

		g.AddRow(output.OneLine(strings.Join(l.Tasks, " ")), output.OneLine(l.User), output.OneLine(l.Command), output.OneLine(host),
			fmt.Sprint(l.both), fmt.Sprint(n*len(l.OnlyCron)), fmt.Sprint(n*len(l.OnlyShadow)), output.OneLine(result))
	}

	return g
}

// isSameJob reports whether two lines differ at most in their host.
func isSameJob(a, b cronlog.Line) bool {
	return a.User == b.User && a.Command == b.Command && slices.Equal(a.Tasks, b.Tasks)
}

// maxListed is how many times of a difference are listed.
const maxListed = 10

// printDifferences lists the times of the differences.
func (c *comparison) printDifferences(lines []cronlog.Line) {
	list := func(l hostGroup, what string, times []time.Time) {
		if len(times) == 0 {
			return
		}

		var shown []string
		for _, t := range times[:min(len(times), maxListed)] {
			shown = append(shown, c.DateTime(task.At(t), output.ReaderZone))
		}
		more := ""
		if n := len(times) - maxListed; n > 0 {
			more = fmt.Sprintf(", and %d more", n)
		}

		name := strings.Join(l.Tasks, " ")
		if name == "" {
			name = fmt.Sprintf("(%s) %s", l.User, l.Command)
		}
		c.Say("%s: %s: %s: %s%s", output.Sanitize(l.name()), output.Sanitize(name), output.Sanitize(what), strings.Join(shown, ", "), more)
	}

	for _, l := range groupHosts(lines) {
		list(l, "only cron started", l.OnlyCron)
		list(l, "only the shadow recorded", l.OnlyShadow)

		byOutcome := map[string][]time.Time{}
		var order []string
		for _, t := range l.Outcomes {
			if byOutcome[t.Outcome] == nil {
				order = append(order, t.Outcome)
			}
			byOutcome[t.Outcome] = append(byOutcome[t.Outcome], t.Time)
		}
		for _, o := range order {
			list(l, "the task recorded "+o, byOutcome[o])
		}
	}
}
