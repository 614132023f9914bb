package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	taskcmd "github.com/carillonhq/carillon/pkg/cli/task"
	"github.com/carillonhq/carillon/pkg/task"
)

// usageFunc returns a function that prints the usage of a command: like that of cobra, with examples before everything else. It is no
// template, because a program that contains text/template contains all exported methods of all types.
func usageFunc(withGlobalFlags bool) func(*cobra.Command) error {
	return func(c *cobra.Command) error {
		var b strings.Builder
		if c.HasExample() {
			fmt.Fprintf(&b, "Examples:\n%s\n\n", c.Example)
		}

		b.WriteString("Usage:")
		parent := c.HasAvailableSubCommands()
		if c.Runnable() && !parent || parent && c.Annotations["carillon/alone"] != "" {
			b.WriteString("\n  " + c.UseLine())
		}
		if parent {
			b.WriteString("\n  " + c.CommandPath() + " COMMAND")
			writeSubcommands(&b, c)
		}

		if c.HasAvailableLocalFlags() {
			b.WriteString("\n\nFlags:\n" + strings.TrimRight(c.LocalFlags().FlagUsages(), "\n"))
		}
		if withGlobalFlags && c.HasAvailableInheritedFlags() {
			b.WriteString("\n\nGlobal flags:\n" + strings.TrimRight(c.InheritedFlags().FlagUsages(), "\n"))
		}

		if c.HasHelpSubCommands() {
			fmt.Fprintf(&b, "\n\nTopics (\"%s help TOPIC\"):", c.CommandPath())
			writeCommands(&b, c, (*cobra.Command).IsAdditionalHelpTopicCommand)
		}
		if parent {
			fmt.Fprintf(&b, "\n\n\"%s COMMAND --help\" shows the help of a command.", c.CommandPath())
		}

		_, err := fmt.Fprintln(c.OutOrStderr(), b.String())

		return err
	}
}

// writeSubcommands writes the available subcommands by group.
func writeSubcommands(b *strings.Builder, c *cobra.Command) {
	isListed := func(sub *cobra.Command) bool { return sub.IsAvailableCommand() || sub.Name() == "help" }
	if len(c.Groups()) == 0 {
		b.WriteString("\n\nCommands:")
		writeCommands(b, c, isListed)
	}

	for _, group := range c.Groups() {
		b.WriteString("\n\n" + group.Title)
		writeCommands(b, c, func(sub *cobra.Command) bool { return sub.GroupID == group.ID && isListed(sub) })
	}
}

// writeCommands writes a line for each subcommand for which wanted returns true.
func writeCommands(b *strings.Builder, c *cobra.Command, wanted func(*cobra.Command) bool) {
	for _, sub := range c.Commands() {
		if wanted(sub) {
			fmt.Fprintf(b, "\n  %-*s %s", sub.NamePadding(), sub.Name(), sub.Short)
		}
	}
}

