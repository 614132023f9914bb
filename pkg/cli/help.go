package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/task"
)

// usageTemplate is cobra's, with examples before everything else and the global
// flags where they are asked for only.
const usageTemplate = `{{if .HasExample}}Examples:
{{.Example}}

{{end}}Usage:{{if and .Runnable (not .HasAvailableSubCommands)}}
  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} COMMAND{{end}}{{if .HasAvailableSubCommands}}{{$cmds := .Commands}}{{if eq (len .Groups) 0}}

Commands:{{range $cmds}}{{if (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{else}}{{range $group := .Groups}}

{{.Title}}{{range $cmds}}{{if (and (eq .GroupID $group.ID) (or .IsAvailableCommand (eq .Name "help")))}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}` + globalFlags + `{{if .HasHelpSubCommands}}

Topics ("{{.CommandPath}} help TOPIC"):{{range .Commands}}{{if .IsAdditionalHelpTopicCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableSubCommands}}

"{{.CommandPath}} COMMAND --help" shows the help of a command.{{end}}
`

const globalFlags = `{{if .HasAvailableInheritedFlags}}

Global flags:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}`

// helpCommand is cobra's, but fails for what there is no help about.
func helpCommand(root *cobra.Command) *cobra.Command {
	helpful := func(c *cobra.Command) bool { return c.IsAvailableCommand() || c.IsAdditionalHelpTopicCommand() }
	find := func(words []string) (*cobra.Command, error) {
		cmd := root
		for _, word := range words {
			at := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == word || c.HasAlias(word) })
			if at < 0 {
				e := failure.Usage("there is no help about %s", task.Quote(word)).WithHint("see %s --help", cmd.CommandPath())
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

// topics are pages of help that belong to no command.
func topics() []*cobra.Command {
	return []*cobra.Command{
		{Use: "contexts", Short: "Which server a command talks to, and as whom", Long: contextsTopic},
		{Use: "output", Short: "What commands print: formats, colours, times", Long: outputTopic},
		{Use: "exit-codes", Short: "What exit codes mean", Long: exitCodesTopic},
		{Use: "selectors", Short: "How labels select tasks and nodes", Long: selectorsTopic},
		{Use: "schedules", Short: "How schedules are written", Long: schedulesTopic},
		{Use: "policies", Short: "What happens when a tick cannot simply run", Long: policiesTopic},
		{Use: "run-names", Short: "How a run is named", Long: selection.RunHelp},
	}
}

const contextsTopic = `A context is a cluster with a name: its server, and what lets you in there.

  carillon config set prod server=https://carillon.example.com:7070 token_file=~/.config/carillon/prod.token
  carillon config use prod          from now on
  carillon --context prod task list once

They are in $XDG_CONFIG_HOME/carillon/config.yaml, or ~/.config/carillon/config.yaml:

  current: prod
  contexts:
    prod:
      server: https://carillon.example.com:7070
      ca_file: prod-ca.crt          # beside this file, absolute, or below ~/
      cert_file: me.crt             # with mTLS; key_file: me.key
      token_file: prod.token        # or token: itself, if only you can read this file
      namespace: billing
      read_only: true               # every change is refused
      insecure: true                # the token may go out in clear text

Flags beat the environment, which beats the file. The flag --context counts as a
flag for all that its context says.

  --context          CARILLON_CONTEXT
  --server           CARILLON_SERVER
  --namespace        CARILLON_NAMESPACE
  --token-file       CARILLON_TOKEN, CARILLON_TOKEN_FILE
  --ca-file          CARILLON_CA_FILE; --cert-file, --key-file likewise
                     CARILLON_CONFIG   another file
                     NO_COLOR, TERM=dumb, PAGER (logs), EDITOR, HTTPS_PROXY, NO_PROXY

What a context has to let you in is shown to its own server only: with --server
or CARILLON_SERVER elsewhere, its token and its certificate are not used. Without
a context the token is also looked for in ~/.config/carillon/token, where
carillon dev puts its own.

Which won, and why:  carillon config show --origin`

const outputTopic = `Data is on the standard output, everything else on the standard error.

  -o table   for people (the default); wide has more columns
  -o json    for programs; an empty list is []. Fields are added, never renamed
  -o jsonl   an object in each line: lists and streams
  -o yaml    a document for each thing; those of tasks can be applied again
  -o name    names only, for xargs

With -o json an error is one JSON object on the standard error:
{"code", "field", "message", "hint"}. On a terminal tables are made to fit its
width; elsewhere nothing is cut.

  --time relative|local|task|utc   how times are shown
  --color auto|always|never        auto: on a terminal, unless NO_COLOR is set or
                                   TERM is dumb. Colour only repeats what a symbol says
  --ascii                          ASCII letters instead of symbols
  --no-headers                     tables without headings
  -q, --quiet                      only data and errors
  -v, --verbose                    each call to the server, on the standard error

What changes asks first where it is more than was named: --yes goes ahead,
--no-input never asks, --dry-run only lists.`

const exitCodesTopic = `Exit codes tell a script what kind of failure it was:

  0    done
  1    failure: what none of the others is
  2    usage: a word, a flag, a value or something in a file that cannot be;
       nothing was done (by apply of lines: the other lines were)
  3    not found
  4    conflict: it exists already, or is no longer at that --revision
  5    unavailable or timed out: trying again makes sense. After a change,
       look first: it may have been made
  6    not authenticated, or not allowed
  8    there is a difference or a finding
  9    the run did not succeed (task trigger --wait)
  130  interrupted

Of several tasks, those that failed decide: their common code, or 1. With
-o json each error is a JSON object on the standard error:
{"code", "field", "message", "hint"}.`

const selectorsTopic = `A selector picks by labels. All of its terms, separated by commas, must hold:

  team = data            the label has this value (== and team=data are the same)
  team != data           it has another value, or is not there
  env in (prod, stage)   it has one of these values
  env notin (test)       it has none of them, or is not there
  gpu                    it is there
  !gpu                   it is not there

Tasks are picked with -l:            carillon task pause -l team=data
Nodes are picked by a task's target: carillon task update x --selector 'role = db, !gpu'
Every node has the labels node, host, os and arch.

Names take simple patterns too, in quotes: carillon task list 'nightly-*'.
A change of more than one task that was not named asks first; --yes goes ahead,
--dry-run only lists.`

const schedulesTopic = `A schedule is one expression or several; several are a union.

  30 2 * * *             minute, hour, day of month, month, day of week
  */15 30 2 * * *        with seconds in front
  0 9 * * MON-FRI        names, ranges, lists (1,15) and steps (*/5, 10-40/10)
  0 0 1,15 * SUN         the day of month OR the day of week, if neither field
                         begins with *; else both must match
  @hourly @daily @weekly @monthly @yearly
  0 0 L * *              the last day of the month; LW: its last working day;
                         15W: the working day nearest to the 15th
  0 0 * * 5L             the last Friday; FRI#3: the third
  H H(2-5) * * *         a minute and an hour that follow from the task's name,
                         so that not all tick at once; H/15: every 15 minutes
  @every 90s             counted from the task's creation, whatever moves
  @every 1h after completion    an hour after each run has ended
  @at 2026-12-24T18:00:00Z
  @in 10m                once, counted from when the task is written
  @manual                never by itself; only when triggered

--start and --end bound the ticks, --max-runs counts those that run, --jitter
has each fall due a little later, always by the same.

Zones are a field of the task (--timezone Europe/Berlin), not of the expression.
Where the clocks go forward, a tick whose local time does not exist runs once
right after the gap (--dst-gap skip: not at all). Where they go back, a tick
whose local time exists twice runs the first time (--dst-fold both: twice).
Schedules with * in the hour field are not affected: they run in real time.

Try one out:  carillon schedule next "30 2 * * *" --timezone Europe/Berlin`

const policiesTopic = `Each tick ends in one outcome: it runs, or is skipped or missed, with a reason.

A run of the task is active, or waits (--overlap):
  skip       the tick is skipped
  queue      it waits; at most --queue-limit do (10), then --queue-drop newest
             or oldest is skipped
  replace    the active run is cancelled for it
  allow      it runs beside the others; with --max-active it waits for its turn

Nobody was there when it fell due (--missed):
  latest     the newest runs, if it is within --missed-window (1h)
  all        the newest --missed-limit (100) within the window run
  skip       none does, but one that is within --missed-grace (10s)

It waits too long: --start-deadline, after which it is missed.
An attempt fails:  --retry-attempts, --retry-on, --retry-exit-codes. What has
                   none left:  carillon run list --dead, run retry
Runs fail in a row: --pause-after-failures. By hand:  carillon task pause
                   NAME --until 18:00 --reason "the disk is full"
Nothing may fire:  carillon cluster freeze --reason "the database moves"
The schedule ends: --ttl, after which the task is deleted.

Which it was, and why:  carillon why NAME --at "2026-03-29 02:30"`
