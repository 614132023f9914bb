package factory

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/settings"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Report prints an error and returns the exit code.
func (f *Factory) Report(err error) int {
	if err == nil {
		return 0
	}

	fail := f.Explain(err)
	if fail.Reported {
		return fail.Exit
	}

	if f.wantsJSON() {
		p := problemWithLocation(fail)
		for i, other := range fail.Others {
			if i == 0 {
				p.Errors = []failure.Problem{problemWithLocation(fail)}
			}
			p.Errors = append(p.Errors, problemWithLocation(other))
		}

		b, err := output.CompactJSON(p)
		if _, tty := f.Terminal(f.Err); tty {
			b = output.SanitizeJSON(b)
		}

		if err == nil {
			_, _ = f.Err.Write(append(b, '\n')) // there is no other stream on which to report this error
		}

		return fail.Exit
	}

	for _, one := range append([]*failure.Error{fail}, fail.Others...) {
		fmt.Fprintf(f.Err, "%s %s\n", f.PaintErr(output.Red, "error:"), output.Sanitize(one.Error()))
	}

	if f.allowHints.add(fail.Hint) {
		return fail.Exit // PrintHeldHints prints one for all tasks
	}
	if fail.Hint != "" && fail.Hint != f.LastHint { // a hint is printed only once for several errors of the same kind
		fmt.Fprintf(f.Err, "%s %s\n", f.PaintErr(output.Dim, "hint:"), f.Plain(output.Sanitize(fail.Hint)))
		f.LastHint = fail.Hint
	}

	return fail.Exit
}

// PrintHeldHints prints what Report has held back until the end.
func (f *Factory) PrintHeldHints() {
	for _, hint := range f.allowHints.join() {
		fmt.Fprintf(f.Err, "%s %s\n", f.PaintErr(output.Dim, "hint:"), f.Plain(output.Sanitize(hint)))
	}
}

// allowHints joins the hints about what namespaces must allow. Each names the flags of carillon namespace update for one task,
// and a flag replaces its whole list. So of several hints, the last one would take back what the others allow.
type allowHints struct {
	order []string                       // the beginnings of hints, which name a namespace
	flags map[string]map[string][]string // by beginning and flag: the values
}

// allowPattern matches such a hint: its beginning and its flags.
var allowPattern = regexp.MustCompile(`^(an administrator can allow it: carillon namespace update \S+)((?: --[a-z-]+(?: [^- ]\S*)?)+)$`)

// add adds a hint. It returns false if the hint is about something else.
func (a *allowHints) add(hint string) bool {
	m := allowPattern.FindStringSubmatch(hint)
	if m == nil {
		return false
	}

	if a.flags == nil {
		a.flags = map[string]map[string][]string{}
	}
	if a.flags[m[1]] == nil {
		a.order, a.flags[m[1]] = append(a.order, m[1]), map[string][]string{}
	}

	for _, flag := range strings.Split(m[2], " --")[1:] {
		name, list, _ := strings.Cut(flag, " ")
		values := a.flags[m[1]][name]
		for _, v := range strings.Split(strings.Trim(list, "'"), ",") {
			if !slices.Contains(values, v) {
				values = append(values, v)
			}
		}
		a.flags[m[1]][name] = values
	}

	return true
}

// join returns one hint for each namespace.
func (a *allowHints) join() (hints []string) {
	for _, begin := range a.order {
		hint := begin
		for _, name := range slices.Sorted(maps.Keys(a.flags[begin])) {
			list := strings.Join(a.flags[begin][name], ",")
			if strings.Contains(list, "*") {
				list = "'" + list + "'" // for the shell
			}
			hint += strings.TrimRight(" --"+name+" "+list, " ")
		}
		hints = append(hints, hint)
	}

	return hints
}

// problemWithLocation returns an error as -o json shows it.
func problemWithLocation(e *failure.Error) failure.Problem {
	p := e.Problem
	if e.Location != "" {
		p.Message = e.Location + ": " + p.Message
	}

	return p
}

