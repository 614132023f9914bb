package login

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"

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
