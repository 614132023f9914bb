package factory

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/settings"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// BindFlags declares the global flags.
func (f *Factory) BindFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.ContextFlag, "context", "", "use the context with this `NAME` (CARILLON_CONTEXT; see help contexts)")
	flags.StringVar(&f.ServerFlag, "server", "", "`URL` of the API, or several nodes of the cluster as URL,URL (CARILLON_SERVER; default unix://"+settings.HostSocket+" if you may open it, else "+client.DefaultServer+")")
	flags.BoolVar(&f.InsecureFlag, "insecure", false, "allow sending the token in clear text to other hosts, and to any program that listens on this one")
	flags.StringVarP(&f.NamespaceFlag, "namespace", "n", "", "use the namespace with this `NAME` (CARILLON_NAMESPACE; default: default)")
	flags.BoolVarP(&f.AllNamespaces, "all-namespaces", "A", false, "use all namespaces that you may read")
	flags.StringVarP(&f.Format, "output", "o", "table", "output `FORMAT`: table, wide, json, jsonl, yaml or name")
	flags.StringVar(&f.TimeMode, "time", "relative", "`STYLE` of times: relative, local, task or utc")
	flags.StringVar(&f.Color, "color", "auto", "`WHEN` to use colors: auto, always or never")
	flags.BoolVar(&f.ASCII, "ascii", false, "use ASCII letters instead of symbols")
	flags.StringSliceVar(&f.Columns, "columns", nil, "print only these `COLUMNS`, in this order, such as name,next; columns of -o wide are available too")
	flags.BoolVar(&f.NoHeaders, "no-headers", false, "print tables without headings")
	flags.BoolVarP(&f.Quiet, "quiet", "q", false, "print only data and errors")
	flags.BoolVarP(&f.Yes, "yes", "y", false, "do not ask for confirmation")
	flags.BoolVar(&f.NoInput, "no-input", false, "never ask; fail if a confirmation would be necessary")
	DurationVar(flags, &f.Timeout, "request-timeout", 30*time.Second, "limit each call to the server to this `DURATION`")
	flags.StringVar(&f.TokenFileFlag, "token-file", "", "`FILE` with the token (CARILLON_TOKEN_FILE, or the token in CARILLON_TOKEN)")
	flags.StringVar(&f.CAFileFlag, "ca-file", "", "`FILE` with the CA of the server's certificate (CARILLON_CA_FILE; default: the system's)")
	flags.StringVar(&f.CertFileFlag, "cert-file", "", "`FILE` with the client certificate (CARILLON_CERT_FILE)")
	flags.StringVar(&f.KeyFileFlag, "key-file", "", "`FILE` with the key of the client certificate (CARILLON_KEY_FILE)")
	flags.BoolVarP(&f.Verbose, "verbose", "v", false, "log each call to the server to stderr")
}

// CheckFlags checks the values of the global flags before a command does anything.
func (f *Factory) CheckFlags(cmd *cobra.Command) error {
	for _, flag := range []struct {
		name, value string
		allowed     []string
	}{
		{"output", f.Format, Formats(cmd)},
		{"time", f.TimeMode, []string{output.TimeRelative, output.TimeLocal, output.TimeTask, output.TimeUTC}},
		{"color", f.Color, []string{"auto", "always", "never"}},
	} {
		if !slices.Contains(flag.allowed, flag.value) {
			return failure.Usage("--%s %s: use %s", flag.name, task.Quote(flag.value), strings.Join(flag.allowed, ", "))
		}
	}

	if len(f.Columns) > 0 && !f.ForPeople() {
		return failure.Usage("--columns requires -o table or -o wide, not -o %s", f.Format)
	}
	if f.Timeout <= 0 {
		return failure.Usage("--request-timeout %s: must be more than 0", task.Duration(f.Timeout))
	}
	if f.AllNamespaces && cmd.Flags().Changed("namespace") {
		return failure.Usage("--namespace and --all-namespaces cannot be used together")
	}
	if worksOffline(cmd) {
		return nil
	}
	if _, err := f.Settings(); err != nil {
		return err
	}
	if f.AllNamespaces {
		return nil
	}

	return task.CheckName("namespace", f.Namespace())
}

