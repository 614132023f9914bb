package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/task"
)

// fillRows computes the rows of all panes from the board.
func (m *Model) fillRows() {
	if m.got.IsZero() {
		return
	}

	m.problems = overview.Problems(&m.board)
	m.panes[paneProblems].setRows(m.problemRows(), m.filter)
	m.panes[coming].setRows(m.comingRows(), m.filter)
	m.panes[running].setRows(m.runningRows(), m.filter)
	m.panes[nodes].setRows(m.nodeRows(), m.filter)
}

// formatSince returns how long ago an instant was.
func (m *Model) formatSince(t task.Time) string {
	if t.IsZero() {
		return ""
	}
	return formatSpan(m.clusterTime().Sub(t.Time))
}

// problemRows returns the problems in the order of their severity. The cells are a symbol, the kind, the subject, the
// duration, and details.
func (m *Model) problemRows() (rows []row) {
	for _, g := range m.problems {
		style := severityStyles[g.Severity]
		if g.Kind == overview.Failing {
			style = Red // as failed runs everywhere
		}

		for _, p := range g.Problems {
			s := p.Subject
			key, name := strings.Join([]string{string(g.Kind), s.Namespace, s.Task, s.Run, s.Node, s.Shard}, "\x00"), s.String()
			switch {
			case s == (overview.Subject{}):
				key += p.Words // the cluster can have several warnings
			case s.Task != "":
				name = m.taskName(s.Namespace, s.Task)
			case s.Node != "":
				name = s.Node
			}

			words := p.Words
			if p.Retry.After(m.clusterTime()) {
				words += ", the next at " + m.formatClock(p.Retry.Time)
			}

			cells := []string{m.toPrintable(g.Sign), g.Label(), stripControls(name), m.formatSince(p.Since), m.toPrintable(stripControls(words))}
			rows = append(rows, row{key: key, style: style, cells: cells, hint: g.Hint, target: Target{s.Namespace, s.Task, s.Run, s.Node}})
		}

		if n := g.Rest(); n > 0 {
			rest := fmt.Sprintf("… and %s more %s", formatNumber(n), g.Label())
			if len(g.Problems) == 0 {
				rest = fmt.Sprintf("… %s %s, not listed", formatNumber(n), g.Label())
			}
			rest = m.toPrintable(rest)
			rows = append(rows, row{key: "rest " + string(g.Kind), style: Dim, cells: []string{"", "", rest, "", ""}, hint: g.Hint})
		}
	}

	return rows
}

// severityStyles are the colors of problems.
var severityStyles = map[overview.Severity]Style{overview.Critical: Red, overview.Warning: Yellow, overview.Info: Cyan}

// ofTask returns the target of a task or a run.
func ofTask(namespace, name, run string) Target {
	return Target{Namespace: namespace, Task: name, Run: run}
}

// formatClock formats a time of day.
func (m *Model) formatClock(t time.Time) string { return t.In(m.cfg.Zone).Format("15:04:05") }

// comingRows returns the next ticks: when, in how long, which task.
func (m *Model) comingRows() []row {
	rows := make([]row, len(m.board.Next))
	for i, t := range m.board.Next {
		left := t.Due().Sub(m.clusterTime())
		in := "in " + formatSpan(left)
		if left < time.Second {
			in = "now"
		}

		name := m.taskName(t.Namespace, t.Task)
		rows[i] = row{key: t.Namespace + "/" + t.Task, cells: []string{m.formatClock(t.Due().Time), in, name}, target: ofTask(t.Namespace, t.Task, "")}
	}

	return rows
}

// runningRows returns the active runs: for how long, which task, where, which run.
func (m *Model) runningRows() []row {
	rows := make([]row, len(m.board.Active))
	for i, r := range m.board.Active {
		sign, how := "▶", progressWords(r.Progress)
		if r.Paused {
			sign, how = "‖", strings.TrimSpace("paused "+how)
		}

		if r.Ending {
			sign, how = "⊘", "asked to stop"
		}

		rows[i] = row{key: r.Run + r.Task, cells: []string{m.toPrintable(sign), m.formatSince(r.Began()), m.taskName(r.Namespace, r.Task), stripControls(r.Node), m.toPrintable(how), stripControls(r.Run)},
			target: ofTask(r.Namespace, r.Task, r.Run)}
	}

	return rows
}

// nodeRows returns the nodes: name, state, runs, shards, fires, lateness, and since when.
func (m *Model) nodeRows() []row {
	rows := make([]row, len(m.board.Nodes))
	for i, n := range m.board.Nodes {
		style, state := Plain, n.State

		switch {
		case n.Silent:
			style, state = Red, "silent"
		case n.Ineligible != "":
			style, state = Red, "ineligible"
		case n.State != task.NodeReady:
			style = Cyan
		case len(n.Blocked) > 0:
			style, state = Yellow, "blocked"
		}

		runs, shards, fires, late := "–", "–", "–", "–"
		if slices.Contains(n.Roles, task.RoleExecutor) {
			runs = fmt.Sprintf("%d/%d", n.Running, n.Slots)
		}

		if slices.Contains(n.Roles, task.RoleScheduler) {
			shards = fmt.Sprint(n.Shards)
			if n.Serving < n.Shards && !n.Silent {
				shards = fmt.Sprintf("%d/%d", n.Serving, n.Shards)
			}

			if !n.Silent {
				fires = formatRate(n.Recent.Fired)
			}

			if n.Recent.Fired > 0 {
				late = formatMillis(n.Recent.P99MS)
			}
		}

		name := stripControls(n.Name)
		if n.Name == m.board.Leader {
			name += " *"
		}

		joined := "–"
		if !n.JoinedAt.IsZero() {
			joined = m.formatSince(n.JoinedAt)
		}

		cells := []string{name, state, runs, shards, fires, late, joined, stripControls(n.Address), stripControls(n.Version)}
		for j := range cells {
			cells[j] = m.toPrintable(cells[j])
		}

		rows[i] = row{key: n.Name, style: style, cells: cells, target: Target{Node: n.Name}}
	}

	// A board does not show which nodes have left the cluster.
	for _, name := range sortedKeys(m.seen) {
		if missed := m.seen[name]; !missed.IsZero() && m.now.Sub(missed) < 10*time.Minute {
			state := "left " + formatSpan(m.now.Sub(missed)) + " ago"
			cells := []string{stripControls(name), state, m.toPrintable("–"), m.toPrintable("–"), m.toPrintable("–"), m.toPrintable("–"), m.toPrintable("–"), "", ""}
			rows = append(rows, row{key: name, style: Yellow, cells: cells, target: Target{Node: name}})
		}
	}

	return rows
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}

	slices.Sort(keys)

	return keys
}
