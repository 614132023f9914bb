package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	accesscmd "github.com/carillonhq/carillon/pkg/cli/access"
	alertcmd "github.com/carillonhq/carillon/pkg/cli/alert"
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
	"github.com/carillonhq/carillon/pkg/cli/load"
	"github.com/carillonhq/carillon/pkg/cli/login"
	"github.com/carillonhq/carillon/pkg/cli/logs"
	"github.com/carillonhq/carillon/pkg/cli/mcp"
	namespacecmd "github.com/carillonhq/carillon/pkg/cli/namespace"
	nodecmd "github.com/carillonhq/carillon/pkg/cli/node"
	"github.com/carillonhq/carillon/pkg/cli/output"
	rolecmd "github.com/carillonhq/carillon/pkg/cli/role"
	runcmd "github.com/carillonhq/carillon/pkg/cli/run"
	schedulecmd "github.com/carillonhq/carillon/pkg/cli/schedule"
	secretcmd "github.com/carillonhq/carillon/pkg/cli/secret"
	shardcmd "github.com/carillonhq/carillon/pkg/cli/shard"
	taskcmd "github.com/carillonhq/carillon/pkg/cli/task"
	tokencmd "github.com/carillonhq/carillon/pkg/cli/token"
	topcmd "github.com/carillonhq/carillon/pkg/cli/top"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
)

// IO contains the streams and the environment of a command.
type IO = factory.IO

// Main runs one command line, without the program's name, and returns its exit code. daemonCommands are added
// to the tree unchanged. Their errors are printed like any other, and an error with a method ExitCode() int
// determines the exit code. When ctx ends, the command ends with exit code 130.
func Main(ctx context.Context, args []string, sys IO, daemonCommands ...*cobra.Command) int {
	a := factory.New(sys)
	adjustForTests(a)
	return runCommandLine(ctx, a, args, daemonCommands...)
}

// adjustForTests can change limits in tests.
var adjustForTests = func(*factory.Factory) {}

// runCommandLine implements Main.
func runCommandLine(ctx context.Context, f *factory.Factory, args []string, daemonCommands ...*cobra.Command) int {
	f.Words = args
	root := newRootCommand(f, daemonCommands)
	root.SetArgs(taskcmd.ProtectTerms(root, args))

	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && ctx.Err() != nil {
		err = failure.Interrupted(err)
		if follows(cmd) {
			return failure.ExitInterrupted
		}
	}

	var known *failure.Error
	if err != nil && !f.Parsed && !errors.As(err, &known) {
		err = failure.Usage("%s", err) // an error of cobra about the words of the command line
	}

	exit := f.Report(err)
	f.PrintHeldHints()

	return exit
}

// follows reports whether a command continues until the user ends it. To interrupt it is no failure, so it prints no error.
func follows(cmd *cobra.Command) bool {
	return slices.ContainsFunc([]string{"follow", "watch"}, func(flag string) bool {
		on, err := cmd.Flags().GetBool(flag)
		return err == nil && on
	})
}

// oneSignal is the time within which several signals count as one. A process may receive a signal twice: from the
// service manager, and from a parent that forwards it.
const oneSignal = time.Second

// Signals returns a context that ends at the first SIGINT or SIGTERM. A signal that arrives more than a
// second later has its default effect and ends the process, so a drain that hangs cannot prevent that.
func Signals(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() { time.AfterFunc(oneSignal, stop) })
	return ctx, stop
}

// The groups of commands in the help.
const (
	groupEveryday = "everyday"
	groupNouns    = "nouns"
	groupDaemon   = "daemon"
	groupOther    = "other"
)