// RefuseEmpty rejects flags with an empty value. In a script, this usually means that a variable is not set,
// and ignoring the flag would do something else than intended.
func RefuseEmpty(cmd *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
			return failure.Usage("--%s is empty: remove the flag or give a value", name)
		}
	}

	return nil
}

// BindKey declares --idempotency-key. RefuseEmpty must check its value. usage is what the key does.
func BindKey(cmd *cobra.Command, key *string, usage string) {
	cmd.Flags().StringVar(key, "idempotency-key", "", usage+" with this `KEY`, however often you repeat the command")
	_ = cmd.RegisterFlagCompletionFunc("idempotency-key", cobra.NoFileCompletions)
}

// ReadEnv parses the values of a flag --env.
func ReadEnv(pairs []string) (map[string]string, error) {
	env := map[string]string{}
	for _, text := range pairs {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, failure.Usage("--env %s: use NAME=VALUE", task.Quote(text))
		}
		if _, twice := env[name]; twice {
			return nil, failure.Usage("--env %s: %s is given twice", task.Quote(text), task.Quote(name))
		}
		env[name] = value
	}

	return env, nil
}

// ParseTime parses the value of a flag, which is given without dashes, with schedule.ReadInstant: a time as people write it,
// relative to now. A time without an offset is in zone, which must be the zone in which the command prints times. It returns the
// zero time for an empty value.
func (f *Factory) ParseTime(flag, text string, zone *time.Location, direction schedule.Direction) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}

	at, err := schedule.ReadInstant(text, schedule.TimeBase{Now: f.Now(), Zone: zone, Direction: direction})
	if err != nil {
		return time.Time{}, WrongTime(flag, err)
	}

	return at, nil
}

// ParseEnd parses the value of a flag that says when something ends: at least a second from now.
func (f *Factory) ParseEnd(flag, text string, zone *time.Location) (task.Time, error) {
	at, err := f.ParseTime(flag, text, zone, schedule.Future)
	if err != nil || at.IsZero() {
		return task.Time{}, err
	}
	if at.Sub(f.Now()) < time.Second {
		return task.Time{}, failure.Usage("--%s %s: is not in the future", flag, task.Quote(text))
	}

	return task.At(at), nil
}

// WrongTime is the error for the value of a flag that is not a time.
func WrongTime(flag string, err error) error {
	var fault *task.Error
	if !errors.As(err, &fault) {
		return err
	}

	return failure.Usage("--%s: %s", flag, fault.Message).WithHint("carillon help times")
}

// DurationVar declares a flag with a duration as task.ParseDuration reads it.
func DurationVar(flags *pflag.FlagSet, to *time.Duration, name string, standard time.Duration, usage string) {
	*to = standard
	flags.Var((*durationValue)(to), name, usage)

	if standard == 0 {
		flags.Lookup(name).DefValue = "" // so that the help does not name 0s as the default, which only means that the flag is not given
	}
}

// durationValue is the value of a flag that is a duration.
type durationValue task.Duration

func (v *durationValue) String() string { return task.Duration(*v).String() }

func (v *durationValue) Type() string { return "duration" }

func (v *durationValue) Set(text string) error {
	d, err := task.ParseDuration("", text)
	if err == nil {
		*v = durationValue(d)
	}

	return err
}

// ParseLabels parses the values of a flag that sets labels: KEY=VALUE, or several of these separated by commas.
func ParseLabels(flag string, pairs []string) (map[string]string, error) {
	var labels map[string]string
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, failure.Usage("--%s %s: is not KEY=VALUE", flag, task.Quote(pair))
		}
		if old, twice := labels[key]; twice && old != value {
			return nil, failure.Usage("--%s %s: %s is given twice", flag, task.Quote(pair), task.Quote(key))
		}
		if labels == nil {
			labels = map[string]string{}
		}

		labels[key] = value
	}

	return labels, task.CheckLabels("labels", labels)
}

