package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// drainLimit is how long a drain is waited for by default.
const drainLimit = 10 * time.Minute

// drainCommand returns "carillon node drain".
func drainCommand(f *factory.Factory) *cobra.Command {
	wait, limit := true, drainLimit
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Move shards and waiting runs off nodes",
		Long: "Move the shards and the runs that have not started to other nodes, and assign no new ones. Running processes\n" +
			"continue. The daemon also continues, and stays drained across restarts until you run carillon node resume. With\n" +
			"--dry-run, and on a terminal, the command names the tasks that no other node takes.\n\n" +
			"The command waits until the nodes own no shards and run nothing. If you interrupt it, or if it times out, the\n" +
			"drain continues.",
		Example: `  carillon node drain db-1 && ssh db-1 reboot
  carillon node drain db-1 --wait=false
  carillon node drain -l zone=a --yes`,
	}
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until the nodes have no shards and run nothing")
	factory.DurationVar(cmd.Flags(), &limit, "within", limit, "stop waiting after this `DURATION` and exit with 5")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if limit <= 0 {
			return failure.Usage("--within %s: must be more than 0", task.Duration(limit))
		}
		return nil
	}

	return stateCommand(f, cmd, true, "draining", (*client.NodesService).Drain, func(ctx context.Context, c *client.Client, changed []task.Node) error {
		if !wait {
			return nil
		}

		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()

		return awaitDrained(ctx, f, c, changed, limit)
	})
}

// cordonCommand returns "carillon node cordon".
func cordonCommand(f *factory.Factory) *cobra.Command {
	return stateCommand(f, &cobra.Command{
		Use:   "cordon",
		Short: "Assign no new runs to nodes",
		Long: "Assign no new runs to nodes, until you run carillon node resume. Runs that the nodes have already received still\n" +
			"run there, and the nodes keep their shards.",
		Example: `  carillon node cordon db-1
  carillon node cordon 'web-*' --dry-run`,
	}, true, "cordoned", (*client.NodesService).Cordon, nil)
}

// resumeCommand returns "carillon node resume".
func resumeCommand(f *factory.Factory) *cobra.Command {
	return stateCommand(f, &cobra.Command{
		Use:     "resume",
		Short:   "End the drain or the cordon of nodes",
		Example: "  carillon node resume db-1\n  carillon node resume -l zone=a --yes",
	}, false, "resumed", (*client.NodesService).Resume, nil)
}

// stateCommand completes cmd, which calls do for each named node. then, if set, is called with the nodes for
// which do succeeded; it may update their records. stops says that the nodes get no runs from then on.
func stateCommand(f *factory.Factory, cmd *cobra.Command, stops bool, done string, do func(*client.NodesService, context.Context, string) (task.Node, error),
	then func(ctx context.Context, c *client.Client, changed []task.Node) error) *cobra.Command {
	var p selection.Flags
	cmd.Use += " NODE... | -l SELECTOR"
	cmd.ValidArgsFunction = complete.Nodes(f)
	cmd.Flags().StringVarP(&p.Selector, "selector", "l", "", "select nodes whose labels and facts match this `SELECTOR`, such as zone=a or 'load1 > 8'")
	cmd.Flags().BoolVar(&p.DryRun, "dry-run", false, "print the changes without making them")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		c, err := f.Connect()
		if err != nil {
			return err
		}

		names, broad, err := nodesOf(ctx, c, words, p.Selector)
		if err != nil {
			return err
		}

		var absent error
		if p.DryRun && !broad {
			names, absent = batch.Existing(ctx, f, names, func(name string) error {
				_, err := c.Nodes.Get(ctx, name)
				return missingNode(f, cmd, c, name, err)
			})

			if len(names) == 0 && absent != nil {
				return absent
			}
		}

		if _, isTerminal := f.Terminal(f.In); stops && (p.DryRun || isTerminal) && len(names) > 0 {
			noteStranded(ctx, f, c, names)
		}

		if ok, err := f.Confirm(ctx, cmd.Name(), "node", names, broad, p.DryRun, false); !ok {
			if err == nil {
				err = absent
			}
			return err
		}

		changed, failed := batch.Run(ctx, f, cmd.Name(), done, "node", names, func(ctx context.Context, name string) (task.Node, string, error) {
			n, err := do(c.Nodes, ctx, name)
			if err != nil {
				return n, "", missingNode(f, cmd, c, name, err)
			}
			return n, done + " " + n.Name, nil
		})

		if then != nil && len(changed) > 0 {
			if err := then(ctx, c, changed); err != nil {
				return err
			}
		}

		if err := output.EmitChanged(&f.Printer, changed, len(names), func(n task.Node) string { return n.Name }); err != nil {
			return err
		}

		return failed
	}

	return cmd
}

