package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// filled refuses flags that were given and are empty, as those of a script whose
// variable is: to take them for left out would do something else than was meant.
func filled(cmd *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
			return failure.Usage("--%s is empty: leave it out, or say what you mean", name)
		}
	}
	return nil
}

// report tells an error and returns the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return 0
	}
	f := a.explain(err)
	if f.Reported {
		return f.Exit
	}
	if a.wantsJSON() {
		p := f.Problem
		if f.Location != "" {
			p.Message = f.Location + ": " + p.Message
		}
		b, err := output.CompactJSON(p)
		if _, tty := a.Terminal(a.Err); tty {
			b = output.SanitizeJSON(b)
		}
		if err == nil {
			_, _ = a.Err.Write(append(b, '\n')) // nobody is left to tell
		}
		return f.Exit
	}
	fmt.Fprintf(a.Err, "%s %s\n", a.PaintErr(output.Red, "error:"), output.Sanitize(f.Error()))
	if f.Hint != "" && f.Hint != a.hinted { // a hundred errors of a kind need one
		fmt.Fprintf(a.Err, "%s %s\n", a.PaintErr(output.Dim, "hint:"), a.Plain(output.Sanitize(f.Hint)))
		a.hinted = f.Hint
	}
	return f.Exit
}

// explain finds the exit code and the words for an error.
func (a *app) explain(err error) *failure.Error {
	var f *failure.Error
	var remote *client.Error
	var field *task.Error
	var coded interface{ ExitCode() int }
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &remote):
		f = a.explainRemote(remote)
	case errors.As(err, &field):
		f = &failure.Error{Exit: failure.ExitUsage, Problem: failure.Problem{Code: field.Code, Field: field.Field, Message: field.Message}}
	case errors.As(err, &coded):
		return &failure.Error{Exit: coded.ExitCode(), Problem: failure.Problem{Code: failure.CodeFailure, Message: err.Error()}}
	case errors.Is(err, context.DeadlineExceeded):
		return &failure.Error{Exit: failure.ExitUnavailable, Problem: failure.Problem{Code: client.CodeUnavailable, Message: err.Error()}}
	default:
		return &failure.Error{Exit: failure.ExitFailure, Problem: failure.Problem{Code: failure.CodeFailure, Message: err.Error()}}
	}
	return failure.Locate(err, f)
}

func (a *app) explainRemote(e *client.Error) *failure.Error {
	f := &failure.Error{Exit: failure.ExitFailure, Problem: failure.Problem{Code: e.Code, Field: e.Field, Message: e.Message, Hint: e.Hint}}
	if f.Field == "If-Match" {
		f.Field = "revision" // as it is called here
	}
	switch {
	case e.Code == client.CodeReadOnly:
		return a.readOnly()
	case e.Status == http.StatusUnauthorized, e.Status == http.StatusForbidden, e.Code == client.CodeUntrusted:
		f.Exit = failure.ExitAuth
		f.Hint = a.tokenHint()
	case errors.Is(e, task.ErrUnknown), errors.Is(e, task.ErrUnavailable), errors.Is(e, context.DeadlineExceeded):
		f.Exit = failure.ExitUnavailable
	case errors.Is(e, task.ErrNotFound):
		f.Exit = failure.ExitNotFound
	case errors.Is(e, task.ErrExists), errors.Is(e, task.ErrConflict), errors.Is(e, task.ErrStale):
		f.Exit = failure.ExitConflict
	case errors.Is(e, task.ErrInvalid):
		f.Exit = failure.ExitUsage
	}
	if errors.Is(e, syscall.ECONNREFUSED) {
		f.Hint = "is the daemon running? start one with: carillon dev"
		if s, err := a.Settings(); err == nil && a.ServerSetting(s).Value != "" {
			f.Hint = fmt.Sprintf("is the daemon running there? %s says where to look", a.ServerSetting(s).Origin)
		}
	}
	if e.ID != "" {
		f.Message += " (" + e.ID + ")"
	}
	return f
}

// readOnly is the error of every change in a context that only looks.
func (a *app) readOnly() *failure.Error {
	name := "this context"
	if s, err := a.Settings(); err == nil && s.Name != "" {
		name = "context " + s.Name
	}
	f := &failure.Error{Exit: failure.ExitAuth, Problem: failure.Problem{Code: client.CodeReadOnly, Message: name + " is read-only: nothing is changed there"}}
	return f.WithHint("choose another with --context, or allow it with: carillon config set %s read_only=false", strings.TrimPrefix(name, "context "))
}

func (a *app) tokenHint() string {
	if s, err := a.Settings(); err == nil && s.Name != "" {
		if token, file := a.TokenSetting(s); token.Value == "" && file.Value == "" {
			if !a.IsOwnServer(s) {
				return fmt.Sprintf("no token: that of context %s is for its own server only; use --token-file or CARILLON_TOKEN", s.Name)
			}
			return fmt.Sprintf("context %s has no token: carillon config set %s token_file=FILE", s.Name, s.Name)
		}
	}
	if t, err := a.token(); err == nil && t != "" {
		return "the token was not accepted; the cluster's first node wrote one to its <data-dir>/token"
	}
	return fmt.Sprintf("no token: use --token-file, CARILLON_TOKEN or %s; the cluster's first node wrote one to its <data-dir>/token",
		cmp.Or(a.UserTokenFile(), "~/.config/carillon/token"))
}

// wantsJSON looks at the words themselves if the flags could not be parsed.
func (a *app) wantsJSON() bool {
	wanted := a.Format
	for i, arg := range a.args {
		if arg == "--" {
			break
		}
		value, ok := strings.CutPrefix(arg, "--output=")
		if !ok && strings.HasPrefix(arg, "-o") && !strings.HasPrefix(arg, "--") {
			value, ok = strings.TrimPrefix(arg[2:], "="), true
		}
		if (arg == "-o" || arg == "--output") && i+1 < len(a.args) {
			value, ok = a.args[i+1], true
		}
		if ok {
			wanted = value
		}
	}
	return wanted == output.FormatJSON || wanted == output.FormatJSONL
}

// together runs do for each thing, tells errors as they come, and goes on. The
// error it returns has the exit code that all failures share, else 1.
func together[T any](ctx context.Context, a *app, things []T, do func(T) error) error {
	var codes []int
	for _, thing := range things {
		err := do(thing)
		if err == nil {
			continue
		}
		if ctx.Err() != nil || len(things) == 1 || a.hopeless(err) {
			return err
		}
		codes = append(codes, a.report(err))
	}
	return failure.AlreadyReported(codes)
}

// hopeless reports whether there is no use in asking the server anything more: it
// did not answer at all, or does not let this user in.
func (a *app) hopeless(err error) bool {
	code := a.explain(err).Code
	return failure.IsUnreachable(err) || code == client.CodeUnauthorized || code == client.CodeReadOnly
}

// args checks the number of arguments, with the usage line as the hint.
func args(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return failure.Usage("%s: %s is missing", cmd.CommandPath(), what).WithHint("%s", cmd.UseLine())
		case most >= 0 && len(args) > most:
			return failure.Usage("%s: %s is too much", cmd.CommandPath(), task.Quote(args[most])).WithHint("%s", cmd.UseLine())
		}
		return nil
	}
}

// flagSets are the names of all flags of a command, its own and the global ones.
func flagSets(cmd *cobra.Command) [][]string {
	var own, global []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { own = append(own, f.Name) })
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { global = append(global, f.Name) })
	return [][]string{own, global}
}

func Quote(s string) string { return task.Quote(s) }
