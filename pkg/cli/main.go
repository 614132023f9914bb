package cli

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/apply"
	auditcmd "github.com/carillonhq/carillon/pkg/cli/audit"
	certcmd "github.com/carillonhq/carillon/pkg/cli/cert"
	clustercmd "github.com/carillonhq/carillon/pkg/cli/cluster"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	configcmd "github.com/carillonhq/carillon/pkg/cli/config"
	eventscmd "github.com/carillonhq/carillon/pkg/cli/events"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/imports"
	"github.com/carillonhq/carillon/pkg/cli/logs"
	nodecmd "github.com/carillonhq/carillon/pkg/cli/node"
	"github.com/carillonhq/carillon/pkg/cli/output"
	runcmd "github.com/carillonhq/carillon/pkg/cli/run"
	schedulecmd "github.com/carillonhq/carillon/pkg/cli/schedule"
	secretcmd "github.com/carillonhq/carillon/pkg/cli/secret"
	shardcmd "github.com/carillonhq/carillon/pkg/cli/shard"
	taskcmd "github.com/carillonhq/carillon/pkg/cli/task"
	topcmd "github.com/carillonhq/carillon/pkg/cli/top"
	"github.com/carillonhq/carillon/pkg/task"
)

// IO is what a command talks to.
type IO = factory.IO

// Main runs one command line, without the program's name, and returns its exit
// code. daemonCommands are added to the tree as they are; what they return as
// an error is printed like any other, and one with a method ExitCode() int
// chooses the code. When ctx ends, so does the command, with 130.
func Main(ctx context.Context, args []string, sys IO, daemonCommands ...*cobra.Command) int {
	a := factory.New(sys)
	adjustForTests(a)
	return runCommandLine(ctx, a, args, daemonCommands...)
}

// adjustForTests changes limits for tests.
var adjustForTests = func(*factory.Factory) {}

func runCommandLine(ctx context.Context, f *factory.Factory, args []string, daemonCommands ...*cobra.Command) int {
	f.Words = args
	root := newRootCommand(f, daemonCommands)
	root.SetArgs(args)

	err := root.ExecuteContext(ctx)
	if err != nil && ctx.Err() != nil {
		err = failure.Interrupted(err)
	}

	var known *failure.Error
	if err != nil && !f.Parsed && !errors.As(err, &known) {
		err = failure.Usage("%s", err) // cobra's, about the words themselves
	}

	return f.Report(err)
}

// The groups of commands in the help.
const (
	groupEveryday = "everyday"
	groupNouns    = "nouns"
	groupDaemon   = "daemon"
	groupOther    = "other"
)

func newRootCommand(f *factory.Factory, daemonCommands []*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:   "carillon",
		Short: "Distributed cron: schedules tasks and runs them on a fleet",
		Long:  "Carillon is a distributed cron. It runs scheduled tasks on a fleet of hosts and records how every run ended.",
		Example: `  carillon dev                                     start a node with an embedded etcd
  carillon task create hello --schedule "@every 5s" -- echo hello
  carillon task list
  carillon logs hello -f
  carillon apply -f tasks/`,
		SilenceErrors:      true, // report prints them
		SilenceUsage:       true,
		DisableSuggestions: true, // unknownCommand makes its own
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			f.Parsed = true
			return f.CheckFlags(cmd)
		},
	}

	root.SetIn(f.In)
	root.SetOut(f.Out)
	root.SetErr(f.Err)
	root.SetFlagErrorFunc(factory.FlagError)
	f.BindFlags(root.PersistentFlags())
	complete.GlobalFlags(f, root)

	root.AddGroup(
		&cobra.Group{ID: groupEveryday, Title: "Common commands:"},
		&cobra.Group{ID: groupNouns, Title: "Resources:"},
	)

	if len(daemonCommands) > 0 {
		root.AddGroup(&cobra.Group{ID: groupDaemon, Title: "Nodes:"})
	}

	root.AddGroup(&cobra.Group{ID: groupOther, Title: "Other:"})
	factory.AddGroup(root, groupEveryday, everydayCommands(f)...)
	factory.AddGroup(root, groupNouns, taskcmd.Command(f), runcmd.Command(f), nodecmd.Command(f), shardcmd.Command(f), clustercmd.Command(f), secretcmd.Command(f), schedulecmd.Command(f))

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

	factory.WithoutConfig(daemonCommands...)
	daemonFormats(daemonCommands)
	version := versionCommand(f) // which also tells why a server does not answer
	cert, schema := certcmd.Command(f), schemaCommand(f)
	factory.WithoutConfig(cert, schema, version)
	factory.AddGroup(root, groupOther, imports.Command(f), auditcmd.Command(f), cert, configcmd.Command(f), schema, version)
	root.AddCommand(helpTopics()...)
	root.SetHelpCommandGroupID(groupOther)
	root.SetCompletionCommandGroupID(groupOther)
	root.SetUsageTemplate(usageTemplate)
	root.SetHelpCommand(helpCommand(root))
	root.InitDefaultCompletionCmd() // now, so that it is refused unknown words like the others
	plainText(f, root)
	refuseUnknown(f, root)
	root.AddCommand(manCommand(root))

	if len(f.Words) == 0 || strings.HasPrefix(f.Words[0], cobra.ShellCompRequestCmd) {
		complete.AllFlags(f, root) // it takes as long as all else before a command's own work
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

		if c.Annotations[factory.FormatsKey] == "" {
			if c.Annotations == nil {
				c.Annotations = map[string]string{}
			}
			c.Annotations[factory.FormatsKey] = formats
		}

		daemonFormats(c.Commands())
	}
}

// plainText declares that cobra's own commands have one format, and no use for the
// user's configuration.
func plainText(f *factory.Factory, root *cobra.Command) {
	for _, c := range root.Commands() {
		if c.Name() == "help" || c.Name() == "completion" {
			for _, sub := range append(c.Commands(), c) {
				factory.LimitFormats(sub, output.FormatTable)
				factory.WithoutConfig(sub)
			}
		}
	}
}

func everydayCommands(f *factory.Factory) []*cobra.Command {
	next := taskcmd.NextCommand(f)
	next.Use = "next [TASK...]"
	next.Short = "Show the next ticks of one task or all tasks"
	return []*cobra.Command{apply.Command(f), apply.DiffCommand(f), logs.Command(f), next, taskcmd.WhyCommand(f), eventscmd.Command(f), topcmd.Command(f)}
}

// refuseUnknown makes every command that only groups others say so when it is
// given a word that is none of theirs; cobra would print help and succeed.
func refuseUnknown(f *factory.Factory, cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		refuseUnknown(f, c)
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
