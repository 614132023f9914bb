package cli

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// app is one command line while it runs.
type app struct {
	IO
	args     []string
	parsed   bool   // the words and flags are those of a command
	hinted   string // the hint that was told last
	now      func() time.Time
	terminal func(stream any) (width int, is bool) // a field, for tests

	tokenOfHost  string // in place of hostTokenFile, for tests
	socketOfHost string // in place of hostSocket, for tests

	server        string
	insecure      bool
	ns            string
	allNamespaces bool
	output        string
	timeMode      string
	color         string
	ascii         bool
	noHeaders     bool
	columns       []string
	quiet         bool
	yes           bool
	noInput       bool
	timeout       time.Duration
	tokenFile     string
	context       string
	verbose       bool
	caFile        string
	certFile      string
	keyFile       string

	read    *settings // once it was
	readErr error
}

func (a *app) bind(f *pflag.FlagSet) {
	f.StringVar(&a.context, "context", "", "`NAME` of a cluster in the configuration (CARILLON_CONTEXT; see help contexts)")
	f.StringVar(&a.server, "server", "", "`URL` where the API answers (CARILLON_SERVER; default unix://"+hostSocket+" if you may open it, else "+client.DefaultServer+")")
	f.BoolVar(&a.insecure, "insecure", false, "send the token in clear text to other hosts, and to any program that listens on this one")
	f.StringVarP(&a.ns, "namespace", "n", "", "namespace `NAME` (CARILLON_NAMESPACE; default default)")
	f.BoolVarP(&a.allNamespaces, "all-namespaces", "A", false, "all namespaces")
	f.StringVarP(&a.output, "output", "o", "table", "`FORMAT`: table, wide, json, jsonl, yaml or name")
	f.StringVar(&a.timeMode, "time", "relative", "times as `KIND` relative, local, task or utc")
	f.StringVar(&a.color, "color", "auto", "`WHEN`: auto, always or never")
	f.BoolVar(&a.ascii, "ascii", false, "plain letters instead of symbols")
	f.StringSliceVar(&a.columns, "columns", nil, "only these `COLUMNS` of a list, in this order, those of -o wide too: name,next")
	f.BoolVar(&a.noHeaders, "no-headers", false, "tables without their first line")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "only data and errors")
	f.BoolVarP(&a.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&a.noInput, "no-input", false, "never ask; refuse what would need an answer")
	f.DurationVar(&a.timeout, "timeout", 30*time.Second, "limit for each call to the server, a `DURATION`")
	f.StringVar(&a.tokenFile, "token-file", "", "`FILE` with the token (CARILLON_TOKEN_FILE, or the token in CARILLON_TOKEN)")
	f.StringVar(&a.caFile, "ca-file", "", "`FILE` with the CA of the server's certificate (CARILLON_CA_FILE; default the system's)")
	f.StringVar(&a.certFile, "cert-file", "", "`FILE` with a certificate to show to the server (CARILLON_CERT_FILE)")
	f.StringVar(&a.keyFile, "key-file", "", "`FILE` with its key (CARILLON_KEY_FILE)")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "tell of each call to the server on the standard error")
}

// The output formats. A command that has fewer than all says so with only.
const (
	asTable = "table"
	asWide  = "wide"
	asJSON  = "json"
	asJSONL = "jsonl"
	asYAML  = "yaml"
	asName  = "name"
)

var allFormats = []string{asTable, asWide, asJSON, asJSONL, asYAML, asName}

const formatsKey = "carillon/formats"

// only declares the formats that a command has.
func only(cmd *cobra.Command, formats ...string) *cobra.Command {
	cmd.Annotations = map[string]string{formatsKey: strings.Join(formats, ",")}
	return cmd
}

const offlineKey = "carillon/offline"

// withoutConfig declares that commands, and those within them, have no use for the
// user's configuration: they work where it is broken.
func withoutConfig(commands ...*cobra.Command) {
	for _, cmd := range commands {
		if cmd.Annotations == nil {
			cmd.Annotations = map[string]string{}
		}
		cmd.Annotations[offlineKey] = "yes"
	}
}

