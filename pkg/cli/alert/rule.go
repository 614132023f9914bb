package alert

import (
	"cmp"
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// ruleCommand returns "carillon alert rule".
func ruleCommand(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rule",
		Aliases: []string{"rules"},
		Short:   "Manage rules: alerts of all tasks with some labels",
		Long: "Manage rules. A rule says what is expected of the tasks of a namespace that its selector matches, if they have no alerts\n" +
			"block of their own. If several rules match a task, the first one by name applies.",
	}
	cmd.AddCommand(listRulesCommand(f), getRuleCommand(f), applyRuleCommand(f), deleteRuleCommand(f))

	return cmd
}

// ruleName returns the name of a rule as -o name prints it, so that it can be typed again.
func ruleName(f *factory.Factory, r *task.AlertRule) string {
	return selection.Name(f, r.Namespace, r.Name)
}

// listRulesCommand returns "carillon alert rule list".
func listRulesCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List rules in the order in which they apply",
		Example: "  carillon alert rule list\n  carillon alert rule list -A -o json",
		Args:    factory.Args(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			list, err := c.Alerts.Rules(cmd.Context(), f.Scope())
			if err != nil {
				return err
			}

			return output.EmitList(&f.Printer, list, func(r task.AlertRule) string { return ruleName(f, &r) }, func(bool) *output.Table {
				g := &output.Table{Headers: []string{"RULE", "TASKS", "ALERTS WHEN", "UPDATED", "BY"}, Empty: "no alert rules" + selection.InScope(f)}
				for i := range list {
					r := &list[i]
					g.AddRow(ruleName(f, r), cmp.Or(output.OneLine(r.Selector), "all"), output.OneLine(wording.AlertsText(&r.Alerts)),
						f.PastTime(r.UpdatedAt, output.ReaderZone), view.ActorCell(f, r.UpdatedBy))
				}

				return g
			})
		},
	}
}

// getRuleCommand returns "carillon alert rule get".
func getRuleCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:     "get NAME",
		Short:   "Show a rule",
		Long:    "Show a rule. With -o yaml, it is printed in a form that carillon alert rule apply accepts.",
		Example: "  carillon alert rule get nightly\n  carillon alert rule get shop/nightly -o yaml",
		Args:    factory.Args(1, 1, "the rule's name"), ValidArgsFunction: complete.At(complete.AlertRules(f), nil),
		RunE: func(cmd *cobra.Command, words []string) error {
			r, err := selection.ParseRef(f, words[0])
			if err != nil {
				return err
			}
			c, err := f.Connect()
			if err != nil {
				return err
			}

			rule, err := c.Alerts.Rule(cmd.Context(), r.Namespace, r.Name)
			if err != nil {
				return err
			}

			return output.EmitOne(&f.Printer, rule, ruleName(f, &rule), func(d *output.Details) {
				d.Field("Name", "%s", ruleName(f, &rule))
				d.Field("Description", "%s", rule.Description)
				d.Field("Tasks", "%s", cmp.Or(rule.Selector, "all of the namespace")+", without alerts of their own")
				d.Field("Alerts when", "%s", wording.AlertsText(&rule.Alerts))
				d.Field("Created", "%s", view.ChangedText(f, rule.CreatedAt, rule.CreatedBy))
				d.Field("Updated", "%s", view.ChangedText(f, rule.UpdatedAt, rule.UpdatedBy))
				d.Field("Revision", "%s", view.RevisionText(rule.Revision))
			})
		},
	}
}

// applyRuleCommand returns "carillon alert rule apply".
func applyRuleCommand(f *factory.Factory) *cobra.Command {
	var files []string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create or replace rules from files",
		Long: "Create or replace rules. Each file has one rule in YAML or JSON: its name, a selector of labels (without one, the rule is about\n" +
			"all tasks of the namespace), and an alerts block, as a task has it.",
		Example: "  carillon alert rule apply -f nightly.yaml\n  carillon alert rule apply -n shop -f - --dry-run <nightly.yaml",
		Args:    factory.Args(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "`FILE` with one rule, or - for the standard input; may be repeated")
	_ = cmd.MarkFlagFilename("filename", "yaml", "yml", "json") // the flag exists
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "validate the rules on the server and print what would change, without changing it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(files) == 0 {
			return failure.Usage("no file given").WithHint("carillon alert rule apply -f FILE")
		}

		rules := make([]task.AlertRule, len(files))
		for i, file := range files {
			var err error
			if rules[i], err = readRule(f, cmd, file); err != nil {
				return err
			}
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		var written []client.AlertRuleChange
		for i := range rules {
			r := &rules[i]
			change, err := c.Alerts.SetRule(cmd.Context(), r.Namespace, r.Name, client.AlertRuleRequest{Description: r.Description, Selector: r.Selector, Alerts: r.Alerts}, dryRun)
			if err != nil {
				return err
			}
			written = append(written, change)

			if f.ForPeople() {
				did := "applied"
				if dryRun {
					did = "would apply"
				}
				f.Say("%s alert rule %s: %s", did, ruleName(f, &change.AlertRule), output.OneLine(wording.AlertsText(&change.Alerts)))
			}
			for _, w := range change.Warnings {
				f.Note("warning: %s: %s", ruleName(f, &change.AlertRule), output.OneLine(w))
			}
		}

		return output.EmitChanged(&f.Printer, written, len(rules), func(r client.AlertRuleChange) string { return ruleName(f, &r.AlertRule) })
	}

	return cmd
}

// readRule reads a rule from a file. Its namespace is that of the command, if it does not name one.
func readRule(f *factory.Factory, cmd *cobra.Command, file string) (task.AlertRule, error) {
	var rule task.AlertRule
	var text []byte
	var err error
	if file == "-" {
		text, err = io.ReadAll(io.LimitReader(cmd.InOrStdin(), manifest.MaxFile+1))
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return rule, err
	}

	err = manifest.Checked(file, text, &rule, func() error {
		if rule.Namespace == "" {
			rule.Namespace = f.Namespace()
		}
		return rule.Validate()
	})
	if err == nil && cmd.Flags().Changed("namespace") && rule.Namespace != f.Namespace() {
		err = failure.Usage("%s: the rule is in namespace %s, not in %s", file, rule.Namespace, f.Namespace())
	}

	return rule, err
}

// deleteRuleCommand returns "carillon alert rule delete".
func deleteRuleCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:               "delete NAME...",
		Short:             "Delete rules",
		Long:              "Delete rules. The alerts that they have opened close, unless another rule expects the same.",
		Example:           "  carillon alert rule delete nightly\n  carillon alert rule delete shop/nightly",
		Args:              factory.Args(1, -1, "the rule's name"),
		ValidArgsFunction: complete.AlertRules(f),
		RunE: func(cmd *cobra.Command, words []string) error {
			c, err := f.Connect()
			if err != nil {
				return err
			}

			gone, failed := batch.Run(cmd.Context(), f, "delete", "deleted", "alert rule", words, func(ctx context.Context, word string) (task.AlertRule, string, error) {
				r, err := selection.ParseRef(f, word)
				if err != nil {
					return task.AlertRule{}, "", err
				}

				rule := task.AlertRule{Namespace: r.Namespace, Name: r.Name}

				return rule, "deleted alert rule " + ruleName(f, &rule), c.Alerts.DeleteRule(ctx, r.Namespace, r.Name)
			})
			if err := output.EmitChanged(&f.Printer, gone, len(words), func(r task.AlertRule) string { return ruleName(f, &r) }); err != nil {
				return err
			}

			return failed
		},
	}
}