// helpCommand is like cobra's, but returns an error for an unknown command or topic.
func helpCommand(root *cobra.Command) *cobra.Command {
	helpful := func(c *cobra.Command) bool { return c.IsAvailableCommand() || c.IsAdditionalHelpTopicCommand() }
	find := func(words []string) (*cobra.Command, error) {
		cmd := root
		for _, word := range words {
			at := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == word || c.HasAlias(word) })
			if at < 0 {
				e := failure.Usage("unknown help topic %s", task.Quote(word)).WithHint("see %s --help", cmd.CommandPath())
				if near := task.Nearest(word, wordsOf(cmd, helpful)); near != "" {
					e.Hint = strings.Replace("did you mean: "+cmd.CommandPath()+" "+near, "carillon", "carillon help", 1)
				}
				return nil, e
			}

			cmd = cmd.Commands()[at]
		}

		return cmd, nil
	}

	return &cobra.Command{
		Use:   "help [COMMAND...|TOPIC]",
		Short: "Help about a command or a topic",
		RunE: func(_ *cobra.Command, words []string) error {
			cmd, err := find(words)
			if err != nil {
				return err
			}

			cmd.InitDefaultHelpFlag()

			return cmd.Help()
		},
		ValidArgsFunction: func(_ *cobra.Command, words []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			cmd, err := find(words)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}

			var offers []cobra.Completion
			for _, c := range cmd.Commands() {
				if helpful(c) && strings.HasPrefix(c.Name(), typed) {
					offers = append(offers, cobra.CompletionWithDesc(c.Name(), c.Short))
				}
			}

			return offers, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// helpTopics returns the pages of help that belong to no command.
func helpTopics() []*cobra.Command {
	return []*cobra.Command{
		{Use: "contexts", Short: "Servers, credentials and contexts", Long: contextsTopic},
		{Use: "output", Short: "Output formats, colors and times", Long: outputTopic},
		{Use: "exit-codes", Short: "Exit codes of commands", Long: exitCodesTopic},
		{Use: "selectors", Short: "Select tasks and nodes by label", Long: selectorsTopic},
		{Use: "queries", Short: "Find tasks by state, label, time and name", Long: queriesTopic},
		{Use: "schedules", Short: "Syntax of schedules", Long: schedulesTopic},
		{Use: "times", Short: "Ways to write a time", Long: timesTopic},
		taskcmd.FieldsTopic(),
		{Use: "policies", Short: "Overlap, missed ticks, retries and pauses", Long: policiesTopic},
		{Use: "run-names", Short: "Ways to name a run", Long: selection.RunHelp},
	}
}

const contextsTopic = `A context is a named cluster: its server and your credentials for it.

  carillon config set prod server=https://carillon.example.com:7070 token_file=~/.config/carillon/prod.token
  carillon config use prod          for all further commands
  carillon --context prod task list for one command

carillon token create prints a new token; carillon whoami shows what yours may do.

Contexts are stored in $XDG_CONFIG_HOME/carillon/config.yaml, or ~/.config/carillon/config.yaml.
On macOS it is ~/Library/Application Support/carillon, and on Windows %AppData%\carillon:

  current: prod
  contexts:
    prod:
      server: https://carillon.example.com:7070
      ca_file: prod-ca.crt          # relative to this file, absolute, or ~/PATH
      cert_file: me.crt             # with mTLS; key_file: me.key
      token_file: prod.token        # or token: TOKEN, if only you can read this file
      namespace: billing
      read_only: true               # refuse all changes
      insecure: true                # allow sending the token in clear text

Flags override the environment, and the environment overrides the file. If you
pass --context, all settings of the context count as flags.

  --context          CARILLON_CONTEXT
  --server           CARILLON_SERVER
  --namespace        CARILLON_NAMESPACE
  --token-file       CARILLON_TOKEN, CARILLON_TOKEN_FILE
  --ca-file          CARILLON_CA_FILE; --cert-file, --key-file likewise
                     CARILLON_CONFIG   path of the configuration file
                     NO_COLOR, TERM=dumb, PAGER (logs), EDITOR, HTTPS_PROXY, NO_PROXY

The credentials of a context are sent only to its own server. If --server or
CARILLON_SERVER names another server, the token and the certificate of the context
are not used. Without a context, the token can also come from
~/.config/carillon/token, where carillon dev writes its own.

To see which setting is used and why:  carillon config show --origin`

const outputTopic = `Commands write data to stdout and everything else to stderr.

  -o table   for people (the default); wide adds columns
  -o json    for programs; an empty list is []. Fields may be added, never renamed
  -o jsonl   one object per line, for lists and streams
  -o yaml    one document per object; tasks can be applied again
  -o name    names only, for xargs

With -o json, an error is one JSON object on stderr: {"code", "field", "message",
"hint"}. On a narrow terminal, tables leave out the less important columns, which …
in the heading shows, and shorten cells. The names and IDs of what a row is about
stay whole up to 48 characters, so that you can type them again. Elsewhere, nothing
is left out.

  --time relative|local|task|utc   how to print times: relative to now; or exactly, in
                                   your time zone, in that of each task, or in UTC
  --color auto|always|never        auto: on a terminal, unless NO_COLOR is set or
                                   TERM is dumb. Symbols carry the same information
  --ascii                          ASCII letters instead of symbols
  --no-headers                     tables without headings
  -q, --quiet                      print only data and errors
  -v, --verbose                    log each call to the server to stderr

Commands that change more objects than you named ask for confirmation. --yes
skips the question, --no-input fails instead of asking, --dry-run changes nothing.`

const exitCodesTopic = `The exit code tells a script the kind of failure:

  0    success
  1    any other failure
  2    usage error: an argument, a flag, a value or a file is not valid;
       nothing was changed (apply of JSON lines: other lines were applied)
  3    not found
  4    conflict: the object already exists, or is no longer at that --revision
  5    unavailable or timed out: you can try again. If the command changes
       something, check first whether the change was made
  6    not authenticated or not allowed
  8    a difference or a problem was found
  9    the run did not succeed (task trigger --wait)
  130  interrupted

If a command fails for several tasks, the exit code is their common code, or 1
if they differ. With -o json, each error is a JSON object on stderr:
{"code", "field", "message", "hint"}.`

const selectorsTopic = `A selector matches labels. All of its comma-separated terms must match:

  team = data            the label has this value; == is the same as =
  team != data           the label has another value or does not exist
  env in (prod, stage)   the label has one of these values
  env notin (test)       the label has none of these values or does not exist
  gpu                    the label exists
  !gpu                   the label does not exist

Select tasks with -l:            carillon task pause -l team=data
Select the nodes of a task:      carillon task update x --selector 'role = db, !gpu'
Every node has the labels node, host, os and arch.

You can also use globs for names, in quotes: carillon task list 'nightly-*'.
A command that changes several tasks that you did not name asks for confirmation.
--yes skips the question, --dry-run changes nothing.`

const queriesTopic = `A query is a list of terms, separated by spaces. It finds the tasks that match all
of them:

  carillon task list state:failed label:team=data 'next:<1h'

  dump, name~dump          the name contains the text
  name:web-*               the name matches the glob; name:prod/web-* with a namespace
  namespace:prod           the namespace, or a glob
  state:failed             how the last run ended: failed, succeeded, timed_out,
                           cancelled or lost
  state:running            the state of the task now: running, waiting, idle (neither),
                           paused, unreadable, overdue (by more than 2s) or failing:
                           a run failed, timed out or was lost, with its attempts
                           used up, and no later one has succeeded; not if it was
                           dismissed or started again
  action:workflow          the task is a workflow
  label:gpu                the label exists
  label:team=data          the label has this value
  label:team!=data         the label has another value or does not exist
  selector:"a in (b, c)"   the labels match the selector (carillon help selectors)
  next:<1h next:>1d        the next tick is less or more than this away; next:none
  tick:2026-11-27T03:00Z   a tick may fall due in this minute
  last:<1h last:>1d        the last run ended less or more than this ago; last:none
  success:>26h             the last success is longer ago, or there is none
  duration:>5m             the last run took longer
  lateness:>1s             the last run started later than this after its tick
  failures:>=3             at least three runs in a row have failed
  alert:failures           an alert of this kind is open: failures, success_within,
                           success_by, max_lateness, max_duration, max_pause, or any
  notify:ops/slack         alerts of the task go to this receiver

A comma means "or": state:failed,lost. A minus sign negates a term: -label:team=data.
Comparisons are <, <=, > and >=; durations are 90s, 10m, 1h30m, 2d, 1w or 2d12h. Quote values
with spaces or commas: name~"a b". In a shell, put terms with <, >, *, ! or quotes in
single quotes.

The words of task list and next are a query if one of them has a colon or a tilde.
Otherwise they are names: task list dump lists the task dump. Flags and names are
short forms of terms, which must also match:

  -l team=data             selector:team=data
  --failing, --paused      state:failing, state:paused
  --workflow               action:workflow
  task list 'web-*' db     name:web-*,db`

const timesTopic = `Flags, files, the Web UI and parameters of the API read times in the same notation:

  90s, 36h, 2d, 1w, 2d12h     a duration: that long ago for --since and other times in
                              the past, and from now for --until and others ahead
  2h ago, in 2h, now          the same, whatever the flag
  18:00, 18:00:30             the last 18:00 for a time in the past, the next one for a
                              time ahead; today for --at
  yesterday 18:00             also today 6:00, tomorrow 6:00, Mon 6:00; without a time
                              of day, yesterday, today and tomorrow mean midnight
  2026-12-24                  a date: the beginning of the day
  2026-12-24 18:00            a date and a time; also with a T, with seconds, or as
                              24 Dec 18:00 and Thu 24 Dec 2026 18:00
  2026-12-24T18:00:00Z        RFC 3339; other offsets are +01:00 or -05:00
  18:00 UTC, 02:30 CEST       a time in UTC, or with the name of your clock

A command prints all times in one zone, and names it: the time zone of the task if
the command is about one task, otherwise yours (TZ, or that of your host). A time
that you pass without an offset is in the same zone. --time utc and --time local
choose another one. Parameters of the API are in UTC.

A local time that does not exist because the clocks go forward, or exists twice
because they go back, is an error, which says what to write instead. A date begins
with the first instant of the day.

A task file must mean the same whenever you apply it, so start and end take only
dates and RFC 3339 there. A day has 24 hours in a duration.`

const schedulesTopic = `A schedule is one or more expressions. It ticks whenever one of them does.

  30 2 * * *             minute, hour, day of month, month, day of week
  */15 30 2 * * *        with seconds first
  0 9 * * MON-FRI        names, ranges, lists (1,15) and steps (*/5, 10-40/10)
  0 0 1,15 * SUN         the day of month OR the day of week, if neither field
                         begins with *; otherwise both must match
  @hourly @daily @weekly @monthly @yearly
  0 0 L * *              the last day of the month; LW: its last working day;
                         15W: the working day nearest to the 15th
  0 0 * * 5L             the last Friday; FRI#3: the third
  H H(2-5) * * *         a minute and an hour derived from the task's name, which
                         spreads tasks over time; H/15: every 15 minutes
  @every 90s             counted from the creation of the task
  @every 1h after completion    an hour after each run has ended
  @at 2026-12-24 18:00   in the task's time zone, or @at 2026-12-24T18:00:00Z
  @in 10m                once, counted from when the task is written
  @manual                never; the task runs only when triggered
  @reboot                none; the task runs when a matching node boots

The fields start and end limit the period of the ticks, max_runs limits the number
of runs, and jitter delays each tick by up to the given duration.

The time zone is a field of the task (--timezone Europe/Berlin), not part of the
expression. When the clocks go forward, a tick whose local time does not exist
runs once right after the gap (dst.gap=skip: not at all). When they go back, a
tick whose local time exists twice runs the first time (dst.fold=both: twice).
Schedules with * in the hour field are not affected: they run in real time.

To try a schedule:  carillon schedule next "30 2 * * *" --timezone Europe/Berlin`

const policiesTopic = `Each tick has one outcome: it runs, is skipped or is missed, with a reason.
Set the fields in a task file, or with --set of task create and task update, such as
--set missed.policy=all. carillon help fields describes all of them.

A run of the task is already active or waiting (overlap):
  skip       the tick is skipped
  queue      the tick waits; at most queue.limit (10) wait, then queue.drop
             decides whether the newest or the oldest is skipped
  replace    the active run is cancelled, then the tick runs
  allow      the tick runs in parallel; with max_active it may have to wait

No node could decide the tick when it fell due (missed.policy):
  latest     the newest tick runs, if it is within missed.window (1h)
  all        the newest missed.limit (100) ticks within the window run
  skip       no tick runs, except within missed.grace (10s)

A tick waits too long: it is missed after start_deadline.
An attempt fails:  retry.attempts, retry.on, retry.exit_codes. Runs without
                   attempts left:  carillon run list --dead, run retry
Runs fail in a row: pause_after_failures. Manually:  carillon task pause
                   NAME --until 18:00 --reason "the disk is full"
Stop everything:   carillon cluster freeze --reason "the database moves"
The schedule ends: the task is deleted after ttl.

To see the outcome and the reason:  carillon why NAME --at "2026-03-29 02:30"`
