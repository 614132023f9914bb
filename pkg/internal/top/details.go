package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// fields draws names with their values. Empty values are omitted.
type fields struct {
	m *Model
	p Picture
}

// addField adds a name and its value, wrapped in a column.
func (f *fields) addField(name, value string) {
	if value == "" {
		return
	}

	const column = 14
	for i, l := range f.m.wrapText(strings.Repeat(" ", column), f.m.toPrintable(stripControls(value)), Plain) {
		if i == 0 {
			l = Line{{" " + setInColumns(name, column-1, false, ""), Dim}, {strings.TrimLeft(l.plainText(), " "), Plain}}
		}
		f.p = append(f.p, l)
	}
}

// addSection adds a heading.
func (f *fields) addSection(name string) {
	if len(f.p) > 0 {
		f.p = append(f.p, Line{})
	}
	f.p = append(f.p, Line{{" " + name, Bold}})
}

// formatDay formats an instant with its day.
func (m *Model) formatDay(t task.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.In(m.cfg.Zone).Format("Mon 2 Jan 15:04:05 MST")
}

// taskText draws the details of a task.
func (m *Model) taskText(details *TaskDetails) Picture {
	t, f := details.Task, &fields{m: m}
	f.addField("Schedule", strings.Join(t.Schedule, ", ")+" in "+t.Timezone)
	f.addField("About", t.Description)
	f.addField("Does", actionWords(t.Action))

	if t.Paused {
		how := "yes"
		if p := t.Pause; p != nil {
			how = "for " + m.formatSince(p.Since)
			if p.By != nil {
				how += ", by " + p.By.String()
			}
		}

		if !t.PausedUntil.IsZero() {
			how += ", until " + m.formatDay(t.PausedUntil)
		}

		if t.PauseReason != "" {
			how += ": " + t.PauseReason
		}

		f.addField("Paused", how)
	}

	switch {
	case !t.Next.IsZero():
		f.addField("Next", m.formatDay(t.Next)+" (in "+formatSpan(t.Next.Sub(m.clusterTime()))+")")
	default:
		f.addField("Next", t.NoNext)
	}

	if len(details.Next) > 1 {
		var then []string
		for _, o := range details.Next[1:] {
			then = append(then, o.Time.In(m.cfg.Zone).Format("15:04:05"))
		}
		f.addField("Then", strings.Join(then, ", "))
	}

	f.addField("Target", t.Target.Selector)

	if details.Why.Sentence != "" {
		f.addSection("Why")
		f.p = append(f.p, m.wrapText(" ", m.toPrintable(stripControls(details.Why.Sentence)), Plain)...)
		for _, also := range details.Why.Also {
			f.p = append(f.p, m.wrapText(" ", m.toPrintable(stripControls(also.Sentence)), Plain)...)
		}
	}

	if len(details.Why.Alerts) > 0 {
		f.addSection("Open alerts")
		for i := range details.Why.Alerts {
			a := &details.Why.Alerts[i]
			f.addField(a.Severity, wording.AlertProblem(&a.Alert, m.formatDay)+", for "+m.formatSince(a.Since)+"; "+m.alertWork(a))
			for j := range a.Receivers {
				f.addField("", a.Receivers[j].Receiver+": "+wording.AlertReceiverText(&a.Receivers[j], false, m.formatDay))
			}
		}
	}

	f.addSection("Runs")
	f.p = append(f.p, m.runText(details.Runs)...)

	return f.p
}

// actionWords describes an action.
func actionWords(a task.Action) string {
	switch p := a.Process; {
	case p != nil && p.Shell != "":
		return p.Shell
	case p != nil:
		return strings.Join(p.Command, " ")
	case a.HTTP != nil:
		return a.HTTP.EffectiveMethod() + " " + a.HTTP.URL
	case a.Noop != nil:
		return "nothing (noop)"
	}

	return ""
}

// runColumns are the columns of a history.
var runColumns = []column{{head: "TICK"}, {head: "STATE"}, {head: "TOOK", right: true}, {head: "LATE", right: true}, {head: "NODE"}, {head: "MESSAGE", grow: true, least: 10, from: 60, style: Dim}}

