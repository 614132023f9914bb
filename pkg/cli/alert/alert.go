// Package alert implements "carillon alert": it lists, shows and acknowledges alerts, silences them, and tests receivers.
package alert

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// nameHelp explains how commands name alerts.
const nameHelp = "Name an alert by its task, or as TASK:KIND, where KIND is failures, success_within, success_by, max_lateness,\n" +
	"max_duration or max_pause. Name an alert about the cluster as cluster:CODE."

// Command returns "carillon alert".
func Command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "alert",
		Aliases: []string{"alerts"},
		Short:   "Manage alerts and silences",
		Long: "Show and manage alerts. An alert is open while an expectation of a task is not met: runs fail, or do not succeed in\n" +
			"time, a tick does not start, a run takes too long, or a pause lasts too long. Receivers are notified when it opens and when it closes.\n\n" + nameHelp,
	}
	cmd.AddGroup(&cobra.Group{ID: "alerts", Title: "Alerts:"}, &cobra.Group{ID: "silences", Title: "Silences:"}, &cobra.Group{ID: "receivers", Title: "Receivers and rules:"})
	factory.AddGroup(cmd, "alerts", listCommand(f), getCommand(f), ackCommand(f))
	factory.AddGroup(cmd, "silences", silenceCommand(f), silencesCommand(f), unsilenceCommand(f))
	factory.AddGroup(cmd, "receivers", testCommand(f), ruleCommand(f))

	return cmd
}

// kinds are the kinds of alerts of tasks.
var kinds = task.TaskAlertKindNames()

// alertName is what a user writes to name alerts.
type alertName struct {
	word string
	task selection.Ref  // of a glob: its name is the pattern
	kind task.AlertKind // "": all kinds
	code string         // of an alert about the cluster; then task is empty
}

// parseName parses TASK, TASK:KIND or cluster:CODE. The task may be a glob.
func parseName(f *factory.Factory, word string) (alertName, error) {
	n := alertName{word: word}
	name, kind, has := strings.Cut(word, ":")

	switch isKind := slices.Contains(kinds, kind); {
	case has && !isKind && name == "cluster" && kind != "":
		n.code = kind
		return n, nil
	case has && !isKind:
		e := failure.Usage("%s: %s is not one of %s", task.Quote(word), task.Quote(kind), strings.Join(kinds, ", "))
		if near := task.Nearest(kind, kinds); near != "" {
			e.Hint = "did you mean: " + name + ":" + near
		}
		return n, e
	}

	n.kind = task.AlertKind(kind)
	if !selection.IsGlob(name) {
		var err error
		n.task, err = selection.ParseRef(f, name)
		return n, err
	}

	n.task = selection.Ref{Namespace: f.Scope(), Name: name}
	if ns, pattern, ok := strings.Cut(name, "/"); ok {
		n.task = selection.Ref{Namespace: ns, Name: pattern}
	}
	if _, err := path.Match(n.task.Namespace, ""); err != nil {
		return n, failure.Usage("%s is not a pattern; use *, ? and [a-z]", task.Quote(word))
	}
	if _, err := path.Match(n.task.Name, ""); err != nil {
		return n, failure.Usage("%s is not a pattern; use *, ? and [a-z]", task.Quote(word))
	}

	return n, nil
}

// matches reports whether an alert has the name. A namespace that is empty matches all.
func (n *alertName) matches(a *task.AlertStatus) bool {
	if n.code != "" {
		return a.Kind == task.AlertCluster && a.Code == n.code
	}
	if a.Task == "" || n.kind != "" && n.kind != a.Kind {
		return false
	}

	isName, _ := path.Match(n.task.Name, a.Task)
	inNamespace, _ := path.Match(n.task.Namespace, a.Namespace)

	return isName && (n.task.Namespace == "" || inNamespace)
}

// isExact reports whether the name is that of one task.
func (n *alertName) isExact() bool { return n.code == "" && !selection.IsGlob(n.word) }

// parseNames parses words.
func parseNames(f *factory.Factory, words []string) ([]alertName, error) {
	names := make([]alertName, len(words))
	for i, word := range words {
		var err error
		if names[i], err = parseName(f, word); err != nil {
			return nil, err
		}
	}

	return names, nil
}

// findNamed returns the alerts with some names, each once, open and closed ones. Each word must name a task that exists, or match something.
func findNamed(ctx context.Context, f *factory.Factory, c *client.Client, words []string) ([]task.AlertStatus, error) {
	names, err := parseNames(f, words)
	if err != nil {
		return nil, err
	}

	found := make([][]task.AlertStatus, len(names))
	err = batch.Parallel(ctx, len(names), func(i int) error {
		n := &names[i]
		if n.isExact() {
			all, err := c.Alerts.ListByTask(ctx, n.task.Namespace, n.task.Name)
			found[i] = slices.DeleteFunc(all.Items, func(a task.AlertStatus) bool { return !n.matches(&a) })

			return selection.ExplainMissing(ctx, f, c, n.task, err)
		}

		for _, closed := range []bool{false, true} {
			namespace := n.task.Namespace
			if selection.IsGlob(namespace) || n.code != "" {
				namespace = ""
			}

			list, err := c.Alerts.List(ctx, client.AlertListOptions{Namespace: namespace, Closed: closed})
			if err != nil {
				return err
			}
			found[i] = append(found[i], slices.DeleteFunc(list, func(a task.AlertStatus) bool { return !n.matches(&a) })...)
		}

		return nil
	})
	if err != nil {
		return nil, err
	}

	var all []task.AlertStatus
	seen := map[string]bool{}
	for i, list := range found {
		if len(list) == 0 {
			return nil, failure.NotFound("no alert of %s", task.Quote(names[i].word)).WithHint("carillon alert list shows all open alerts")
		}

		for _, a := range list {
			if name := a.FullName(); !seen[name] {
				seen[name] = true
				all = append(all, a)
			}
		}
	}
	overview.SortAlerts(all)

	return all, nil
}

// shownName returns the name of an alert as -o name prints it, so that it can be typed again.
func shownName(f *factory.Factory, a *task.AlertStatus) string {
	if a.Namespace == "" || a.Namespace == f.Namespace() && !f.AllNamespaces {
		return a.Name
	}
	return a.FullName()
}

// notifiedText says in one cell who was notified, or why nobody is.
func notifiedText(f *factory.Factory, a *task.AlertStatus) string {
	at := view.PastOrFuture(f)
	var parts []string
	if s := a.Silence; s != nil {
		parts = append(parts, fmt.Sprintf("silenced until %s (%s)", at(s.Until), s.By.Name()))
	}

	for i := range a.Receivers {
		r := a.Receivers[i]
		r.Run = "" // in the wide table and in alert get
		if f.Format == output.FormatWide {
			r.Run = a.Receivers[i].Run
		}
		parts = append(parts, r.Receiver+": "+wording.AlertReceiverText(&r, !a.IsOpen(), at))
	}

	if len(parts) == 0 {
		return "nobody"
	}

	return strings.Join(parts, "; ")
}