// busyTries and busyWait are how often and after which pause RetryBusy repeats a call.
const (
	busyTries = 6
	busyWait  = 400 * time.Millisecond
)

// RetryBusy repeats a change of access records that the server refused because the cluster's share of such changes within
// a second was used up. A script that creates many namespaces gets there easily.
func RetryBusy[T any](ctx context.Context, do func() (T, error)) (T, error) {
	for try := 1; ; try++ {
		v, err := do()
		var e *client.Error
		if !errors.As(err, &e) || e.Code != client.CodeRateLimited || try == busyTries {
			return v, err
		}
		if err := Sleep(ctx, busyWait); err != nil {
			return v, err
		}
	}
}

// RetryBusyError is RetryBusy for a change that returns nothing.
func RetryBusyError(ctx context.Context, do func() error) error {
	_, err := RetryBusy(ctx, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

// Args returns a check of the number of arguments, from least to most (negative: no limit). Its errors contain
// the usage line as the hint. what names the arguments in the message.
func Args(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return failure.Usage("%s: %s is missing", cmd.CommandPath(), what).WithHint("%s", cmd.UseLine())
		case most >= 0 && len(args) > most:
			return failure.Usage("%s: unexpected argument %s", cmd.CommandPath(), task.Quote(args[most])).WithHint("%s", cmd.UseLine())
		}

		return nil
	}
}

// AddGroup adds commands to a parent, in one group of its help.
func AddGroup(parent *cobra.Command, group string, commands ...*cobra.Command) {
	for _, c := range commands {
		c.GroupID = group
		parent.AddCommand(c)
	}
}

// FormatsKey is the annotation with the output formats of a command.
const FormatsKey = "carillon/formats"

// LimitFormats declares the output formats that a command supports.
func LimitFormats(cmd *cobra.Command, formats ...string) *cobra.Command {
	cmd.Annotations = map[string]string{FormatsKey: strings.Join(formats, ",")}
	return cmd
}

// offlineKey is the annotation of commands that do not use the user's configuration.
const offlineKey = "carillon/offline"

// WithoutConfig declares that commands and their subcommands do not use the user's configuration, so they also
// work if it is invalid.
func WithoutConfig(commands ...*cobra.Command) {
	for _, cmd := range commands {
		if cmd.Annotations == nil {
			cmd.Annotations = map[string]string{}
		}
		cmd.Annotations[offlineKey] = "yes"
	}
}

// aloneKey is the annotation of commands that do something without a subcommand, too.
const aloneKey = "carillon/alone"

// RunsAlone declares that a command with subcommands does something without one, so that its help says so.
func RunsAlone(cmd *cobra.Command) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[aloneKey] = "yes"
}

// IsRunAlone reports whether a command was passed to RunsAlone.
func IsRunAlone(cmd *cobra.Command) bool { return cmd.Annotations[aloneKey] != "" }

// worksOffline reports whether a command, or one of its parents, was passed to WithoutConfig.
func worksOffline(cmd *cobra.Command) bool {
	for ; cmd != nil; cmd = cmd.Parent() {
		if cmd.Annotations[offlineKey] != "" || strings.HasPrefix(cmd.Name(), cobra.ShellCompRequestCmd) {
			return true
		}
	}

	return false
}

// Formats returns the output formats that a command supports.
func Formats(cmd *cobra.Command) []string {
	if s, ok := cmd.Annotations[FormatsKey]; ok {
		return strings.Split(s, ",")
	}
	return output.Formats
}

// Sleep waits between two polls. It returns the error of ctx if that ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	if !clock.Sleep(ctx, d) {
		return ctx.Err()
	}

	return nil
}
