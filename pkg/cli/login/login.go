// Package login implements "carillon login", "carillon logout" and "carillon ui": it saves a token in a context of the
// user's configuration, removes it again, and opens the Web UI with a login link.
//
// A token is saved only after the server has accepted it, and only in the configuration, which no other user can read. The
// secret of a login link is never an argument of another program, because all users of the host can read those.
package login

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/settings"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// defaultContext is the name of the context that a login creates if no context is in use.
const defaultContext = "default"

// Command returns "carillon login".
func Command(f *factory.Factory) *cobra.Command {
	var provider string
	cmd := factory.LimitFormats(&cobra.Command{
		Use:   "login [CONTEXT]",
		Short: "Save a token for a cluster",
		Long: "Read a token, from standard input or from the terminal without showing it, check it with the server, and save it in a\n" +
			"context. Later commands use this context. Without a name, it is the context in use, or one with the name default.\n\n" +
			"With --provider, you sign in with an OpenID Connect provider of the cluster instead: the command prints a page and a code\n" +
			"to confirm in a browser, on this host or another one. The session ends after eight hours, or with \"carillon logout\".\n\n" +
			"The server is that of the context, or of --server, which is then saved, too.",
		Example: "  carillon login --server https://carillon.example.com:7070\n  carillon login prod < prod.token\n  carillon login prod --provider corp",
		Args:    factory.Args(0, 1, "the context's name"), ValidArgsFunction: complete.Contexts(f),
		PreRunE: func(cmd *cobra.Command, _ []string) error { return factory.RefuseEmpty(cmd, "provider") },
		RunE: func(cmd *cobra.Command, words []string) error {
			target, err := chooseContext(f, words)
			if err != nil {
				return err
			}

			var secret string
			if provider != "" {
				secret, err = signIn(cmd.Context(), f, provider)
			} else {
				secret, err = readToken(cmd.Context(), f)
			}
			if err != nil {
				return err
			}

			return save(cmd.Context(), f, target, secret)
		},
	}, output.FormatTable, output.FormatJSON, output.FormatYAML)
	cmd.Flags().StringVar(&provider, "provider", "", "sign in with this OpenID Connect `PROVIDER` of the cluster")
	complete.Register(cmd, "provider", cobra.NoFileCompletions)
	factory.WithoutConfig(cmd) // the word decides which context is read

	return cmd
}

// target is the context that a login changes, and the server that it logs in to.
type target struct{ name, server string }

// chooseContext returns the context that the command names, or the one in use.
func chooseContext(f *factory.Factory, words []string) (t target, err error) {
	if len(words) == 1 {
		if err := task.CheckName("context", words[0]); err != nil {
			return t, err
		}

		file, _, err := settings.ReadFile(f.Path())
		if err != nil {
			return t, err
		}

		t.name = words[0]
		if _, exists := file.Contexts[t.name]; exists {
			f.ContextFlag = t.name // the files and the server of this context are used to check the token
		}
	}

	s, err := f.Settings()
	if err != nil {
		return t, err
	}

	t.name = cmp.Or(t.name, s.Name, defaultContext)
	t.server = f.ServerSetting(s).Value

	return t, nil
}

// readToken reads a token from the terminal, or from the first line of standard input.
func readToken(ctx context.Context, f *factory.Factory) (string, error) {
	read := func() (string, error) {
		line, _ := bufio.NewReader(f.In).ReadString('\n') // no input means no token
		return line, nil
	}

	if in, ok := f.In.(*os.File); ok && term.IsTerminal(int(in.Fd())) {
		if f.NoInput {
			return "", failure.Usage("the token is read from standard input, which is a terminal").WithHint("carillon login < FILE")
		}

		fmt.Fprint(f.Err, "Token: ")
		defer fmt.Fprintln(f.Err)
		read = func() (string, error) {
			b, err := term.ReadPassword(int(in.Fd()))
			return string(b), err
		}
	}

	line, err := factory.ReadPatiently(ctx, read)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}

	token := strings.TrimSpace(line)
	if token == "" {
		return "", failure.Usage("standard input contains no token").WithHint("carillon login < FILE")
	}

	return token, nil
}

