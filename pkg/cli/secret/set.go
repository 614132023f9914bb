package secret

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/envfile"
	"github.com/carillonhq/carillon/pkg/task"
)

// secretSources contains the flags that define the values of a secret.
type secretSources struct {
	envFile string
	files   []string
	remove  []string
	replace bool
}

// setCommand returns "carillon secret set".
func setCommand(f *factory.Factory) *cobra.Command {
	var sources secretSources
	cmd := &cobra.Command{
		Use:   "set NAME [KEY...]",
		Short: "Create a secret or set its values",
		Long: "Create a secret or set its values. Values that you do not name stay as they are. The value of KEY is read from standard\n" +
			"input, without the newline at its end. On a terminal, the command asks for each KEY and does not show your input.",
		Example: "  carillon secret set db password\n" +
			"  pwgen 32 1 | carillon secret set db password\n" +
			"  carillon secret set db --env-file db.env --replace\n" +
			"  carillon secret set tls --file KEY=/etc/ssl/private/app.pem\n" +
			"  carillon secret set db --remove old_password",
		Args: factory.Args(1, -1, "the secret's name"), ValidArgsFunction: complete.At(completeSecrets(f), nil),
	}

	cmd.Flags().StringVar(&sources.envFile, "env-file", "", "read values from this `FILE`, one NAME=value per line, as in systemd's EnvironmentFile; - reads standard input")
	cmd.Flags().StringArrayVar(&sources.files, "file", nil, "read the value of a key from a file, as `KEY=FILE`, without the newline at its end; may be repeated")
	cmd.Flags().StringSliceVar(&sources.remove, "remove", nil, "remove the values of these `KEYS`")
	cmd.Flags().BoolVar(&sources.replace, "replace", false, "remove all values that you do not name")
	complete.Register(cmd, "remove", cobra.NoFileCompletions)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		// This check comes before any other message about the words, because a word may contain a value.
		for _, w := range words {
			if name, _, ok := strings.Cut(w, "="); ok {
				return failure.Usage("%s=…: other users of this host can read a value on the command line", task.Quote(name)).
					WithHint("to read it from standard input: carillon secret set NAME KEY; remove the value that you typed from the history of your shell")
			}
		}

		r, err := selection.ParseRef(f, words[0])
		if err != nil {
			return err
		}

		values, err := secretValues(cmd.Context(), f, words[1:], sources)
		if err != nil {
			return err
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		s, err := c.Secrets.Set(cmd.Context(), r.Namespace, r.Name, client.SecretRequest{Values: values, Remove: sources.remove, Replace: sources.replace})
		if err != nil {
			return err
		}

		noteLacking(cmd.Context(), f, c, s)

		if f.ForPeople() {
			f.Say("set secret %s: %s, generation %d", selection.Show(f, r), strings.Join(s.Keys, ", "), s.Generation)
			return nil
		}

		return output.EmitOne(&f.Printer, s, secretName(f, s), nil)
	}

	return cmd
}