// Explain returns the exit code, the message and the hint for an error. If several fields of an input are invalid, those after the
// first one are in Others.
func (f *Factory) Explain(err error) *failure.Error {
	var remote *client.Error
	if errors.As(err, &remote) && len(remote.Errors) > 1 {
		fail := f.explainOne(err)
		for _, p := range remote.Errors[1:] {
			one := *remote
			one.Code, one.Field, one.Message, one.Hint, one.Errors = p.Code, p.Field, p.Detail, "", nil
			fail.Others = append(fail.Others, f.explainOne(&one))
		}

		return fail
	}

	all := failure.Joined(err)
	if len(all) == 0 {
		return f.explainOne(err)
	}

	fail := f.explainOne(all[0])
	for _, one := range all[1:] {
		fail.Others = append(fail.Others, f.explainOne(one))
	}

	return fail
}

// explainOne is Explain for an error with one problem.
func (f *Factory) explainOne(err error) *failure.Error {
	var fail *failure.Error
	var remote *client.Error
	var field *task.Error
	var coded interface{ ExitCode() int }
	switch {
	case errors.As(err, &fail):
		return fail
	case errors.As(err, &remote):
		fail = f.ExplainRemote(remote)
	case errors.As(err, &field):
		fail = &failure.Error{Exit: failure.ExitUsage, Problem: failure.Problem{Code: field.Code, Field: field.Field, Message: field.Message}}
		if field.Code == client.CodeClearText {
			fail.Hint = "if you accept the risk: --insecure, or insecure: true in the context"
		}
	case errors.As(err, &coded):
		return &failure.Error{Exit: coded.ExitCode(), Problem: failure.Problem{Code: failure.CodeFailure, Message: err.Error()}}
	case errors.Is(err, context.DeadlineExceeded):
		return &failure.Error{Exit: failure.ExitUnavailable, Problem: failure.Problem{Code: client.CodeUnavailable, Message: err.Error()}}
	default:
		return &failure.Error{Exit: failure.ExitFailure, Problem: failure.Problem{Code: failure.CodeFailure, Message: err.Error()}}
	}

	return failure.Locate(err, fail)
}

// ExplainRemote returns the exit code, the message and the hint for an error of the server.
func (f *Factory) ExplainRemote(e *client.Error) *failure.Error {
	fail := &failure.Error{Exit: failure.ExitFailure, Problem: failure.Problem{Code: e.Code, Field: e.Field, Message: e.Message, Hint: e.Hint}}
	if fail.Field == "If-Match" {
		fail.Field = "revision" // the name of the flag
	}

	switch {
	case e.Code == client.CodeReadOnly:
		return f.readOnly()
	case e.Status == http.StatusForbidden: // the server knows the caller, and names a role that allows it
		fail.Exit = failure.ExitAuth
		fail.Hint = forbiddenHint(fail.Hint)
	case e.Code == client.CodeUntrusted:
		fail.Exit = failure.ExitAuth
		fail.Hint = "if this is a Carillon node, use its socket (--server unix://" + f.Socket() + ") or https://, or accept the risk with --insecure"
	case e.Status == http.StatusUnauthorized:
		fail.Exit = failure.ExitAuth
		fail.Hint = f.tokenHint()
		if strings.HasSuffix(e.Message, "subject is disabled") { // another token would not help
			fail.Hint = "an administrator can enable it with: carillon access enable SUBJECT"
		}
	case errors.Is(e, task.ErrUnknown), errors.Is(e, task.ErrUnavailable), errors.Is(e, context.DeadlineExceeded):
		fail.Exit = failure.ExitUnavailable
	case errors.Is(e, task.ErrNotFound):
		fail.Exit = failure.ExitNotFound
	case errors.Is(e, task.ErrExists), errors.Is(e, task.ErrConflict), errors.Is(e, task.ErrStale):
		fail.Exit = failure.ExitConflict
	case errors.Is(e, task.ErrInvalid):
		fail.Exit = failure.ExitUsage
	}

	if hint := f.connectionHint(e); hint != "" {
		fail.Hint = hint
	}

	if e.ID != "" {
		fail.Message += " (" + e.ID + ")"
	}

	return fail
}

