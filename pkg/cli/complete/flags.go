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

// GlobalFlags registers the completion of global flags.
func GlobalFlags(f *factory.Factory, root *cobra.Command) {
	RegisterFixed(root, "output", output.Formats...)
	RegisterFixed(root, "time", output.TimeRelative, output.TimeLocal, output.TimeTask, output.TimeUTC)
	RegisterFixed(root, "color", "auto", "always", "never")
	Register(root, "namespace", Namespaces(f))
	Register(root, "context", func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return Contexts(f)(cmd, nil, typed)
	})
}

// AllFlags registers the completion of flags that have the same meaning in all commands.
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

	own := cmd.LocalNonPersistentFlags() // computed once, because each call computes it again

	for flag, words := range known {
		if own.Lookup(flag) != nil {
			Register(cmd, flag, words) // has no effect if the command has registered its own
		}
	}

	own.VisitAll(func(flag *pflag.Flag) {
		if !namesFile.MatchString(flag.Name) {
			Register(cmd, flag.Name, cobra.NoFileCompletions) // prevents the completion of file names
		}
	})

	takesFiles := strings.Contains(cmd.Use, "FILE") || strings.Contains(cmd.Use, "COMMAND")
	if refuses := cmd.Args != nil && cmd.Args(cmd, []string{"x"}) != nil; cmd.ValidArgsFunction == nil && !cmd.HasSubCommands() && (refuses || !takesFiles) {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
}

// namesFile matches the names of flags whose value is a file or a directory.
var namesFile = regexp.MustCompile(`(^|-)(file|filename|dir|config|ca|cert|key)$`)

// Fixed completes a fixed list of words.
func Fixed(words ...string) Func {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// completeZones completes names of time zones.
func completeZones(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return schedule.ZoneNames(typed), cobra.ShellCompDirectiveNoFileComp
}

// RegisterFixed registers a fixed list of words for a flag.
func RegisterFixed(cmd *cobra.Command, flag string, words ...string) {
	Register(cmd, flag, Fixed(words...))
}

// Register registers the completion of a flag, unless it has one already.
func Register(cmd *cobra.Command, flag string, f Func) {
	_ = cmd.RegisterFlagCompletionFunc(flag, f) // fails only if the flag does not exist
}
