package top

import (
	"fmt"

	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// drawAlertCount draws how many alerts are open, and how many of them have the highest severity; nothing if none is.
func (m *Model) drawAlertCount() Line {
	b := &m.board
	all := b.OpenAlerts()
	for _, severity := range task.AlertSeverities() {
		worst := b.Alerts[severity]
		if worst == 0 {
			continue
		}

		style := Yellow
		if severity == "critical" || severity == task.DefaultAlertSeverity {
			style = Red
		}
		if worst == all {
			return Line{{formatCount(all, severity+" alert"), style}}
		}

		return Line{{formatCount(all, "alert") + ", " + formatNumber(worst) + " " + severity, style}}
	}

	return nil
}

// alertColumns are the columns of the view of alerts.
var alertColumns = []column{{head: ""}, {head: "SEVERITY"}, {head: "ALERT", grow: true, least: 14}, {head: "FOR", right: true}, {head: "PROBLEM", grow: true, least: 10},
	{head: "WHO WORKS ON IT", grow: true, least: 8, from: 70}, {head: "RECEIVERS", grow: true, least: 12, from: 110, style: Dim}}

// severityLooks are the symbols and the colors of severities.
var severityLooks = map[string]struct {
	sign  string
	style Style
}{"critical": {"✗", Red}, "error": {"✗", Red}, "warning": {"!", Yellow}, "info": {"○", Cyan}}

// alertRows returns open alerts as rows, the most severe first.
func (m *Model) alertRows(list []task.AlertStatus) []row {
	overview.SortAlerts(list)
	rows := make([]row, len(list))
	for i := range list {
		a := &list[i]
		name := a.Name
		if a.Namespace != "" {
			name = m.taskName(a.Namespace, a.Name)
		}

		look := severityLooks[a.Severity]
		cells := []string{m.toPrintable(look.sign), a.Severity, stripControls(name), m.formatSince(a.Since), m.toPrintable(stripControls(wording.AlertProblem(&a.Alert, m.formatDay))),
			m.toPrintable(stripControls(m.alertWork(a))), m.toPrintable(stripControls(m.receiversText(a)))}
		rows[i] = row{key: a.FullName(), style: look.style, cells: cells, target: ofTask(a.Namespace, a.Task, a.Run)}
	}

	return rows
}

// alertWork says who works on an alert, and until when it is silenced.
func (m *Model) alertWork(a *task.AlertStatus) string {
	words := "nobody"
	if k := a.Acknowledged; k != nil {
		words = k.By.Name()
	}
	if s := a.Silence; s != nil {
		words += ", silenced until " + m.formatDay(s.Until)
	}

	return words
}

// receiversText says how many receivers know of an alert, or why one does not.
func (m *Model) receiversText(a *task.AlertStatus) string {
	if len(a.Receivers) == 0 {
		return "nobody"
	}

	for i := range a.Receivers {
		r := a.Receivers[i]
		if r.State == task.ReceiverNotified && r.Blocked == nil {
			continue
		}
		r.Run, r.At = "", task.Time{}
		return r.Receiver + ": " + wording.AlertReceiverText(&r, false, func(t task.Time) string { return t.In(m.cfg.Zone).Format("15:04 MST") })
	}

	return fmt.Sprintf("%d notified", len(a.Receivers))
}

// drawAlerts draws the view of alerts in room lines.
func (v *view) drawAlerts(m *Model, room int) Picture {
	out := Picture{{{" ", Bold | Reverse}, {"open alerts", Bold | Reverse}}}
	if v.err != nil {
		out = append(out, Line{{" " + m.toPrintable(stripControls(v.err.Error())), Red}})
	}

	switch {
	case len(v.list.rows) > 0:
	case !v.listed && v.err == nil:
		return append(out, m.drawQuestion()...)
	case v.list.hidden > 0:
		return append(out, Line{{" no rows match the filter", Dim}})
	case v.listed:
		return append(out, Line{{m.toPrintable(" ✓ no open alerts"), Green}})
	default:
		return out
	}

	head, lines := m.drawTable(alertColumns, v.list.visibleRows(max(room-len(out)-1, 1)), m.width)
	m.markCursor(&v.list, lines, m.width)

	return append(append(out, head), lines...)
}
