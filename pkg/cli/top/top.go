// Package top implements "carillon top". It connects the screen of package internal/top to the server, or
// prints one board if there is no terminal.
package top

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/top"
	"github.com/carillonhq/carillon/pkg/task"
)

// Command returns "carillon top".
func Command(f *factory.Factory) *cobra.Command {
	var once bool
	var ahead, every time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show a live dashboard of the cluster",
		Long: "Show a live dashboard: problems (failing, overdue, stuck and lost tasks, silent nodes), the next ticks, active runs and\n" +
			"nodes. Press ? for the keys. The dashboard shows all namespaces, or with -n only one.\n\n" +
			"Without a terminal, or with --once, the command prints the dashboard once and exits. -o json prints its data.",
		Example: `  carillon top
  carillon top --once
  carillon top --once -o json | jq '.failing[].task'
  carillon top -n billing --ahead 1h`,
		Args: factory.Args(0, 0, ""),
	}
	flags := cmd.Flags()
	flags.BoolVar(&once, "once", false, "print the dashboard once and exit")
	factory.DurationVar(flags, &ahead, "ahead", 10*time.Minute, "show ticks within this `DURATION`, at most 24h")
	factory.DurationVar(flags, &every, "every", time.Second, "refresh at this interval, a `DURATION` of at least 500ms")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case ahead <= 0 || ahead > 24*time.Hour:
			return failure.Usage("--ahead %s: use a duration of at most 24h", task.Duration(ahead))
		case every < 500*time.Millisecond || every > time.Hour:
			return failure.Usage("--every %s: use a duration from 500ms to 1h", task.Duration(every))
		}

		o := client.BoardOptions{Span: ahead, Limit: top.Listed}
		_, screen := f.Terminal(f.Out)
		if once || !screen || !f.ForPeople() || f.Env("TERM") == "dumb" {
			return topOnce(cmd.Context(), f, o)
		}

		return topScreen(cmd.Context(), f, o, every)
	}

	return factory.LimitFormats(cmd, output.FormatTable, output.FormatJSON, output.FormatJSONL, output.FormatYAML)
}

// topConfig returns the appearance of the screen.
func topConfig(f *factory.Factory) top.Config {
	c := top.Config{Namespace: task.Defaults().Namespace, ASCII: f.ASCII, Zone: f.Zone(output.ReaderZone)}
	if f.NamespaceFlag != "" && !f.AllNamespaces {
		c.Namespace, c.Filter = f.NamespaceFlag, f.NamespaceFlag+"/"
	}
	return c
}

// checkNamespace refuses a namespace that does not exist: its board would look as if nothing were wrong. Boards do not need etcd,
// so while it cannot answer, the namespace is not checked.
func checkNamespace(ctx context.Context, f *factory.Factory, c *client.Client) error {
	if topConfig(f).Filter == "" {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, f.LookupTimeout)
	defer cancel()
	if _, err := c.Namespaces.Get(ctx, f.NamespaceFlag); errors.Is(err, task.ErrNotFound) {
		return err
	}

	return nil
}

// topOnce prints one board.
func topOnce(ctx context.Context, f *factory.Factory, o client.BoardOptions) error {
	c, err := f.Connect()
	if err != nil {
		return err
	}

	b, err := c.Board.Get(ctx, o)
	if err == nil {
		err = checkNamespace(ctx, f, c)
	}
	if err != nil {
		return err
	}

	switch f.Format {
	case output.FormatJSON:
		return f.EmitJSON(b)
	case output.FormatJSONL:
		return f.EmitLines(1, func(int) ([]byte, error) { return output.CompactJSON(b) })

	case output.FormatYAML:
		return f.EmitYAML(1, func(int) any { return b })
	}

	width, _ := f.Terminal(f.Out)
	p := top.New(topConfig(f)).Once(top.BoardUpdate{Board: b, Server: c.Server()}, width)

	if f.UsesColor(f.Out) {
		return f.Print(p.ANSI())
	}

	return f.Print(p.Text())
}

// topScreen shows the screen until the user quits.
func topScreen(ctx context.Context, f *factory.Factory, o client.BoardOptions, every time.Duration) error {
	limit := min(f.Timeout, 5*time.Second) // shorter than that of a command, because the screen must stay responsive
	c, err := f.ConnectFor(limit)
	if err != nil {
		return err
	}
	// An error that a retry would not fix is reported before the screen replaces the terminal's contents.
	if _, err := c.Board.Get(ctx, client.BoardOptions{Span: o.Span, Limit: 1}); err != nil {
		return err
	}
	if err := checkNamespace(ctx, f, c); err != nil {
		return err
	}

	tty, err := top.OpenTty(f.UsesColor(f.Out))
	if err != nil {
		return err
	}

	defer tty.Close()

	p := top.Program{Client: c, Model: top.New(topConfig(f)), Options: o, Every: every, Now: f.Now, Dial: func(server string) (*client.Client, error) {
		return dialOther(f, c, server, limit)
	}}

	return p.Run(ctx, tty)
}

// dialOther returns a client of another node, at an address that the first server has sent, with the token of
// the first server. The token may go only to a server that is proven to be a node as well as the first one was.
// Either it has a certificate of the same CA, which must be the user's own CA, because anybody can get a
// certificate of a public CA. Or it has a loopback address, where the client checks who listens.
func dialOther(f *factory.Factory, c *client.Client, server string, limit time.Duration) (*client.Client, error) {
	cfg, err := f.ClientConfig(limit)
	if err != nil {
		return nil, err
	}

	cfg.Server, cfg.Insecure = server, false
	other, err := client.New(cfg)
	if err != nil {
		return nil, err
	}

	scheme := func(c *client.Client) string { s, _, _ := strings.Cut(c.Server(), "://"); return s }
	switch {
	case scheme(other) != scheme(c):
		return nil, fmt.Errorf("%s: uses another scheme than %s", other.Server(), c.Server())
	case scheme(other) == "https" && (cfg.TLS == nil || cfg.TLS.RootCAs == nil):
		return nil, fmt.Errorf("%s: set --ca-file to verify that this is a node", other.Server())
	case scheme(other) == "http" && !(other.OnThisHost() && c.OnThisHost()):
		return nil, fmt.Errorf("%s: without TLS, carillon cannot verify that this is a node", other.Server())
	}

	return other, nil
}
