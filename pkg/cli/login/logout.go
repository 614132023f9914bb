package login

import (
	"context"
	"errors"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/settings"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// LogoutCommand returns "carillon logout".
func LogoutCommand(f *factory.Factory) *cobra.Command {
	cmd := factory.LimitFormats(&cobra.Command{
		Use:   "logout [CONTEXT]",
		Short: "Remove the token of a context",
		Long: "Remove the token of the context in use, or of another one, from the configuration. If it is a session, the session\n" +
			"ends, too. A token that was created to be kept remains valid: to delete it, use \"carillon token delete\". A file that\n" +
			"token_file names is not deleted.",
		Example: "  carillon logout\n  carillon logout prod",
		Args:    factory.Args(0, 1, "the context's name"), ValidArgsFunction: complete.Contexts(f),
		RunE: func(cmd *cobra.Command, words []string) error {
			if len(words) == 1 {
				f.ContextFlag = words[0] // credentials are those of this context
			}

			return logout(cmd.Context(), f)
		},
	}, output.FormatTable)
	factory.WithoutConfig(cmd) // the word decides which context is read

	return cmd
}

func logout(ctx context.Context, f *factory.Factory) error {
	s, err := f.Settings()
	if err != nil {
		return err
	}
	if s.Name == "" {
		return failure.Usage("no context is in use, and so no token is saved")
	}
	if s.Token == "" && s.TokenFile == "" {
		return failure.Usage("context %s has no token", s.Name)
	}

	kept, err := endSession(ctx, f, s)
	if err != nil {
		return err
	}

	_, anew, err := f.ChangeFile(func(file *settings.File) error {
		c, ok := file.Contexts[s.Name]
		if !ok {
			return s.UnknownContext(s.Name)
		}
		c.Token, c.TokenFile = "", ""
		file.Contexts[s.Name] = c

		return nil
	})
	if anew {
		f.Note("%s was rewritten; its comments are lost", f.Path())
	}
	if err != nil {
		return err
	}

	f.Say("logged out of context %s", s.Name)
	if kept != nil {
		f.Note("the token %s is still valid; an administrator, or you with another token, can delete it: carillon token delete %s", kept.ID, kept.ID)
	}

	return nil
}

// endSession ends the session whose secret a context has. If the token of the context is no session, it returns the token.
// A token that is no longer accepted needs nothing.
func endSession(ctx context.Context, f *factory.Factory, s *settings.Settings) (kept *task.Token, err error) {
	if s.Token == "" {
		return nil, nil // the file stays, with its token
	}

	cfg, err := f.ClientConfigWith(f.Timeout, settings.Credential{Token: s.Token})
	if err != nil {
		return nil, err
	}

	cfg.Server, cfg.ReadOnly = s.Server, false // the token is not sent to another server, and a logout is no change of tasks
	c, err := client.New(cfg)
	if err != nil {
		return nil, err
	}

	me, err := c.Access.WhoAmI(ctx)
	if err == nil && me.Token != nil && me.Token.Kind == task.TokenKindSession {
		err = c.Sessions.End(ctx)
		me.Token = nil
	}

	var remote *client.Error
	if errors.As(err, &remote) && remote.Status == http.StatusUnauthorized {
		return nil, nil
	}

	return me.Token, err
}
