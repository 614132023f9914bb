package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// fillRows computes the rows of all panes from the board.
func (m *Model) fillRows() {
	if m.got.IsZero() {
		return
	}

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

// formatShards names some shards: "17, 18, 40".
func formatShards(shards []int) string {
	const most = 8
	var b strings.Builder
	for i, shard := range shards[:min(len(shards), most)] {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.Itoa(shard))
	}
	if n := len(shards) - most; n > 0 {
		fmt.Fprintf(&b, " and %d more", n)
	}

	return b.String()
}

// problemRows returns the problems: those that affect many tasks first, then those that affect one, then
// failures. The cells are a symbol, the kind, the object, the duration, and details.
func (m *Model) problemRows() (rows []row) {
	b := &m.board
	add := func(style Style, sign, kind, who, long, how string, t Target) {
		rows = append(rows, row{key: kind + "\x00" + who, style: style, cells: []string{m.toPrintable(sign), kind, stripControls(who), long, m.toPrintable(stripControls(how))}, target: t})
	}

	silent := map[string]bool{}
	// Problems of the cluster: nodes that did not answer for the board, nodes that left recently, shards without
	// an owner or without progress, warnings and freezes.
	for _, s := range b.Silent {
		silent[s.Node] = true
		add(Red, "!", "silent", s.Node, "", s.Reason+": its data is missing", Target{Node: s.Node})
	}

	for _, name := range sortedKeys(m.seen) {
		if missed := m.seen[name]; !missed.IsZero() && m.now.Sub(missed) < 10*time.Minute {
			add(Yellow, "!", "left", name, formatSpan(m.now.Sub(missed)), "the node has left the cluster, or lost its session", Target{Node: name})
		}
	}

	unowned := b.ShardCount - b.ShardsOwned
	if unowned > 0 {
		add(Red, "!", "no owner", formatCount(unowned, "shard"), "", "no owner is present: their tasks do not fire", Target{})
	}

	// Shards without an owner are missing as well.
	if n := len(b.Missing); n > unowned {
		add(Yellow, "!", "missing", formatCount(n, "shard"), "", formatShards(b.Missing)+": their tasks are neither counted nor listed here", Target{})
	}

	for _, s := range b.Stuck {
		how := "decides nothing"
		if s.Loading {
			how = "being loaded"
		}
		add(Red, "!", "stuck", fmt.Sprintf("shard %d", s.ID), m.formatSince(s.Since), how+" · on "+s.Node, Target{Node: s.Node})
	}

	for _, w := range boardWarnings(b) {
		if !shownElsewhere(w.Code) {
			add(Yellow, "!", "warning", "cluster", "", w.Text, Target{})
		}
		// Warnings that other rows already show are omitted.
	}

	for _, f := range b.Freezes {
		what := "the cluster"
		if f.Namespace != "" {
			what = f.Namespace
		}

		by := ""
		if f.By != "" {
			by = "by " + task.ActorName(f.By) + ": "
		}

		add(Cyan, "❄", "frozen", what, m.formatSince(f.Since), by+f.Reason, Target{})
	}

	for _, n := range b.Nodes {
		switch {
		case n.Ineligible != "":
			add(Red, "!", "ineligible", n.Name, "", ineligibleWords(n.Ineligible), Target{Node: n.Name})
		// Nodes that own no shards or take no runs. Only the most important reason is shown.
		case n.State != task.NodeReady:
			add(Cyan, "·", n.State, n.Name, "", stateWords(n), Target{Node: n.Name})
		case len(n.Blocked) > 0:
			add(Yellow, "!", "blocked", n.Name, "", "accepts no runs: "+task.DescribeBlocked(n.Blocked), Target{Node: n.Name})
		}
	}

	for _, t := range b.Overdue {
		add(Red, "○", "overdue", m.taskName(t.Namespace, t.Task), m.formatSince(t.Due()), "due "+m.formatClock(t.Due().Time)+" and not decided", ofTask(t.Namespace, t.Task, ""))
	}

	// Problems of single tasks. The board lists only some of them and contains the total numbers.
	m.addRestRow(&rows, b.OverdueCount-len(b.Overdue), "overdue")

	for _, r := range b.Away {
		add(Red, "?", "node gone", m.taskName(r.Namespace, r.Task), m.formatSince(r.Began()), "ran on "+stripControls(r.Node)+", which is gone: lost, unless it comes back", ofTask(r.Namespace, r.Task, r.Run))
	}

	m.addRestRow(&rows, b.AwayCount-len(b.Away), "whose node is gone")

	for _, w := range b.Waits {
		switch {
		case w.Reason == task.ReasonNoNode:
			add(Yellow, "…", "no node", m.taskName(w.Namespace, w.Task), m.formatSince(w.Since), "no available node matches its selector", ofTask(w.Namespace, w.Task, w.Run))
		case w.Reason == task.ReasonTarget && w.Unsent != nil:
			add(Yellow, "…", "target", m.taskName(w.Namespace, w.Task), m.formatSince(w.Unsent.First), m.targetWords(w), ofTask(w.Namespace, w.Task, w.Run))
		}
	}

	for _, f := range b.Failing {
		how := formatResult(f.State, f.Reason, f.ExitCode)

		switch {
		// The latest failures of tasks.
		case f.Reason == task.ReasonNodeLost:
			how = "its node " + f.Node + " was lost"
		case f.Node != "":
			how += " on " + f.Node
		}

		if f.InARow > 1 {
			how += fmt.Sprintf(" · %s in a row", formatNumber(f.InARow))
		}

		add(Red, stateSymbols[f.State].sign, withSpaces(string(f.State)), m.taskName(f.Namespace, f.Task), m.formatSince(f.EndedAt), how, ofTask(f.Namespace, f.Task, f.Run))
	}

	m.addRestRow(&rows, b.FailingCount-len(b.Failing), "failing")

	if b.Unreadable > 0 {
		add(Yellow, "!", "unreadable", formatCount(b.Unreadable, "task"), "", "do not fire: their entries cannot be read; run carillon audit", Target{})
	}

	if m.cfg.ASCII {
		for i := range rows {
			rows[i].cells[0] = withoutSymbols(rows[i].cells[0])
		}
	}

	return rows
}

