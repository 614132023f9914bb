package access

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/token"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

func disableCommand(f *factory.Factory) *cobra.Command {
	return subjectCommand(f, &cobra.Command{
		Use:   "disable SUBJECT",
		Short: "Take all rights from a subject, for now",
		Long: "Disable a subject. It may do nothing until carillon access enable, and its tokens are not accepted. When the command\n" +
			"returns, no change that it has requested is made any more. Streams such as logs -f end within 15 seconds.\n\n" +
			"Its tasks continue, because they belong to their namespaces. So do the tokens and bindings that it has made for\n" +
			"others: the command lists them.",
		Example: "  carillon access disable user:ann\n  carillon access disable cert:old-host",
	}, (*client.SubjectsService).Disable, func(change client.SubjectChange) {
		f.Say("disabled %s", output.OneLine(change.Subject))
		if len(change.Tokens) > 0 {
			f.Say("not accepted any more: %s", ofTokens(change.Tokens))
		}
		if len(change.MadeTokens)+len(change.MadeBindings) == 0 {
			return
		}

		f.Note("note: it has made these for others, and they stay in force:")
		for _, t := range change.MadeTokens {
			f.Note("  token %s of %s: carillon token delete %s", t.ID, output.OneLine(t.Subject), t.ID)
		}
		for _, b := range change.MadeBindings {
			f.Note("  %s for %s %s: carillon access revoke %s", output.OneLine(b.Role), output.OneLine(strings.Join(b.Subjects, ", ")), view.InWhere(b.Namespaces, b.Cluster), b.Name)
		}
	})
}

// ofTokens names tokens in a sentence.
func ofTokens(list []task.Token) string {
	ids := make([]string, len(list))
	for i, t := range list {
		ids[i] = t.ID
	}
	return output.Plural(int64(len(list)), "token") + " (" + strings.Join(ids, ", ") + ")"
}

func enableCommand(f *factory.Factory) *cobra.Command {
	return subjectCommand(f, &cobra.Command{
		Use:     "enable SUBJECT",
		Short:   "Give a disabled subject its rights back",
		Long:    "Enable a subject that was disabled. Its bindings and tokens are in force again. You must have all rights that it gets.",
		Example: "  carillon access enable user:ann",
	}, (*client.SubjectsService).Enable, func(change client.SubjectChange) {
		f.Say("enabled %s: %s, %s", output.OneLine(change.Subject), output.Plural(int64(len(change.Bindings)), "binding"), output.Plural(int64(len(change.Tokens)), "token"))
	})
}

// subjectCommand makes cmd do something to a subject, and tell people what that means.
func subjectCommand(f *factory.Factory, cmd *cobra.Command, do func(*client.SubjectsService, context.Context, string) (client.SubjectChange, error), tell func(client.SubjectChange)) *cobra.Command {
	cmd.Args = factory.Args(1, 1, "the subject, such as user:ann,")
	cmd.ValidArgsFunction = complete.At(complete.Subjects(f), nil)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		c, err := f.Connect()
		if err != nil {
			return err
		}

		change, err := factory.RetryBusy(cmd.Context(), func() (client.SubjectChange, error) { return do(c.Subjects, cmd.Context(), words[0]) })
		if err != nil {
			return err
		}

		if f.ForPeople() {
			tell(change)
			return nil
		}

		return output.EmitOne(&f.Printer, change, change.Subject, nil)
	}

	return cmd
}

func resetCommand(f *factory.Factory) *cobra.Command {
	return factory.LimitFormats(&cobra.Command{
		Use:   "reset",
		Short: "Create a new administrator, as root on a node's host",
		Long: "Create a new token of service:bootstrap, enable that subject, and make it an administrator of the cluster. Use it when\n" +
			"no administrator has a working token.\n\n" +
			"Only root on the host of a node that serves the API may do this, over the unix socket of the node and without a\n" +
			"token. The reset is logged and audited. The command prints the secret of the token on standard output, once.",
		Example: "  (umask 077; sudo carillon access reset --yes > admin.token)",
		Args:    factory.Args(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			if !f.Yes {
				ok, err := f.Ask(cmd.Context(), "create a new administrator of the cluster?", 1, false)
				if fail := new(failure.Error); errors.As(err, &fail) && fail.Exit == failure.ExitUsage {
					return fail.WithHint("add --yes to confirm") // this command does not have --dry-run, which the usual hint names
				}
				if !ok {
					return err
				}
			}

			t, err := factory.RetryBusy(cmd.Context(), func() (client.NewToken, error) { return c.Access.Reset(cmd.Context()) })
			if err != nil {
				return err
			}

			if !f.ForPeople() {
				return output.EmitOne(&f.Printer, t, t.ID, nil)
			}

			token.NoteCreated(cmd.Context(), f, c, t)
			f.Note("next: give yourself rights with carillon access grant, create a token of your own, and delete this one")

			return f.Print(t.Secret + "\n")
		},
	}, output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML) // -o name would lose the secret
}