// save checks a token with the server, and saves it in a context.
func save(ctx context.Context, f *factory.Factory, t target, secret string) error {
	me, err := whoIs(ctx, f, secret)
	if err != nil {
		return err
	}

	_, anew, err := f.ChangeFile(func(file *settings.File) error {
		c := file.Contexts[t.name]
		c.Server, c.Token, c.TokenFile = t.server, secret, ""
		if file.Contexts == nil {
			file.Contexts = map[string]settings.Context{}
		}
		file.Contexts[t.name], file.Current = c, t.name

		return task.Under("contexts."+t.name, c.Validate())
	})
	if anew {
		f.Note("%s was rewritten; its comments are lost", f.Path())
	}
	if err != nil {
		return err
	}

	if !f.ForPeople() {
		return output.EmitOne(&f.Printer, me, me.Subject, nil)
	}

	f.Say("logged in as %s · context %s", output.OneLine(me.Subject), t.name)
	if me.Token != nil && !me.Token.Until.IsZero() {
		what := "token"
		if me.Token.Kind == task.TokenKindSession {
			what = "session"
		}
		f.Note("the %s expires %s", what, view.ExpirySentence(f, me.Token.Until))
	}
	for _, variable := range []string{"CARILLON_TOKEN", "CARILLON_TOKEN_FILE"} {
		if f.Env(variable) != "" {
			f.Note("warning: %s is set; unset it, or commands use its token instead", variable)
		}
	}

	return nil
}

// whoIs asks the server whose token it is. A server that does not accept it answers with an error.
func whoIs(ctx context.Context, f *factory.Factory, secret string) (me client.WhoAmI, err error) {
	cfg, err := f.ClientConfigWith(f.Timeout, settings.Credential{Token: secret})
	if err != nil {
		return me, err
	}

	c, err := client.New(cfg)
	if err != nil {
		return me, err
	}

	return c.Access.WhoAmI(ctx)
}

// slower is how much longer the pauses between two polls become when the provider asks for that.
const slower = 5 * time.Second

// signIn signs a person in with an identity provider, in the device flow, and returns the secret of the session. It waits
// until the person has confirmed the login in a browser.
func signIn(ctx context.Context, f *factory.Factory, provider string) (string, error) {
	cfg, err := f.ClientConfigWith(f.Timeout, settings.Credential{})
	if err != nil {
		return "", err
	}

	cfg.ReadOnly, cfg.Confidential = false, true // a login does not change tasks, and the answer has the secret of the session
	c, err := client.New(cfg)
	if err != nil {
		return "", err
	}

	login, err := c.Logins.BeginDevice(ctx, provider)
	if err != nil {
		return "", err
	}

	f.Note("open %s and enter the code %s", output.OneLine(login.Page), output.OneLine(login.Code))
	if login.PageForCode != "" {
		f.Note("or open %s and compare the code", output.OneLine(login.PageForCode))
	}
	f.Note("waiting until you have confirmed the login …")

	// The provider ends the login in time: then polling returns an error. The limit is for one that does not.
	wait := max(time.Duration(login.Interval)*time.Second, time.Second)
	for until := time.Until(login.Ends.Time) + time.Minute; until > 0; until -= wait {
		session, err := c.Logins.PollDevice(ctx, login.Handle)

		switch {
		case err != nil && !mayPollAgain(err):
			return "", withOwnHint(f, err)
		case err == nil && session.Session != nil:
			return session.Session.Secret, nil
		case session.Slower:
			wait += slower
		}

		if err := factory.Sleep(ctx, wait); err != nil {
			return "", err
		}
	}

	return "", errors.New("nobody has confirmed the login in time")
}

// withOwnHint returns an error with the hint of the server. The usual hint for a request that is not authorized is to get
// another token, which does not help with a login that was refused.
func withOwnHint(f *factory.Factory, err error) error {
	var e *client.Error
	if !errors.As(err, &e) || e.Status != http.StatusUnauthorized || e.Hint == "" {
		return err
	}

	fail := f.ExplainRemote(e)
	fail.Hint = e.Hint

	return fail
}

// mayPollAgain reports whether a poll that has failed may succeed later: the node or the provider does not answer, or too many
// logins are under way.
func mayPollAgain(err error) bool {
	var e *client.Error
	if !errors.As(err, &e) {
		return false
	}
	if failure.IsUnreachable(err) {
		return true
	}

	switch e.Code {
	case client.CodeProviderAway, client.CodeBusy, client.CodeRateLimited, client.CodeNotReady:
		return true
	}

	return e.Status == http.StatusBadGateway || e.Status == http.StatusGatewayTimeout
}

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

// endSession ends the session whose secret a context has. If the token of the context is not a session, it returns the token.
// A token that is no longer accepted needs nothing.
func endSession(ctx context.Context, f *factory.Factory, s *settings.Settings) (kept *task.Token, err error) {
	if s.Token == "" {
		return nil, nil // the file stays, with its token
	}

	cfg, err := f.ClientConfigWith(f.Timeout, settings.Credential{Token: s.Token})
	if err != nil {
		return nil, err
	}

	cfg.Server, cfg.ReadOnly = s.Server, false // the token is not sent to another server, and a logout does not change tasks
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