// targetWords describes why a run waits for the target of its request.
func (m *Model) targetWords(w task.BoardWait) string {
	words := cmp.Or(w.Unsent.Message, "not sent") + " · " + formatCount(w.Unsent.Count, "attempt")
	if w.NotBefore.After(m.now) {
		words += ", the next at " + m.formatClock(w.NotBefore.Time)
	}

	return words
}

// addRestRow adds a row with the number of items that the board does not list.
func (m *Model) addRestRow(rows *[]row, n int, unit string) {
	if n > 0 {
		*rows = append(*rows, row{key: "rest " + unit, style: Dim, cells: []string{"", "", m.toPrintable(fmt.Sprintf("… and %s more %s", formatNumber(n), unit)), "", ""}})
	}
}

// boardWarnings returns the warnings of a board. A node of an older version sends them without codes.
func boardWarnings(b *task.Board) []task.Warning {
	if len(b.WarningDetails) > 0 {
		return b.WarningDetails
	}

	list := make([]task.Warning, len(b.Warnings))
	for i, text := range b.Warnings {
		list[i].Text = text
	}

	return list
}

// shownElsewhere reports whether the board has separate rows for warnings with this code.
func shownElsewhere(code string) bool {
	switch code {
	case task.WarnShardsUnowned, task.WarnNodeIneligible, task.WarnNodeBlocked, task.WarnUnreadable, task.WarnFrozen:
		return true
	}
	return false
}

// ineligibleWords describes why a node owns no shards.
func ineligibleWords(ineligible string) string {
	switch ineligible {
	case task.IneligibleClock:
		return "owns no shards: its clock jumped or differs from other clocks"
	case task.IneligibleStalled:
		return "owns no shards for now: it did not decide ticks that were due"
	case task.IneligibleRestored:
		return "etcd was restored from an older snapshot: run carillon cluster recover"
	}

	return "owns no shards: " + withSpaces(ineligible)
}

// stateWords describes the state of a node.
func stateWords(n task.BoardNode) string {
	if n.State == task.NodeDraining {
		return fmt.Sprintf("hands over %s and waits for %s", formatCount(n.Shards, "shard"), formatCount(n.Running, "run"))
	}
	return "gets no new runs, and keeps its shards"
}

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
