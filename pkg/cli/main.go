package cli

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
	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/settings"
	"github.com/carillonhq/carillon/pkg/task"
)

// IO is what a command talks to.
type IO struct {
	In       io.Reader
	Out, Err io.Writer
	// Env looks an environment variable up; nil is os.Getenv.
	Env func(string) string
	// Version is this program's; "" is what the build recorded.
	Version string
	// CompleteWithin is how long TAB waits for an answer; 0 is 300 ms, as long as a
	// person takes it for a key that works.
	CompleteWithin time.Duration
	// CompleteFor is how long TAB offers what it has found, without asking again; 0
	// is 5 s, as long as a person goes on with one line.
	CompleteFor time.Duration
}

// Main runs one command line, without the program's name, and returns its exit
// code. daemonCommands are added to the tree as they are; what they return as
// an error is printed like any other, and one with a method ExitCode() int
// chooses the code. When ctx ends, so does the command, with 130.
func Main(ctx context.Context, args []string, sys IO, daemonCommands ...*cobra.Command) int {
	return newApp(sys).run(ctx, args, daemonCommands...)
}

func newApp(sys IO) *app {
	if sys.Env == nil {
		sys.Env = os.Getenv
	}
	return &app{
		Printer:  output.Printer{Out: sys.Out, Err: sys.Err, Env: sys.Env, Now: time.Now, Terminal: output.TerminalWidth},
		Resolver: settings.Resolver{Env: sys.Env},

		In: sys.In, Env: sys.Env, Version: sys.Version,
		CompleteWithin: sys.CompleteWithin, CompleteFor: sys.CompleteFor,
	}
}

func (a *app) run(ctx context.Context, args []string, daemonCommands ...*cobra.Command) int {
	a.args = args
	root := a.root(daemonCommands)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil && ctx.Err() != nil {
		err = failure.Interrupted(err)
	}
	var known *failure.Error
	if err != nil && !a.parsed && !errors.As(err, &known) {
		err = failure.Usage("%s", err) // cobra's, about the words themselves
	}
	return a.report(err)
}

// The groups of commands in the help.
const (
	groupEveryday = "everyday"
	groupNouns    = "nouns"
	groupDaemon   = "daemon"
	groupOther    = "other"
)

func (a *app) root(daemonCommands []*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:   "carillon",
		Short: "Distributed cron: schedules tasks and runs them on a fleet",
		Long: "Carillon is cron for a fleet: it keeps schedules, fires them on time, once, on one of many hosts,\n" +
			"and remembers how every run ended.",
		Example: `  carillon dev                                     a node of your own, with everything in it
  carillon task create hello --schedule "@every 5s" -- echo hello
  carillon task list
  carillon logs hello -f
  carillon apply -f tasks/`,
		SilenceErrors:      true, // report prints them
		SilenceUsage:       true,
		DisableSuggestions: true, // unknownCommand makes its own
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			a.parsed = true
			return a.check(cmd)
		},
	}
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetFlagErrorFunc(flagError)
	a.bind(root.PersistentFlags())
	a.completeGlobals(root)

	root.AddGroup(
		&cobra.Group{ID: groupEveryday, Title: "Every day:"},
		&cobra.Group{ID: groupNouns, Title: "By noun:"},
	)
	if len(daemonCommands) > 0 {
		root.AddGroup(&cobra.Group{ID: groupDaemon, Title: "Nodes:"})
	}
	root.AddGroup(&cobra.Group{ID: groupOther, Title: "Other:"})
	add(root, groupEveryday, a.everydayCommands()...)
	add(root, groupNouns, a.taskCommand(), a.runCommand(), a.nodeCommand(), a.shardCommand(), a.clusterCommand(), a.secretCommand(), a.scheduleCommand())
	for _, c := range daemonCommands {
		if c.GroupID == "" && !c.Hidden {
			c.GroupID = groupDaemon
			if c.Name() == "bench" { // it needs a node's parts, but runs none
				c.GroupID = groupOther
			}
		}
		c.SetUsageTemplate(strings.Replace(usageTemplate, globalFlags, "", 1)) // they are for clients
		root.AddCommand(c)
	}
	withoutConfig(daemonCommands...)
	daemonFormats(daemonCommands)
	version := a.versionCommand() // which also tells why a server does not answer
	cert, schema := a.certCommand(), a.schemaCommand()
	withoutConfig(cert, schema, version)
	add(root, groupOther, a.importCommand(), a.auditCommand(), cert, a.configCommand(), schema, version)
	root.AddCommand(topics()...)
	root.SetHelpCommandGroupID(groupOther)
	root.SetCompletionCommandGroupID(groupOther)
	root.SetUsageTemplate(usageTemplate)
	root.SetHelpCommand(helpCommand(root))
	root.InitDefaultCompletionCmd() // now, so that it is refused unknown words like the others
	a.plainText(root)
	a.refuseUnknown(root)
	root.AddCommand(manCommand(root))
	if len(a.args) == 0 || strings.HasPrefix(a.args[0], cobra.ShellCompRequestCmd) {
		a.completeFlags(root) // it takes as long as all else before a command's own work
	}
	return root
}