// runText draws a history.
func (m *Model) runText(runs []task.Run) Picture {
	if len(runs) == 0 {
		return Picture{{{" none", Dim}}}
	}

	rows := make([]row, len(runs))
	for i, r := range runs {
		look := wording.StateLooks[r.State]
		took, late := "", ""

		switch {
		case r.StartedAt.IsZero():
		case r.State.Active():
			took = m.formatSince(r.StartedAt)
		case !r.EndedAt.IsZero():
			took = formatSpan(r.EndedAt.Sub(r.StartedAt.Time))
			if d := r.EndedAt.Sub(r.StartedAt.Time); d.Seconds() < 1 {
				took = fmt.Sprintf("%dms", d.Milliseconds())
			}
		}

		if r.LatenessMS != nil {
			late = formatMillis(*r.LatenessMS)
		}

		what := look.Sign + " " + wording.RunResult(r, m.clusterTime())

		style := Plain
		if look.Tone == "bad" {
			style = Red
		}

		rows[i] = row{style: style, cells: []string{m.formatTick(r.ScheduledTime.Time), m.toPrintable(what), took, late, stripControls(r.Node), stripControls(r.Message)}}
	}

	head, lines := m.drawTable(runColumns, rows, m.width)

	return append(Picture{head}, lines...)
}

// formatTick formats an instant in a history.
func (m *Model) formatTick(t time.Time) string {
	if m.clusterTime().Sub(t) > 6*24*time.Hour {
		return t.In(m.cfg.Zone).Format("2 Jan 15:04")
	}
	return t.In(m.cfg.Zone).Format("Mon 15:04:05")
}

// whyText draws an explanation: the sentence, followed by the evidence.
func (m *Model) whyText(a task.Answer) Picture {
	p := m.wrapText(" ", m.toPrintable(stripControls(a.Sentence)), Bold)
	m.drawEvidence(&p, a)

	for _, also := range a.Also {
		p = append(append(p, Line{}), m.wrapText(" ", m.toPrintable(stripControls(also.Sentence)), Bold)...)
		m.drawEvidence(&p, also)
	}

	return p
}

// drawEvidence adds the evidence of an explanation.
func (m *Model) drawEvidence(p *Picture, a task.Answer) {
	f := &fields{m: m}
	for _, l := range a.Lines {
		f.addField(l.What, l.Says)
	}
	*p = append(*p, f.p...)
}

// nodeText draws what the board contains about a node.
func (m *Model) nodeText(name string) Picture {
	f := &fields{m: m}
	for _, n := range m.board.Nodes {
		if n.Name != name {
			continue
		}

		state := n.State
		if n.Ineligible != "" {
			state += ", but " + wording.IneligibleText(n.Ineligible)
		}

		f.addField("State", state)
		f.addField("Roles", strings.Join(n.Roles, ", "))
		f.addField("Address", n.Address)
		f.addField("Version", n.Version)
		f.addField("Joined", m.formatSince(n.JoinedAt)+" ago")
		f.addField("Runs", fmt.Sprintf("%d of %d slots", n.Running, n.Slots))
		f.addField("Shards", fmt.Sprintf("%d (%d firing)", n.Shards, n.Serving))

		if n.Unreadable > 0 {
			f.addField("Unreadable", formatCount(n.Unreadable, "entry"))
		}

		r := n.Recent
		f.addSection("The last minute")
		f.addField("Fired", formatNumber(r.Fired)+"  "+drawBars(r.Rate))
		f.addField("Late", fmt.Sprintf("p50 %s, p99 %s, max %s", formatMillis(r.P50MS), formatMillis(r.P99MS), formatMillis(r.MaxMS)))
		f.addField("Ended", fmt.Sprintf("%s succeeded, %s failed", formatNumber(r.Succeeded), formatNumber(r.Failed)))
		f.addField("Skipped", formatNumber(r.Skipped))

		for _, s := range m.board.Silent {
			if s.Node == name {
				f.addSection("Silent")
				f.p = append(f.p, m.wrapText(" ", stripControls(s.Reason), Red)...)
			}
		}

		return f.p
	}

	return Picture{{{" the node is no longer in the cluster", Dim}}}
}
