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

// Args checks the number of arguments, with the usage line as the hint.
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

// AddGroup adds commands in a group of the parent's help.
func AddGroup(parent *cobra.Command, group string, commands ...*cobra.Command) {
	for _, c := range commands {
		c.GroupID = group
		parent.AddCommand(c)
	}
}

// FormatsKey is the annotation that LimitFormats sets.
const FormatsKey = "carillon/formats"

// LimitFormats declares the formats that a command has.
func LimitFormats(cmd *cobra.Command, formats ...string) *cobra.Command {
	cmd.Annotations = map[string]string{FormatsKey: strings.Join(formats, ",")}
	return cmd
}

const offlineKey = "carillon/offline"

// WithoutConfig declares that commands, and those within them, have no use for the
// user's configuration: they work where it is broken.
func WithoutConfig(commands ...*cobra.Command) {
	for _, cmd := range commands {
		if cmd.Annotations == nil {
			cmd.Annotations = map[string]string{}
		}
		cmd.Annotations[offlineKey] = "yes"
	}
}

func worksOffline(cmd *cobra.Command) bool {
	for ; cmd != nil; cmd = cmd.Parent() {
		if cmd.Annotations[offlineKey] != "" || strings.HasPrefix(cmd.Name(), cobra.ShellCompRequestCmd) {
			return true
		}
	}

	return false
}

// Formats are the output formats that a command has.
func Formats(cmd *cobra.Command) []string {
	if s, ok := cmd.Annotations[FormatsKey]; ok {
		return strings.Split(s, ",")
	}
	return output.Formats
}

// Sleep waits between two polls.
func Sleep(ctx context.Context, d time.Duration) error {
	if !clock.Sleep(ctx, d) {
		return ctx.Err()
	}

	return nil
}
