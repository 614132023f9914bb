package notifier

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// silentAfter is after what time without a delivered message a receiver is a problem, and slotAfter after what time a
	// run of a message in the queue is.
	silentAfter = 15 * time.Minute
	slotAfter   = 5 * time.Minute
	// problemAfter and notEvaluatedAfter are for how long a problem must last before it is an alert about the cluster.
	problemAfter      = time.Minute
	notEvaluatedAfter = 5 * time.Minute
	// rewriteEvery is the minimum time between two texts of an open alert about the cluster.
	rewriteEvery = time.Minute
	// namedProblems is how many receivers or nodes the text of a problem names.
	namedProblems = 5
)

// problem is a problem of the cluster, as this leader has seen it.
type problem struct {
	since   time.Time
	written time.Time // when its alert was last written
}

// noteTrouble notes why a receiver gets no messages, if that has to be known.
func (p *pass) noteTrouble(name string, held *task.AlertBlock, forbidden []string, sent *task.AlertsSent, d *alert.Decision) {
	trouble := ""
	switch {
	case held != nil && d.Due > 0:
		trouble = "is " + string(held.Why)
		if held.By != nil {
			trouble += " by " + held.By.Name()
		}
		trouble += " while alerts wait"
	case len(forbidden) > 0:
		trouble = "does not accept alerts of " + joinSome(forbidden)
	case d.NoRoom > 0:
		trouble = fmt.Sprintf("knows of %d open alerts, the most with group: task; %d more wait until some of them close", alert.LimitsOf(task.GroupTask).Keys, d.NoRoom)
	case d.Sent.FailedInARow > 0 && p.now.Sub(d.Sent.FailingSince.Time) >= silentAfter:
		trouble = "gets no messages since " + d.Sent.FailingSince.UTC().Format(time.RFC3339)
	case d.Sent.Sending != nil && !d.Message:
		trouble = p.delayOf(d.Sent.Sending)
	}

	if trouble != "" {
		p.troubles[name] = trouble
	}
}

// delayOf returns what delays a message; "" if nothing does.
func (p *pass) delayOf(m *task.AlertMessage) string {
	for _, id := range m.Runs {
		w := p.waiting[id]
		if w == nil {
			continue
		}

		since := m.At
		if w.NotBefore.After(since.Time) {
			since = w.NotBefore
		}
		if p.now.Sub(since.Time) >= slotAfter {
			return "has a message that waits for a node since " + since.UTC().Format(time.RFC3339)
		}
	}

	if p.now.Sub(m.At.Time) >= silentAfter {
		return "has a message under way since " + m.At.UTC().Format(time.RFC3339)
	}

	return ""
}

// reportReceivers opens an alert while receivers get no messages, and closes it.
func (p *pass) reportReceivers(ctx context.Context) error {
	if p.incomplete {
		return nil
	}

	var texts []string
	for _, name := range slices.Sorted(maps.Keys(p.troubles)) {
		texts = append(texts, name+" "+p.troubles[name])
	}

	return p.report(ctx, task.WarnReceivers, joinSome(texts), problemAfter)
}

// reportNotEvaluated opens an alert while the expectations of some tasks are not evaluated, and closes it.
func (p *pass) reportNotEvaluated(ctx context.Context) error {
	nodes, owners := p.cfg.Fleet()

	// Nobody has to know in a cluster whose tasks have no alerts.
	used := len(p.known.alerts)+len(p.known.sent)+len(p.cluster.AlertReceivers) > 0

	return p.report(ctx, task.WarnNotEvaluated, notEvaluated(nodes, owners, p.cluster.Shards, used), notEvaluatedAfter)
}

// notEvaluated says which tasks are not evaluated; "" if all are. A node announces for how many tasks of its shards that holds. A
// node that announces no number does not evaluate any, because it has an older version. used means that tasks have alerts.
func notEvaluated(nodes []task.Node, owners []record.Owner, shards int, used bool) string {
	present := map[string]*task.Node{}
	for i := range nodes {
		present[nodes[i].Name] = &nodes[i]
	}

	owned, tasks := 0, 0
	old := map[string]bool{}
	for _, o := range owners {
		n := present[o.Node]
		if n == nil {
			continue
		}
		if owned++; n.NotEvaluated == nil {
			old[o.Node] = true
		}
	}
	for name := range present {
		if n := present[name].NotEvaluated; n != nil {
			tasks += *n
		}
	}

	var texts []string
	if tasks > 0 {
		texts = append(texts, "the alerts of "+wording.Plural(int64(tasks), "task")+" are not evaluated")
	}
	if n := shards - owned; n > 0 && used {
		texts = append(texts, fmt.Sprintf("%d of %d shards have no owner", n, shards))
	}
	if len(old) > 0 && used {
		texts = append(texts, "nodes of an older version evaluate no alerts: "+joinSome(slices.Sorted(maps.Keys(old))))
	}

	return strings.Join(texts, "; ")
}

// report opens the alert about a problem of the cluster if that has lasted for a while, keeps its text and its receivers
// current, and closes it when the problem is gone: text is empty then.
func (p *pass) report(ctx context.Context, code, text string, after time.Duration) error {
	a, exists := p.known.clusterAlert(code)
	isOpen := exists && a.IsOpen()
	a.Kind, a.Code = task.AlertCluster, code

	if text == "" {
		delete(p.problems, code)
		switch {
		case isOpen:
			return p.closeClusterAlert(ctx, a)
		case exists && p.now.Sub(a.Closed.At.Time) >= keepClosed:
			return p.cfg.Store.DeleteClusterAlert(ctx, p.fence, a)
		}

		return nil
	}

	known := p.problems[code]
	if known == nil {
		known = &problem{since: p.now}
		p.problems[code] = known
	}

	sameText := a.Text == text && slices.Equal(a.Notify, p.cluster.AlertReceivers)
	switch {
	case !isOpen && p.now.Sub(known.since) < after, isOpen && sameText, p.now.Sub(known.written) < rewriteEvery:
		return nil
	case !isOpen:
		reopen(&a, known.since, p.now)
	}

	known.written = p.now
	a.Text, a.Notify, a.Labels = text, p.cluster.AlertReceivers, labelsOf(code)

	return p.cfg.Store.PutClusterAlert(ctx, p.fence, a)
}

// reopen opens the alert about a problem of the cluster, or opens it again.
func reopen(a *task.Alert, since, now time.Time) {
	if a.Openings > 0 {
		a.Opened = append(a.Opened[max(0, len(a.Opened)-1):], a.OpenedAt)
	}
	a.Since, a.OpenedAt, a.Closed, a.Acknowledged = task.At(since), task.At(now), nil, nil
	a.Openings++
}

// labelsOf returns the labels of the alert about a problem of the cluster: its severity, if that is not the default one.
func labelsOf(code string) map[string]string {
	switch {
	case task.IsCriticalWarning(code), code == task.WarnShardsUnowned, code == task.WarnUnreadable:
		return map[string]string{task.LabelSeverity: "critical"}
	case slices.Contains(task.LeaderWarnings, code):
		return nil
	}

	return map[string]string{task.LabelSeverity: "warning"}
}

// joinSome joins the first of some texts, and counts the others. Equal texts are named once.
func joinSome(texts []string) string {
	texts = slices.Compact(slices.Sorted(slices.Values(texts)))
	more := len(texts) - namedProblems
	if more <= 0 {
		return strings.Join(texts, ", ")
	}

	return fmt.Sprintf("%s and %d more", strings.Join(texts[:namedProblems], ", "), more)
}