// connectionHint returns a hint in the words of the command line for a call that failed before the API answered: the package
// client does not know flags and variables. It is "" for other errors.
func (f *Factory) connectionHint(e *client.Error) string {
	var unknown x509.UnknownAuthorityError
	var refused *net.OpError

	switch {
	case errors.Is(e, syscall.ECONNREFUSED), errors.Is(e, syscall.ENOENT): // ENOENT is the error of a unix socket that does not exist
		return f.unreachableHint()
	case e.Code == client.CodeNotCarillon:
		return "check --server, and which program listens there"
	case e.Code == client.CodeTLS && errors.Is(e, http.ErrSchemeMismatch):
		return "use --server http://…, if you trust the network"
	case e.Code == client.CodeTLS && errors.As(e, &unknown):
		return "set the CA that signed its certificate: --ca-file or CARILLON_CA_FILE"
	case e.Code == client.CodeTLS && errors.As(e, &refused) && refused.Op == "remote error" && !strings.Contains(e.Message, "has expired"):
		return "use a certificate that its CA signed: --cert-file and --key-file, CARILLON_CERT_FILE and CARILLON_KEY_FILE"
	case e.Status == 0 && e.Code == client.CodeUnavailable && e.Hint == "" && !errors.Is(e, context.Canceled) && !errors.Is(e, context.DeadlineExceeded):
		return "is the daemon running? set its address with --server or CARILLON_SERVER"
	}

	return ""
}

// unreachableHint returns a hint for a server on which nobody listens. On a host with the package, it is about the service:
// carillon dev would start a second cluster there, and take the port of the first.
func (f *Factory) unreachableHint() string {
	server := settings.Setting{Origin: settings.ByDefault}
	if s, err := f.Settings(); err == nil {
		server = f.ServerSetting(s)
	}

	switch {
	case server.Origin != settings.ByDefault:
		return "is the daemon running? the server is set by " + server.Origin
	case !f.hasService():
		return "is the daemon running? start one with: carillon dev"
	case server.Value != "": // the socket exists, but nobody listens
		return "is the service running? see: systemctl status carillon"
	}

	if _, err := os.Stat(f.Socket()); !errors.Is(err, fs.ErrNotExist) {
		return "you may not open the socket " + f.Socket() + ": become a member of its group, or use sudo"
	}

	return "the socket " + f.Socket() + " does not exist: is the service running? see: systemctl status carillon"
}

// hasService reports whether this host has the systemd unit carillon.service.
func (f *Factory) hasService() bool {
	return slices.ContainsFunc(f.UnitDirs, func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, "carillon.service"))
		return err == nil
	})
}

// readOnly returns the error for a change in a read-only context.
func (f *Factory) readOnly() *failure.Error {
	name := "this context"
	if s, err := f.Settings(); err == nil && s.Name != "" {
		name = "context " + s.Name
	}

	fail := &failure.Error{Exit: failure.ExitAuth, Problem: failure.Problem{Code: client.CodeReadOnly, Message: name + " is read-only"}}
	return fail.WithHint("use another context with --context, or allow changes with: carillon config set %s read_only=false", strings.TrimPrefix(name, "context "))
}

// forbiddenHint returns a hint for a caller who lacks a right.
func forbiddenHint(hint string) string {
	const own = "carillon whoami shows what you may do"
	if hint == "" {
		return own
	}
	return hint + "; " + own
}

// tokenHint returns a hint for a missing or rejected token. It depends on where the token was looked for.
func (f *Factory) tokenHint() string {
	if s, err := f.Settings(); err == nil && s.Name != "" {
		if token, file := f.TokenSetting(s); token.Value == "" && file.Value == "" {
			if !f.IsOwnServer(s) {
				return fmt.Sprintf("no token: the token of context %s is only for its own server; use --token-file or CARILLON_TOKEN", s.Name)
			}
			return fmt.Sprintf("context %s has no token: carillon config set %s token_file=FILE", s.Name, s.Name)
		}
	}

	if t, err := f.Token(); err == nil && t != "" {
		return "ask an administrator for a new token: carillon token create; the cluster's first node wrote one to its <data-dir>/token"
	}

	return fmt.Sprintf("no token: use --token-file, CARILLON_TOKEN or %s; the first node of the cluster wrote one to <data-dir>/token",
		cmp.Or(f.UserTokenFile(), "~/.config/carillon/token"))
}

