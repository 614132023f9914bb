package complete

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Alerts completes the names of alerts, open and closed ones, as TASK:KIND.
func Alerts(f *factory.Factory) Func { return alerts(f, "alerts", false, true) }

// OpenAlerts completes the names of open alerts.
func OpenAlerts(f *factory.Factory) Func { return alerts(f, "open-alerts", false) }

// alerts completes the names of alerts: open ones, closed ones, or both. kind names what is cached.
func alerts(f *factory.Factory, kind string, closed ...bool) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return Matching(Live(f, cmd, kind, func(ctx context.Context, c *client.Client) ([]Offer, error) {
			var offers []Offer
			for _, is := range closed {
				list, err := c.Alerts.List(ctx, client.AlertListOptions{Namespace: f.Scope(), Closed: is})
				if err != nil {
					return nil, err
				}

				for _, a := range list {
					if a.Kind == task.AlertMore {
						continue // no command takes it
					}

					name, about := a.Name, a.Severity+" since "+f.PastTime(a.Since, output.ReaderZone)
					if a.Namespace != "" && (a.Namespace != f.Namespace() || f.AllNamespaces) {
						name = a.FullName()
					}
					if !a.IsOpen() {
						about = "closed " + f.PastTime(a.Closed.At, output.ReaderZone)
					}
					offers = append(offers, Offer{name, about})
				}
			}

			return offers, nil
		}), done, typed)
	}
}

// Silences completes the IDs of silences.
func Silences(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return Matching(Live(f, cmd, "silences", func(ctx context.Context, c *client.Client) ([]Offer, error) {
			list, err := c.Alerts.Silences(ctx, f.Scope())
			offers := make([]Offer, len(list))
			for i, s := range list {
				offers[i] = Offer{selection.Name(f, s.Namespace, s.ID), output.OneLine(s.What() + ": " + s.Reason)}
			}

			return offers, err
		}), done, typed)
	}
}

// AlertRules completes the names of rules of alerts.
func AlertRules(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return Matching(Live(f, cmd, "alert-rules", func(ctx context.Context, c *client.Client) ([]Offer, error) {
			list, err := c.Alerts.Rules(ctx, f.Scope())
			offers := make([]Offer, len(list))
			for i, r := range list {
				offers[i] = Offer{selection.Name(f, r.Namespace, r.Name), output.OneLine(r.Description)}
			}

			return offers, err
		}), done, typed)
	}
}

// Receivers completes the names of tasks that are receivers of alerts, for a command that takes only one.
func Receivers(f *factory.Factory) Func {
	return At(func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return Matching(Live(f, cmd, "receivers", func(ctx context.Context, c *client.Client) (offers []Offer, err error) {
			err = someTasks(ctx, f, c, "", func(t client.Task) {
				if t.Receiver != nil {
					offers = append(offers, Offer{selection.TaskName(f, t), output.OneLine(t.Description)})
				}
			})
			return offers, err
		}), done, typed)
	}, nil)
}
