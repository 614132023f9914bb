package factory

import (
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

// BindFlags declares the global flags.
func (f *Factory) BindFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.ContextFlag, "context", "", "use the context with this `NAME` (CARILLON_CONTEXT; see help contexts)")
	flags.StringVar(&f.ServerFlag, "server", "", "`URL` of the API (CARILLON_SERVER; default unix://"+settings.HostSocket+" if you may open it, else "+client.DefaultServer+")")
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
	flags.DurationVar(&f.Timeout, "timeout", 30*time.Second, "limit each call to the server to this `DURATION`")
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
		return failure.Usage("--timeout %s: must be more than 0", f.Timeout)
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

// ParseTime parses the value s of a flag: a time in RFC 3339, or a date with or without a time of day
// in zone. It returns the zero time for an empty value. The error names the flag, which is given
// without dashes.
func ParseTime(flag, s string, zone *time.Location) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}

	for _, layout := range []string{"2006-01-02", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02T15:04:05", "2006-01-02 15:04:05"} {
		if t, err := time.ParseInLocation(layout, s, zone); err == nil {
			return t, nil
		}
	}

	return time.Time{}, failure.Usage("--%s %s: use 2027-03-28, 2027-03-28T01:30 or 2027-03-28T01:30:00Z", flag, task.Quote(s))
}

// ParseNextTime parses the value of a flag as ParseTime does, or as a time of day, which means its next occurrence after
// start.
func ParseNextTime(flag, s string, start time.Time, zone *time.Location) (time.Time, error) {
	for _, layout := range []string{"15:04", "15:04:05"} {
		t, err := time.Parse(layout, s)
		if err != nil {
			continue
		}

		day := start.In(zone)
		at := time.Date(day.Year(), day.Month(), day.Day(), t.Hour(), t.Minute(), t.Second(), 0, zone)
		if !at.After(start) {
			at = time.Date(day.Year(), day.Month(), day.Day()+1, t.Hour(), t.Minute(), t.Second(), 0, zone)
		}

		return at, nil
	}

	at, err := ParseTime(flag, s, zone)
	if err != nil {
		return at, failure.Usage("--%s %s: use 18:00, 2027-03-28, 2027-03-28T01:30 or 2027-03-28T01:30:00Z", flag, task.Quote(s))
	}

	return at, nil
}
