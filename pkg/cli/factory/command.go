package factory

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/task"
)

// Args returns a check of the number of arguments, from least to most (negative: no limit). Its errors contain
// the usage line as the hint. what names the arguments in the message.
func Args(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return failure.Usage("%s: %s is missing", cmd.CommandPath(), what).WithHint("%s", cmd.UseLine())
		case most >= 0 && len(args) > most:
			return failure.Usage("%s: unexpected argument %s", cmd.CommandPath(), task.Quote(args[most])).WithHint("%s", cmd.UseLine())
		}

		return nil
	}
}

// AddGroup adds commands to a parent, in one group of its help.
func AddGroup(parent *cobra.Command, group string, commands ...*cobra.Command) {
	for _, c := range commands {
		c.GroupID = group
		parent.AddCommand(c)
	}
}

// FormatsKey is the annotation with the output formats of a command.
const FormatsKey = "carillon/formats"

// LimitFormats declares the output formats that a command supports.
func LimitFormats(cmd *cobra.Command, formats ...string) *cobra.Command {
	cmd.Annotations = map[string]string{FormatsKey: strings.Join(formats, ",")}
	return cmd
}

// offlineKey is the annotation of commands that do not use the user's configuration.
const offlineKey = "carillon/offline"

// WithoutConfig declares that commands and their subcommands do not use the user's configuration, so they also
// work if it is invalid.
func WithoutConfig(commands ...*cobra.Command) {
	for _, cmd := range commands {
		if cmd.Annotations == nil {
			cmd.Annotations = map[string]string{}
		}
		cmd.Annotations[offlineKey] = "yes"
	}
}

// aloneKey is the annotation of commands that do something without a subcommand, too.
const aloneKey = "carillon/alone"

// RunsAlone declares that a command with subcommands does something without one, so that its help says so.
func RunsAlone(cmd *cobra.Command) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[aloneKey] = "yes"
}

// IsRunAlone reports whether a command was passed to RunsAlone.
func IsRunAlone(cmd *cobra.Command) bool { return cmd.Annotations[aloneKey] != "" }

// worksOffline reports whether a command, or one of its parents, was passed to WithoutConfig.
func worksOffline(cmd *cobra.Command) bool {
	for ; cmd != nil; cmd = cmd.Parent() {
		if cmd.Annotations[offlineKey] != "" || strings.HasPrefix(cmd.Name(), cobra.ShellCompRequestCmd) {
			return true
		}
	}

	return false
}

// Formats returns the output formats that a command supports.
func Formats(cmd *cobra.Command) []string {
	if s, ok := cmd.Annotations[FormatsKey]; ok {
		return strings.Split(s, ",")
	}
	return output.Formats
}

// Sleep waits between two polls. It returns the error of ctx if that ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	if !clock.Sleep(ctx, d) {
		return ctx.Err()
	}

	return nil
}