// nodeNames returns the names of nodes.
func nodeNames(nodes []task.Node) []string {
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = n.Name
	}
	return names
}

// nodesOf returns the nodes that names, globs or a selector select, each once. broad is true if they are
// several and not all were named.
func nodesOf(ctx context.Context, c *client.Client, words []string, selector string) (names []string, broad bool, err error) {
	switch {
	case selector == "" && len(words) == 0:
		return nil, false, failure.Usage("no node given; name one or more nodes, or use -l")
	case selector != "" && len(words) > 0:
		return nil, false, failure.Usage("names and -l cannot be used together")
	}

	wanted, err := task.ParseSelector(selector)
	if err != nil {
		return nil, false, task.Under("selector", err)
	}

	var all []task.Node
	if broad = selector != "" || slices.ContainsFunc(words, selection.IsGlob); broad {
		if all, err = c.Nodes.List(ctx); err != nil {
			return nil, false, err
		}
	}

	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}

	for _, word := range words {
		if !selection.IsGlob(word) {
			if err := task.CheckName("node", word); err != nil {
				return nil, false, err
			}
			add(word)
			continue
		}

		found := 0
		for _, n := range all {
			matches, err := path.Match(word, n.Name)
			if err != nil {
				return nil, false, failure.Usage("%s is not a pattern; use *, ? and [a-z]", task.Quote(word))
			}

			if matches {
				found++
				add(n.Name)
			}
		}

		if found == 0 {
			return nil, false, failure.NotFound("no node matches %s", task.Quote(word))
		}
	}

	for _, n := range all {
		if selector != "" && wanted.Accepts(&n) {
			add(n.Name)
		}
	}

	return names, broad && len(names) > 1, nil
}

// awaitDrained waits until nodes own no shards and run nothing, and prints their progress. It updates drained
// to the records that it read last.
func awaitDrained(ctx context.Context, f *factory.Factory, c *client.Client, drained []task.Node, limit time.Duration) error {
	reported, since := "", time.Time{}
	names := nodeNames(drained)

	for {
		nodes, err := c.Nodes.List(ctx)
		var left []string
		for _, n := range nodes {
			i := slices.Index(names, n.Name)
			if i < 0 {
				continue
			}

			if drained[i] = n; n.Shards+n.Running > 0 {
				left = append(left, fmt.Sprintf("%s: shards %d, running %d", output.OneLine(n.Name), n.Shards, n.Running))
			}
		}

		switch {
		case ctx.Err() != nil:
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return &failure.Error{Exit: failure.ExitUnavailable, Problem: failure.Problem{Code: client.CodeUnavailable,
					Message: fmt.Sprintf("not drained within %s: %s", limit, cmp.Or(reported, "no node responds")),
					Hint:    "the drain continues; check it with carillon node list, or end it with carillon node resume"}}
			}

			f.Note("the drain continues; check it with: carillon node list")

			return ctx.Err()
		case err != nil && !errors.Is(err, task.ErrUnavailable):
			return err
		case err == nil && len(left) == 0:
			f.Say("drained %s", strings.Join(names, " "))
			return nil
		}

		if words := strings.Join(left, "; "); err == nil && words != reported && (reported == "" || f.Now().Sub(since) > time.Second) {
			reported, since = words, f.Now()
			f.Note("%s", words)
			if !slices.ContainsFunc(nodes, func(n task.Node) bool { return n.Owns() }) {
				f.Note("no other node can own shards now")
			}
		}

		_ = factory.Sleep(ctx, drainPoll)
	}
}

// drainPoll is how often the records of draining nodes are read.
const drainPoll = 300 * time.Millisecond