func offline(cmd *cobra.Command) bool {
	for ; cmd != nil; cmd = cmd.Parent() {
		if cmd.Annotations[offlineKey] != "" || strings.HasPrefix(cmd.Name(), cobra.ShellCompRequestCmd) {
			return true
		}
	}
	return false
}

func formatsOf(cmd *cobra.Command) []string {
	if s, ok := cmd.Annotations[formatsKey]; ok {
		return strings.Split(s, ",")
	}
	return allFormats
}

// check refuses global flags with values that they do not have, before a
// command does anything.
func (a *app) check(cmd *cobra.Command) error {
	for _, f := range []struct {
		name, value string
		allowed     []string
	}{
		{"output", a.output, formatsOf(cmd)},
		{"time", a.timeMode, []string{timeRelative, timeLocal, timeTask, timeUTC}},
		{"color", a.color, []string{"auto", "always", "never"}},
	} {
		if !slices.Contains(f.allowed, f.value) {
			return usage("--%s %s: use %s", f.name, quote(f.value), strings.Join(f.allowed, ", "))
		}
	}
	if len(a.columns) > 0 && !a.human() {
		return usage("--columns: they are of tables, and -o %s has none", a.output)
	}
	if a.timeout <= 0 {
		return usage("--timeout %s: must be more than 0", a.timeout)
	}
	if a.allNamespaces && cmd.Flags().Changed("namespace") {
		return usage("--namespace and --all-namespaces exclude each other")
	}
	if offline(cmd) {
		return nil
	}
	if _, err := a.settings(); err != nil {
		return err
	}
	if a.allNamespaces {
		return nil
	}
	return task.CheckName("namespace", a.namespace())
}

// namespace is where names without one are looked up.
func (a *app) namespace() string {
	s, err := a.settings()
	if err != nil { // it is told elsewhere
		s = &settings{}
	}
	return a.namespaceOf(s).value
}

// scope is the namespace that lists are of; "" is all.
func (a *app) scope() string {
	if a.allNamespaces {
		return ""
	}
	return a.namespace()
}

func (a *app) userTokenFile() string { return a.userFile("token") }

const maxToken = 4096

func (a *app) readToken(file string) (string, error) {
	failed := func(what string) error {
		return &failure{exit: exitAuth, problem: problem{Code: "token_file", Field: "token-file", Message: file + ": " + what}}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", failed(reason(err))
	}
	if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		a.note("warning: %s can be read by others; chmod 600 it", file)
	}
	t := strings.TrimSpace(string(b))
	if !isToken(t) {
		return "", failed("holds no token, which is one word of printable ASCII")
	}
	return t, nil
}

// isToken reports whether a text can be a token.
func isToken(t string) bool {
	return t != "" && len(t) <= maxToken && !strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' })
}

// reason is an error of the file system without the call's name and the path.
func reason(err error) string {
	if e, ok := err.(*fs.PathError); ok {
		return e.Err.Error()
	}
	return err.Error()
}

// note tells a person something on the standard error, unless -q.
func (a *app) note(format string, args ...any) {
	if !a.quiet {
		fmt.Fprintf(a.Err, a.plain(format)+"\n", args...)
	}
}

// warnAbout prints the server's warnings about tasks that were written. Other outputs than for people
// have them in the task itself.
func (a *app) warnAbout(tasks ...client.Task) {
	if !a.human() {
		return
	}

	for _, t := range tasks {
		for _, text := range t.Warnings {
			a.note("warning: %s: %s", a.taskName(t), printable(text))
		}
	}
}

// say tells what was done, on the standard output, if that is for a person.
func (a *app) say(format string, args ...any) {
	if !a.quiet && a.human() {
		fmt.Fprintf(a.Out, a.plain(format)+"\n", args...)
	}
}

// human reports whether the output is for people to read.
func (a *app) human() bool { return a.output == asTable || a.output == asWide }

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// pause waits between two polls.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