// daemonFormats declares what the commands of other packages print: a benchmark has
// a report, the others only talk.
func daemonFormats(commands []*cobra.Command) {
	for _, c := range commands {
		formats := output.FormatTable
		if c.HasParent() && c.Parent().Name() == "bench" {
			formats += "," + output.FormatJSON
		}
		if c.Annotations[formatsKey] == "" {
			if c.Annotations == nil {
				c.Annotations = map[string]string{}
			}
			c.Annotations[formatsKey] = formats
		}
		daemonFormats(c.Commands())
	}
}

// plainText declares that cobra's own commands have one format, and no use for the
// user's configuration.
func (a *app) plainText(root *cobra.Command) {
	for _, c := range root.Commands() {
		if c.Name() == "help" || c.Name() == "completion" {
			for _, sub := range append(c.Commands(), c) {
				only(sub, output.FormatTable)
				withoutConfig(sub)
			}
		}
	}
}

func (a *app) everydayCommands() []*cobra.Command {
	next := a.taskNext()
	next.Use = "next [TASK...]"
	next.Short = "The ticks that come next, of a task or of all"
	return []*cobra.Command{a.taskApply(), a.taskDiff(), a.runLogs(), next, a.taskWhy(), a.eventsCommand(), a.topCommand()}
}

func add(parent *cobra.Command, group string, commands ...*cobra.Command) {
	for _, c := range commands {
		c.GroupID = group
		parent.AddCommand(c)
	}
}

// refuseUnknown makes every command that only groups others say so when it is
// given a word that is none of theirs; cobra would print help and succeed.
func (a *app) refuseUnknown(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		a.refuseUnknown(c)
	}
	if cmd.Runnable() || !cmd.HasSubCommands() {
		return
	}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return unknownCommand(cmd, args[0])
	}
}

func unknownCommand(cmd *cobra.Command, word string) error {
	names := wordsOf(cmd, (*cobra.Command).IsAvailableCommand)
	hint := "see " + cmd.CommandPath() + " --help"
	if near := task.Nearest(word, names); near != "" {
		hint = "did you mean: " + cmd.CommandPath() + " " + near
	}
	return &failure.Error{Exit: failure.ExitUsage, Problem: failure.Problem{Code: failure.CodeUsage, Hint: hint,
		Message: "unknown command " + task.Quote(word) + " for " + cmd.CommandPath()}}
}

// wordsOf are the names and aliases of those commands within cmd that are wanted.
func wordsOf(cmd *cobra.Command, wanted func(*cobra.Command) bool) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if wanted(c) {
			names = append(append(names, c.Name()), c.Aliases...)
		}
	}
	return names
}

// flagError names the flag that was meant, or the value.
func flagError(cmd *cobra.Command, err error) error {
	if f := badValue(err); f != nil {
		return f
	}
	f := &failure.Error{Exit: failure.ExitUsage, Problem: failure.Problem{Code: failure.CodeUsage, Message: err.Error(), Hint: "see " + cmd.CommandPath() + " --help"}}
	word, unknown := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !unknown {
		return f
	}
	var names []string
	for _, set := range flagSets(cmd) {
		names = append(names, set...)
	}
	slices.Sort(names)
	if near := task.Nearest(word, slices.Compact(names)); near != "" {
		f.Hint = "did you mean: --" + near
	}
	return f
}

// badValue says of a flag's value what is wrong with it, as everywhere else; nil
// if something else is wrong.
func badValue(err error) *failure.Error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return nil
	}
	flag, value := bad.GetFlag(), bad.GetValue()
	e := failure.Usage("--%s %s: %s", flag.Name, task.Quote(value), bad.Unwrap())
	var field *task.Error
	switch kind := flag.Value.Type(); {
	case errors.As(bad.Unwrap(), &field):
		e.Message = "--" + flag.Name + ": " + field.Message
	case kind == "duration":
		if _, err := task.ParseDuration("--"+flag.Name, value); err != nil {
			e.Message = err.Error()
		}
	case kind == "int" || kind == "int64":
		e.Message = fmt.Sprintf("--%s: %s is not a whole number", flag.Name, task.Quote(value))
	case kind == "bool":
		e.Message = fmt.Sprintf("--%s=%s: use true or false", flag.Name, task.Quote(value))
	}
	return e
}