// newRootCommand returns the tree of commands.
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
		SilenceErrors:      true, // Factory.Report prints them
		SilenceUsage:       true,
		DisableSuggestions: true, // unknownCommand makes suggestions
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
	factory.AddGroup(root, groupNouns, taskcmd.Command(f), runcmd.Command(f), alertcmd.Command(f), nodecmd.Command(f), shardcmd.Command(f), clustercmd.Command(f), secretcmd.Command(f), schedulecmd.Command(f),
		namespacecmd.Command(f), accesscmd.Command(f), rolecmd.Command(f), tokencmd.Command(f))

	for _, c := range daemonCommands {
		if c.GroupID == "" && !c.Hidden {
			c.GroupID = groupDaemon
		}

		c.SetUsageFunc(usageFunc(false)) // global flags apply only to clients
		root.AddCommand(c)
	}

	factory.WithoutConfig(daemonCommands...)
	daemonFormats(daemonCommands)
	version := versionCommand(f) // also works without a configuration, because it helps to find out why a server does not answer
	cert, schema := certcmd.Command(f), schemaCommand(f)
	factory.WithoutConfig(cert, schema, version)
	factory.AddGroup(root, groupOther, imports.Command(f), auditcmd.Command(f), login.Command(f), login.LogoutCommand(f), accesscmd.WhoAmICommand(f), cert, configcmd.Command(f), mcp.Command(f), schema, version)
	addHostCommands(f, root)
	root.AddCommand(helpTopics()...)
	root.SetHelpCommandGroupID(groupOther)
	root.SetCompletionCommandGroupID(groupOther)
	root.SetUsageFunc(usageFunc(true))
	root.SetHelpCommand(helpCommand(root))
	root.InitDefaultCompletionCmd() // before refuseUnknown, so that it rejects unknown words like the others
	plainText(f, root)
	refuseUnknown(f, root)
	root.AddCommand(manCommand(root))

	if len(f.Words) == 0 || strings.HasPrefix(f.Words[0], cobra.ShellCompRequestCmd) {
		complete.AllFlags(f, root) // takes as long as everything else before the command runs, so it is done only for completion
	}

	return root
}

// daemonFormats declares that the commands of package daemon print only text.
func daemonFormats(commands []*cobra.Command) {
	for _, c := range commands {
		if c.Annotations[factory.FormatsKey] == "" {
			if c.Annotations == nil {
				c.Annotations = map[string]string{}
			}
			c.Annotations[factory.FormatsKey] = output.FormatTable
		}

		daemonFormats(c.Commands())
	}
}

// plainText declares that cobra's own commands have only one format, and do not use the user's configuration.
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

// everydayCommands returns the common commands.
func everydayCommands(f *factory.Factory) []*cobra.Command {
	next := taskcmd.NextCommand(f)
	next.Use = "next [TASK... | QUERY]"
	next.Short = "Show the next ticks of one task or all tasks"
	return []*cobra.Command{apply.Command(f), apply.DiffCommand(f), logs.Command(f), next, load.Command(f), taskcmd.WhyCommand(f), eventscmd.Command(f), topcmd.Command(f), login.UICommand(f)}
}

// refuseUnknown makes every command that only groups others return an error for an unknown word. Without it,
// cobra prints help and succeeds.
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

// versionInfo contains the versions of this program and of the server.
type versionInfo struct {
	Version string          `json:"version"`
	Go      string          `json:"go"`
	Server  *client.Version `json:"server"`
}

// versionCommand returns "carillon version".
func versionCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program and of the server",
		Example: "  carillon version\n  carillon version -o json",
		Args:    factory.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versionInfo{Version: f.Version, Go: runtime.Version()}
			c, err := f.ConnectFor(min(f.LookupTimeout, f.Timeout))
			var server client.Version
			if err == nil {
				server, err = c.Version(cmd.Context())
			}

			if err == nil {
				v.Server = &server
			}

			// An unreachable server is not a failure, because the version of the program is known.
			return output.EmitOne(&f.Printer, v, v.Version, func(d *output.Details) {
				d.Field("Client", "%s (%s)", v.Version, v.Go)

				if err != nil {
					f.Note("server: %s", output.OneLine(err.Error()))
					return
				}

				d.Field("Server", "%s (%s) on node %s, cluster %s", server.Version, server.Go, server.Node, server.Cluster)
			})
		},
	}
}

// schemaCommand returns "carillon schema".
func schemaCommand(f *factory.Factory) *cobra.Command {
	return factory.LimitFormats(&cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of task files",
		Long: "Print the JSON Schema (draft 2020-12) of task files. Editors that know it complete fields and values,\n" +
			"explain them, and mark mistakes. With yaml-language-server a file names it in its first line:\n\n" +
			"  # yaml-language-server: $schema=carillon.schema.json",
		Example:           `  carillon schema > carillon.schema.json`,
		Args:              factory.Args(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			b, err := manifest.Schema()
			if err != nil {
				return err
			}
			return f.Print(string(b))
		},
	}, output.FormatTable, output.FormatJSON)
}
