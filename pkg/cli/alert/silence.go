package alert

import (
	"context"
	"fmt"
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

// silenceCommand returns "carillon alert silence".
func silenceCommand(f *factory.Factory) *cobra.Command {
	var request client.SilenceRequest
	var lasts time.Duration
	var until string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "silence TASK|GLOB | -l SELECTOR",
		Short: "Hold back messages about the alerts of some tasks",
		Long: "Hold back messages about the alerts of some tasks of a namespace until a time, at most 30 days. The alerts still open and\n" +
			"close, and carillon alert list shows them. What is still open at the end is sent then. The silence also covers tasks that\n" +
			"are created later. Use '*' for all tasks of the namespace.",
		Example: `  carillon alert silence 'web-*' --for 2h --reason 'the load balancer moves'
  carillon alert silence -l team=data --until 18:00 --reason INC-42
  carillon alert silence -n shop '*' --for 30m --reason 'database restart' --dry-run`,
		Args:              factory.Args(0, 1, ""),
		ValidArgsFunction: complete.Task(f),
	}
	flags := cmd.Flags()
	flags.StringVarP(&request.Selector, "selector", "l", "", "silence the alerts of tasks whose labels match this `SELECTOR`, such as team=data")
	factory.DurationVar(flags, &lasts, "for", 0, "end the silence after this `DURATION`, such as 2h (default: use --until)")
	flags.StringVar(&until, "until", "", "end the silence at this `TIME`: 2h, 18:00, or 2026-12-24 18:00 in your time zone (see help times)")
	flags.StringVar(&request.Reason, "reason", "", "`TEXT` that explains the silence to other users; required")
	flags.BoolVar(&dryRun, "dry-run", false, "print what would be silenced, without silencing it")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if err := factory.RefuseEmpty(cmd, "selector", "until", "reason"); err != nil {
			return err
		}

		namespace := f.Namespace()
		switch hasFor := cmd.Flags().Changed("for"); {
		case request.Selector != "" && len(words) > 0:
			return failure.Usage("a name and -l cannot be used together")
		case request.Selector == "" && len(words) == 0:
			return failure.Usage("no task given; name a task or a glob, or use -l")
		case f.AllNamespaces:
			return failure.Usage("a silence is about one namespace; use -n instead of -A")
		case hasFor && until != "":
			return failure.Usage("--for and --until cannot be used together")
		case !hasFor && until == "":
			return failure.Usage("--for or --until is required: a silence must end")
		case hasFor && lasts <= 0:
			return failure.Usage("--for: must be more than 0s")
		case request.Reason == "":
			return failure.Usage("--reason is required; users see it when they ask why nobody was notified")
		}

		if len(words) > 0 {
			request.Glob = words[0]
			if ns, name, ok := strings.Cut(words[0], "/"); ok {
				namespace, request.Glob = ns, name
			}
		}

		request.For = task.Duration(lasts)
		if d, err := task.ParseDuration("until", until); err == nil {
			request.For, until = d, ""
		}
		var err error
		if request.Until, err = f.ParseEnd("until", until, f.Zone(output.ReaderZone)); err != nil {
			return err
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		s, err := c.Alerts.Silence(cmd.Context(), namespace, request, dryRun)
		if err != nil {
			return err
		}

		if f.ForPeople() {
			did := "silenced"
			if dryRun {
				did = "would silence"
			}
			f.Say("%s alerts of %s in namespace %s until %s · %s now", did, s.What(), namespace, f.FutureTime(s.Until, output.ReaderZone), openText(s.Alerts))
			if !dryRun {
				f.SayNext("carillon alert unsilence %s/%s ends it", namespace, s.ID)
			}

			return nil
		}

		return output.EmitOne(&f.Printer, s, silenceName(f, &s.AlertSilence), nil)
	}

	return cmd
}

// openText says how many alerts are open.
func openText(n int) string {
	if n == 1 {
		return "1 is open"
	}
	return fmt.Sprintf("%d are open", n)
}

// silenceName returns the name of a silence as -o name prints it, so that it can be typed again.
func silenceName(f *factory.Factory, s *task.AlertSilence) string {
	return selection.Name(f, s.Namespace, s.ID)
}

// silencesCommand returns "carillon alert silences".
func silencesCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:     "silences",
		Short:   "List silences, the first to end first",
		Long:    "List the silences that are in force: what is silenced until when, by whom and why.",
		Example: "  carillon alert silences\n  carillon alert silences -A -o json",
		Args:    factory.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			list, err := c.Alerts.Silences(cmd.Context(), f.Scope())
			if err != nil {
				return err
			}

			return output.EmitList(&f.Printer, list, func(s task.AlertSilence) string { return silenceName(f, &s) }, func(bool) *output.Table {
				g := &output.Table{Headers: []string{"SILENCE", "TASKS", "UNTIL", "LEFT", "SINCE", "BY", "REASON"}, Empty: "no silences" + selection.InScope(f)}
				for i := range list {
					s := &list[i]
					g.AddRow(silenceName(f, s), output.OneLine(s.What()), f.FutureTime(s.Until, output.ReaderZone), f.TimeLeft(s.Until),
						f.PastTime(s.Since, output.ReaderZone), output.OneLine(s.By.Name()), output.OneLine(s.Reason))
				}

				return g
			})
		},
	}
}

// unsilenceCommand returns "carillon alert unsilence".
func unsilenceCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:   "unsilence SILENCE...",
		Short: "End silences before their time",
		Long: "End silences before their time. What is still open is then sent. Name a silence by its ID, as carillon alert silences\n" +
			"prints it.",
		Example:           "  carillon alert unsilence k3f9a2c1\n  carillon alert unsilence shop/k3f9a2c1",
		Args:              factory.Args(1, -1, "the ID of the silence"),
		ValidArgsFunction: complete.Silences(f),
		RunE: func(cmd *cobra.Command, words []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			ended, failed := batch.Run(cmd.Context(), f, "end", "ended", "silence", words, func(ctx context.Context, word string) (task.AlertSilence, string, error) {
				r, err := selection.ParseRef(f, word)
				if err != nil {
					return task.AlertSilence{}, "", err
				}

				s, err := c.Alerts.EndSilence(ctx, r.Namespace, r.Name)

				return s, fmt.Sprintf("ended silence %s of %s", silenceName(f, &s), output.OneLine(s.What())), err
			})
			if err := output.EmitChanged(&f.Printer, ended, len(words), func(s task.AlertSilence) string { return silenceName(f, &s) }); err != nil {
				return err
			}

			return failed
		},
	}
}
