package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// The exit codes; "carillon help exit-codes" explains them.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4
	exitUnavailable = 5
	exitAuth        = 6
	exitFinding     = 8
	exitRun         = 9
	exitInterrupted = 130
)

// Codes that only the command line has; the others are the client's and the tasks'.
const (
	codeUsage       = "usage"
	codeFailure     = "failure"
	codeConfirm     = "needs_confirmation"
	codeRunFailed   = "run_did_not_succeed"
	codeInterrupted = "interrupted"
)

// problem is an error as -o json shows it.
type problem struct {
	Code    string `json:"code"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// failure is an error that knows its exit code.
type failure struct {
	problem
	where  string // file:line:column, if it is about a file
	exit   int
	silent bool // it has been told already
}

func (f *failure) Error() string {
	s := f.Message
	if f.Field != "" {
		s = f.Field + ": " + s
	}
	if f.where != "" {
		s = f.where + ": " + s
	}
	return s
}

// usage is a mistake in the command line itself.
func usage(format string, args ...any) *failure {
	return &failure{exit: exitUsage, problem: problem{Code: codeUsage, Message: fmt.Sprintf(format, args...)}}
}

// filled refuses flags that were given and are empty, as those of a script whose
// variable is: to take them for left out would do something else than was meant.
func filled(cmd *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
			return usage("--%s is empty: leave it out, or say what you mean", name)
		}
	}
	return nil
}

func (f *failure) hinting(format string, args ...any) *failure {
	f.Hint = fmt.Sprintf(format, args...)
	return f
}

func notFound(format string, args ...any) *failure {
	return &failure{exit: exitNotFound, problem: problem{Code: client.CodeNotFound, Message: fmt.Sprintf(format, args...)}}
}

// interrupted is err after the user, or whoever stopped us, made it happen.
func interrupted(err error) error {
	var f *failure
	if errors.As(err, &f) && f.exit == exitInterrupted {
		return f
	}
	return &failure{exit: exitInterrupted, problem: problem{Code: codeInterrupted, Message: "interrupted"}}
}

// report tells an error and returns the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return 0
	}
	f := a.explain(err)
	if f.silent {
		return f.exit
	}
	if a.wantsJSON() {
		p := f.problem
		if f.where != "" {
			p.Message = f.where + ": " + p.Message
		}
		b, err := compact(p)
		if _, tty := a.terminal(a.Err); tty {
			b = harmlessJSON(b)
		}
		if err == nil {
			_, _ = a.Err.Write(append(b, '\n')) // nobody is left to tell
		}
		return f.exit
	}
	fmt.Fprintf(a.Err, "%s %s\n", a.paintErr(red, "error:"), printable(f.Error()))
	if f.Hint != "" && f.Hint != a.hinted { // a hundred errors of a kind need one
		fmt.Fprintf(a.Err, "%s %s\n", a.paintErr(dim, "hint:"), a.plain(printable(f.Hint)))
		a.hinted = f.Hint
	}
	return f.exit
}

// explain finds the exit code and the words for an error.
func (a *app) explain(err error) *failure {
	var f *failure
	var remote *client.Error
	var field *task.Error
	var coded interface{ ExitCode() int }
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &remote):
		f = a.explainRemote(remote)
	case errors.As(err, &field):
		f = &failure{exit: exitUsage, problem: problem{Code: field.Code, Field: field.Field, Message: field.Message}}
	case errors.As(err, &coded):
		return &failure{exit: coded.ExitCode(), problem: problem{Code: codeFailure, Message: err.Error()}}
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{exit: exitUnavailable, problem: problem{Code: client.CodeUnavailable, Message: err.Error()}}
	default:
		return &failure{exit: exitFailure, problem: problem{Code: codeFailure, Message: err.Error()}}
	}
	return inFile(err, f)
}

// inFile keeps the place in a file with the message.
func inFile(err error, f *failure) *failure {
	var placed *manifest.Error
	if !errors.As(err, &placed) {
		return f
	}
	f.where = fmt.Sprintf("%s:%d:%d", placed.File, placed.Line, placed.Column)
	return f
}

func (a *app) explainRemote(e *client.Error) *failure {
	f := &failure{exit: exitFailure, problem: problem{Code: e.Code, Field: e.Field, Message: e.Message, Hint: e.Hint}}
	if f.Field == "If-Match" {
		f.Field = "revision" // as it is called here
	}
	switch {
	case e.Code == client.CodeReadOnly:
		return a.readOnly()
	case e.Status == http.StatusUnauthorized, e.Status == http.StatusForbidden, e.Code == client.CodeUntrusted:
		f.exit = exitAuth
		f.Hint = a.tokenHint()
	case errors.Is(e, task.ErrUnknown), errors.Is(e, task.ErrUnavailable), errors.Is(e, context.DeadlineExceeded):
		f.exit = exitUnavailable
	case errors.Is(e, task.ErrNotFound):
		f.exit = exitNotFound
	case errors.Is(e, task.ErrExists), errors.Is(e, task.ErrConflict), errors.Is(e, task.ErrStale):
		f.exit = exitConflict
	case errors.Is(e, task.ErrInvalid):
		f.exit = exitUsage
	}
	if errors.Is(e, syscall.ECONNREFUSED) {
		f.Hint = "is the daemon running? start one with: carillon dev"
		if s, err := a.settings(); err == nil && a.serverOf(s).value != "" {
			f.Hint = fmt.Sprintf("is the daemon running there? %s says where to look", a.serverOf(s).origin)
		}
	}
	if e.ID != "" {
		f.Message += " (" + e.ID + ")"
	}
	return f
}

// readOnly is the error of every change in a context that only looks.
func (a *app) readOnly() *failure {
	name := "this context"
	if s, err := a.settings(); err == nil && s.context != "" {
		name = "context " + s.context
	}
	f := &failure{exit: exitAuth, problem: problem{Code: client.CodeReadOnly, Message: name + " is read-only: nothing is changed there"}}
	return f.hinting("choose another with --context, or allow it with: carillon config set %s read_only=false", strings.TrimPrefix(name, "context "))
}

func (a *app) tokenHint() string {
	if s, err := a.settings(); err == nil && s.context != "" {
		if token, file := a.tokenOf(s); token.value == "" && file.value == "" {
			if !a.home(s) {
				return fmt.Sprintf("no token: that of context %s is for its own server only; use --token-file or CARILLON_TOKEN", s.context)
			}
			return fmt.Sprintf("context %s has no token: carillon config set %s token_file=FILE", s.context, s.context)
		}
	}
	if t, err := a.token(); err == nil && t != "" {
		return "the token was not accepted; the cluster's first node wrote one to its <data-dir>/token"
	}
	return fmt.Sprintf("no token: use --token-file, CARILLON_TOKEN or %s; the cluster's first node wrote one to its <data-dir>/token",
		first(a.userTokenFile(), "~/.config/carillon/token"))
}

// wantsJSON looks at the words themselves if the flags could not be parsed.
func (a *app) wantsJSON() bool {
	wanted := a.output
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
	return wanted == asJSON || wanted == asJSONL
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
	return silently(codes)
}

// hopeless reports whether there is no use in asking the server anything more: it
// did not answer at all, or does not let this user in.
func (a *app) hopeless(err error) bool {
	code := a.explain(err).Code
	return unreachable(err) || code == client.CodeUnauthorized || code == client.CodeReadOnly
}

func unreachable(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && e.Status == 0 && errors.Is(e, task.ErrUnavailable)
}

// silently is the error after several that were told already; nil if none were.
func silently(codes []int) error {
	if len(codes) == 0 {
		return nil
	}
	exit := codes[0]
	if slices.ContainsFunc(codes, func(c int) bool { return c != exit }) {
		exit = exitFailure
	}
	return &failure{exit: exit, silent: true}
}

// args checks the number of arguments, with the usage line as the hint.
func args(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usage("%s: %s is missing", cmd.CommandPath(), what).hinting("%s", cmd.UseLine())
		case most >= 0 && len(args) > most:
			return usage("%s: %s is too much", cmd.CommandPath(), quote(args[most])).hinting("%s", cmd.UseLine())
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

func quote(s string) string { return task.Quote(s) }
