package complete

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// GlobalFlags registers what completes the global flags.
func GlobalFlags(f *factory.Factory, root *cobra.Command) {
	RegisterFixed(root, "output", output.Formats...)
	RegisterFixed(root, "time", output.TimeRelative, output.TimeLocal, output.TimeTask, output.TimeUTC)
	RegisterFixed(root, "color", "auto", "always", "never")
	Register(root, "namespace", Namespaces(f))
	Register(root, "context", func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return Contexts(f)(cmd, nil, typed)
	})
}

// AllFlags gives flags of one meaning the same words, in all commands.
func AllFlags(f *factory.Factory, cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		AllFlags(f, c)
	}

	known := map[string]Func{"selector": TaskLabels(f), "timezone": completeZones,
		"task": Tasks(f), "node": Nodes(f), "record": Fixed(task.RecordAll, task.RecordFailures),
		"tls-client-auth": Fixed("none", "optional", "require"), "role": Fixed("scheduler", "executor"), "log-format": Fixed("json", "console"),
		"log-level": Fixed("debug", "info", "warn", "error"), "initial-cluster-state": Fixed("new", "existing")}
	if cmd.HasParent() && cmd.Parent().Name() == "node" {
		known["selector"] = NodeLabels(f)
	}

	own := cmd.LocalNonPersistentFlags() // put together anew by each call

	for flag, words := range known {
		if own.Lookup(flag) != nil {
			Register(cmd, flag, words) // but for a command that has its own
		}
	}

	own.VisitAll(func(flag *pflag.Flag) {
		if !namesFile.MatchString(flag.Name) {
			Register(cmd, flag.Name, cobra.NoFileCompletions) // a file is not the answer
		}
	})

	takesFiles := strings.Contains(cmd.Use, "FILE") || strings.Contains(cmd.Use, "COMMAND")
	if refuses := cmd.Args != nil && cmd.Args(cmd, []string{"x"}) != nil; cmd.ValidArgsFunction == nil && !cmd.HasSubCommands() && (refuses || !takesFiles) {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
}

// namesFile is what flags are called whose value is a file or a directory.
var namesFile = regexp.MustCompile(`(^|-)(file|filename|dir|config|ca|cert|key)$`)

// Fixed is a completer of words that are always the same.
func Fixed(words ...string) Func {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// completeZones offers the names of time zones.
func completeZones(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return schedule.ZoneNames(typed), cobra.ShellCompDirectiveNoFileComp
}

// RegisterFixed has a flag completed by words that are always the same.
func RegisterFixed(cmd *cobra.Command, flag string, words ...string) {
	Register(cmd, flag, Fixed(words...))
}

// Register has a flag completed, unless it is already.
func Register(cmd *cobra.Command, flag string, f Func) {
	_ = cmd.RegisterFlagCompletionFunc(flag, f) // fails only for a flag that is not there
}