// secretValues reads the values to write.
func secretValues(ctx context.Context, f *factory.Factory, keys []string, sources secretSources) (map[string]string, error) {
	values := map[string]string{}

	if sources.fromInput()+min(len(keys), 1) > 1 || len(keys) > 1 && !asksForValues(f) {
		return nil, failure.Usage("standard input contains only one value: name one KEY, or use --env-file -")
	}

	for _, key := range keys { // before the user is asked for values
		if err := task.CheckVariable("key", key); err != nil {
			return nil, err
		}
	}

	put := func(key, value string) error {
		if err := task.CheckVariable("key", key); err != nil {
			return err
		}
		if _, twice := values[key]; twice {
			return failure.Usage("%s is given twice", task.Quote(key))
		}
		if value == "" { // otherwise, a command that fails in a pipe would set an empty value
			return failure.Usage("%s: the value is empty", task.Quote(key)).WithHint("to set an empty value, write %s= in a file for --env-file", key)
		}

		values[key] = value

		return nil
	}

	if sources.envFile != "" {
		b, err := secretFile(ctx, f, sources.envFile)
		if err != nil {
			return nil, err
		}
		if values, err = envfile.Parse(b); err != nil {
			return nil, &failure.Error{Exit: failure.ExitUsage, Problem: failure.Problem{Code: "env_file", Message: fmt.Sprintf("%s: %s", sources.envFile, err)}}
		}
	}

	for _, pair := range sources.files {
		key, file, ok := strings.Cut(pair, "=")
		if !ok || file == "" {
			return nil, failure.Usage("--file: use KEY=FILE")
		}

		b, err := secretFile(ctx, f, file)
		if err == nil {
			err = put(key, withoutNewline(b))
		}

		if err != nil {
			return nil, err
		}
	}

	if len(keys) == 0 && len(values)+len(sources.remove) == 0 {
		return nil, failure.Usage("secret set: no values given; name a KEY, or use --env-file, --file or --remove")
	}

	for _, key := range keys {
		value, err := readSecret(ctx, f, key)
		if err == nil {
			err = put(key, value)
		}

		if err != nil {
			return nil, err
		}
	}

	if len(values) == 0 {
		return nil, nil
	}

	return values, task.CheckSecret("values", values)
}

// fromInput returns how many sources are standard input.
func (s secretSources) fromInput() (n int) {
	if s.envFile == "-" {
		n++
	}

	for _, pair := range s.files {
		if _, file, _ := strings.Cut(pair, "="); file == "-" {
			n++
		}
	}

	return n
}

// asksForValues reports whether the user is asked for values, because standard input is a terminal.
func asksForValues(f *factory.Factory) bool {
	_, isFile := f.In.(*os.File)
	_, tty := f.Terminal(f.In)
	return tty && isFile
}

// readSecret reads a value from standard input. On a terminal, the input is not shown.
func readSecret(ctx context.Context, f *factory.Factory, key string) (string, error) {
	if !asksForValues(f) {
		b, err := factory.ReadPatiently(ctx, func() ([]byte, error) { return io.ReadAll(io.LimitReader(f.In, task.MaxSecretValues+2)) })
		return withoutNewline(b), err
	}

	if f.NoInput {
		return "", failure.Usage("%s: cannot ask for the value because of --no-input", task.Quote(key))
	}

	fd := int(f.In.(*os.File).Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return "", err
	}

	fmt.Fprintf(f.Err, "%s: ", key)
	b, err := factory.ReadPatiently(ctx, func() ([]byte, error) { return term.ReadPassword(fd) })
	fmt.Fprintln(f.Err)
	if err != nil {
		_ = term.Restore(fd, before) // otherwise, the terminal would not show further input
		return "", err
	}

	return string(b), nil
}

// secretFile reads a file with values.
func secretFile(ctx context.Context, f *factory.Factory, path string) ([]byte, error) {
	in := f.In
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, &failure.Error{Exit: failure.ExitUsage, Problem: failure.Problem{Code: "file", Message: path + ": " + failure.FileReason(err)}}
		}

		defer file.Close()

		in = file
	}

	const most = 2 * task.MaxSecretValues // with comments
	b, err := factory.ReadPatiently(ctx, func() ([]byte, error) { return io.ReadAll(io.LimitReader(in, most+1)) })
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", path, err)
	case len(b) > most: // reading only a part would lose values silently
		return nil, &failure.Error{Exit: failure.ExitUsage, Problem: failure.Problem{Code: "file", Message: fmt.Sprintf("%s: is larger than %d bytes", path, most)}}
	}

	return b, nil
}

// withoutNewline removes the newline that editors and echo add at the end.
func withoutNewline(b []byte) string {
	s := strings.TrimSuffix(string(b), "\n")
	return strings.TrimSuffix(s, "\r")
}