// wantsJSON reports whether errors must be printed as JSON. It examines the words of the command line, because
// the flags may not have been parsed.
func (f *Factory) wantsJSON() bool {
	wanted := f.Format
	for i, arg := range f.Words {
		if arg == "--" {
			break
		}

		value, ok := strings.CutPrefix(arg, "--output=")
		if !ok && strings.HasPrefix(arg, "-o") && !strings.HasPrefix(arg, "--") {
			value, ok = strings.TrimPrefix(arg[2:], "="), true
		}

		if (arg == "-o" || arg == "--output") && i+1 < len(f.Words) {
			value, ok = f.Words[i+1], true
		}

		if ok {
			wanted = value
		}
	}

	return wanted == output.FormatJSON || wanted == output.FormatJSONL
}

// IsHopeless reports whether further calls to the server would also fail, because it does not answer, or
// rejects this user.
func (f *Factory) IsHopeless(err error) bool {
	code := f.Explain(err).Code
	return failure.IsUnreachable(err) || code == client.CodeUnauthorized || code == client.CodeReadOnly
}

// flagSets returns the names of all flags of a command: its own and the global ones.
func flagSets(cmd *cobra.Command) [][]string {
	var own, global []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { own = append(own, f.Name) })
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { global = append(global, f.Name) })

	return [][]string{own, global}
}

// flagSynonyms are the flags of other tools for what has another flag here. Of several, the first that the command has is meant.
var flagSynonyms = map[string][]string{
	"cron": {"schedule"}, "every": {"schedule"}, "tz": {"timezone"}, "time-zone": {"timezone"}, "zone": {"timezone"}, "ns": {"namespace"},
	"cwd": {"dir"}, "workdir": {"dir"}, "chdir": {"dir"}, "working-dir": {"dir"},
	"timeout": {"wait=DURATION", "within", "request-timeout"}, "deadline": {"within"}, "for": {"since", "until"}, "follow": {"wait", "watch"},
	"force": {"yes"}, "lines": {"tail"}, "since-time": {"since"}, "field-selector": {"selector"},
}

// FlagError converts an error of the flag parser. For an unknown flag it suggests the one that was probably
// meant.
func FlagError(cmd *cobra.Command, err error) error {
	if f := badValue(err); f != nil {
		return f
	}

	f := &failure.Error{Exit: failure.ExitUsage, Problem: failure.Problem{Code: failure.CodeUsage, Message: err.Error(), Hint: "see " + cmd.CommandPath() + " --help"}}
	word, unknown := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !unknown {
		return f
	}

	var names []string
	for _, set := range flagSets(cmd) {
		names = append(names, set...)
	}

	slices.Sort(names)

	meant := ""
	for _, other := range flagSynonyms[word] {
		name, _, takesValue := strings.Cut(other, "=")
		if flag := cmd.Flag(name); flag != nil && (!takesValue || flag.NoOptDefVal != "true") {
			meant = other
			break
		}
	}
	if meant == "" && word != "name" {
		meant = task.Nearest(word, slices.Compact(names))
	}

	switch {
	case meant != "":
		f.Hint = "did you mean: --" + meant
	case word == "name" && strings.Contains(cmd.Use, " "): // the command has arguments
		f.Hint = "write the name without a flag: " + cmd.UseLine()
	}

	return f
}

// badValue explains an invalid value of a flag, with the same message as for other inputs. It returns nil for
// other errors.
func badValue(err error) *failure.Error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return nil
	}

	flag, value := bad.GetFlag(), bad.GetValue()
	e := failure.Usage("--%s %s: %s", flag.Name, task.Quote(value), bad.Unwrap())

	var field *task.Error
	switch kind := flag.Value.Type(); {
	case errors.As(bad.Unwrap(), &field):
		e.Message = "--" + flag.Name + ": " + field.Message
	case kind == "int" || kind == "int64":
		e.Message = fmt.Sprintf("--%s: %s is not a whole number", flag.Name, task.Quote(value))
	case kind == "bool":
		e.Message = fmt.Sprintf("--%s=%s: use true or false", flag.Name, task.Quote(value))
	}

	return e
}
