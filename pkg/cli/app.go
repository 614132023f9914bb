package cli

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/settings"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// app is one command line while it runs.
type app struct {
	output.Printer
	settings.Resolver

	In             io.Reader
	Env            func(string) string
	Version        string
	CompleteWithin time.Duration
	CompleteFor    time.Duration

	args   []string
	parsed bool   // the words and flags are those of a command
	hinted string // the hint that was told last

	allNamespaces bool
	yes           bool
	noInput       bool
	timeout       time.Duration
	verbose       bool
}

func (a *app) bind(f *pflag.FlagSet) {
	f.StringVar(&a.ContextFlag, "context", "", "`NAME` of a cluster in the configuration (CARILLON_CONTEXT; see help contexts)")
	f.StringVar(&a.ServerFlag, "server", "", "`URL` where the API answers (CARILLON_SERVER; default unix://"+settings.HostSocket+" if you may open it, else "+client.DefaultServer+")")
	f.BoolVar(&a.InsecureFlag, "insecure", false, "send the token in clear text to other hosts, and to any program that listens on this one")
	f.StringVarP(&a.NamespaceFlag, "namespace", "n", "", "namespace `NAME` (CARILLON_NAMESPACE; default default)")
	f.BoolVarP(&a.allNamespaces, "all-namespaces", "A", false, "all namespaces")
	f.StringVarP(&a.Format, "output", "o", "table", "`FORMAT`: table, wide, json, jsonl, yaml or name")
	f.StringVar(&a.TimeMode, "time", "relative", "times as `KIND` relative, local, task or utc")
	f.StringVar(&a.Color, "color", "auto", "`WHEN`: auto, always or never")
	f.BoolVar(&a.ASCII, "ascii", false, "plain letters instead of symbols")
	f.StringSliceVar(&a.Columns, "columns", nil, "only these `COLUMNS` of a list, in this order, those of -o wide too: name,next")
	f.BoolVar(&a.NoHeaders, "no-headers", false, "tables without their first line")
	f.BoolVarP(&a.Quiet, "quiet", "q", false, "only data and errors")
	f.BoolVarP(&a.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&a.noInput, "no-input", false, "never ask; refuse what would need an answer")
	f.DurationVar(&a.timeout, "timeout", 30*time.Second, "limit for each call to the server, a `DURATION`")
	f.StringVar(&a.TokenFileFlag, "token-file", "", "`FILE` with the token (CARILLON_TOKEN_FILE, or the token in CARILLON_TOKEN)")
	f.StringVar(&a.CAFileFlag, "ca-file", "", "`FILE` with the CA of the server's certificate (CARILLON_CA_FILE; default the system's)")
	f.StringVar(&a.CertFileFlag, "cert-file", "", "`FILE` with a certificate to show to the server (CARILLON_CERT_FILE)")
	f.StringVar(&a.KeyFileFlag, "key-file", "", "`FILE` with its key (CARILLON_KEY_FILE)")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "tell of each call to the server on the standard error")
}

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
	return output.Formats
}

// check refuses global flags with values that they do not have, before a
// command does anything.
func (a *app) check(cmd *cobra.Command) error {
	for _, f := range []struct {
		name, value string
		allowed     []string
	}{
		{"output", a.Format, formatsOf(cmd)},
		{"time", a.TimeMode, []string{output.TimeRelative, output.TimeLocal, output.TimeTask, output.TimeUTC}},
		{"color", a.Color, []string{"auto", "always", "never"}},
	} {
		if !slices.Contains(f.allowed, f.value) {
			return failure.Usage("--%s %s: use %s", f.name, task.Quote(f.value), strings.Join(f.allowed, ", "))
		}
	}
	if len(a.Columns) > 0 && !a.ForPeople() {
		return failure.Usage("--columns: they are of tables, and -o %s has none", a.Format)
	}
	if a.timeout <= 0 {
		return failure.Usage("--timeout %s: must be more than 0", a.timeout)
	}
	if a.allNamespaces && cmd.Flags().Changed("namespace") {
		return failure.Usage("--namespace and --all-namespaces exclude each other")
	}
	if offline(cmd) {
		return nil
	}
	if _, err := a.Settings(); err != nil {
		return err
	}
	if a.allNamespaces {
		return nil
	}
	return task.CheckName("namespace", a.namespace())
}

// namespace is where names without one are looked up.
func (a *app) namespace() string {
	s, err := a.Settings()
	if err != nil { // it is told elsewhere
		s = &settings.Settings{}
	}
	return a.NamespaceSetting(s).Value
}

// scope is the namespace that lists are of; "" is all.
func (a *app) scope() string {
	if a.allNamespaces {
		return ""
	}
	return a.namespace()
}

// warnAbout prints the server's warnings about tasks that were written. Other outputs than for people
// have them in the task itself.
func (a *app) warnAbout(tasks ...client.Task) {
	if !a.ForPeople() {
		return
	}

	for _, t := range tasks {
		for _, text := range t.Warnings {
			a.Note("warning: %s: %s", a.taskName(t), output.Sanitize(text))
		}
	}
}

func First(values ...string) string {
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
