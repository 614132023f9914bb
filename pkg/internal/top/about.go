package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// fields sets names beside values; what is empty is left out.
type fields struct {
	m *Model
	p Picture
}

func (f *fields) add(name, value string) {
	if value == "" {
		return
	}

	const column = 14
	for i, l := range f.m.wrap(strings.Repeat(" ", column), f.m.text(clean(value)), Plain) {
		if i == 0 {
			l = Line{{" " + set(name, column-1, false, ""), Dim}, {strings.TrimLeft(l.text(), " "), Plain}}
		}
		f.p = append(f.p, l)
	}
}

func (f *fields) section(name string) {
	if len(f.p) > 0 {
		f.p = append(f.p, Line{})
	}
	f.p = append(f.p, Line{{" " + name, Bold}})
}

// day is an instant, with its day.
func (m *Model) day(t task.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.In(m.cfg.Zone).Format("Mon 2 Jan 15:04:05 MST")
}

// taskText is all about a task.
func (m *Model) taskText(told *Told) Picture {
	t, f := told.Task, &fields{m: m}
	f.add("Schedule", strings.Join(t.Schedule, ", ")+" in "+t.Timezone)
	f.add("About", t.Description)
	f.add("Does", actionWords(t.Action))

	if t.Paused {
		how := "yes"
		if p := t.Pause; p != nil {
			how = "for " + m.since(p.Since)
			if p.By != "" {
				how += ", by " + p.By
			}
		}

		if !t.PausedUntil.IsZero() {
			how += ", until " + m.day(t.PausedUntil)
		}

		if t.PauseReason != "" {
			how += ": " + t.PauseReason
		}

		f.add("Paused", how)
	}

	switch {
	case !t.Next.IsZero():
		f.add("Next", m.day(t.Next)+" (in "+span(t.Next.Sub(m.cluster()))+")")
	default:
		f.add("Next", t.NoNext)
	}

	if len(told.Next) > 1 {
		var then []string
		for _, o := range told.Next[1:] {
			then = append(then, o.Time.In(m.cfg.Zone).Format("15:04:05"))
		}
		f.add("Then", strings.Join(then, ", "))
	}

	f.add("Target", t.Target.Selector)

	if told.Why.Sentence != "" {
		f.section("Why")
		f.p = append(f.p, m.wrap(" ", m.text(clean(told.Why.Sentence)), Plain)...)
		for _, also := range told.Why.Also {
			f.p = append(f.p, m.wrap(" ", m.text(clean(also.Sentence)), Plain)...)
		}
	}

	f.section("Runs")
	f.p = append(f.p, m.runText(told.Runs)...)

	return f.p
}

func actionWords(a task.Action) string {
	switch p := a.Process; {
	case p != nil && p.Shell != "":
		return p.Shell
	case p != nil:
		return strings.Join(p.Command, " ")
	case a.Noop != nil:
		return "nothing (noop)"
	}

	return ""
}

var runColumns = []column{{head: "TICK"}, {head: "STATE"}, {head: "TOOK", right: true}, {head: "LATE", right: true}, {head: "NODE"}, {head: "MESSAGE", grow: true, least: 10, from: 60, style: Dim}}

// runText is a history.
func (m *Model) runText(runs []task.Run) Picture {
	if len(runs) == 0 {
		return Picture{{{" none", Dim}}}
	}

	rows := make([]row, len(runs))
	for i, r := range runs {
		f := faces[r.State]
		took, late := "", ""

		switch {
		case r.StartedAt.IsZero():
		case r.State.Active():
			took = m.since(r.StartedAt)
		case !r.EndedAt.IsZero():
			took = span(r.EndedAt.Sub(r.StartedAt.Time))
			if d := r.EndedAt.Sub(r.StartedAt.Time); d.Seconds() < 1 {
				took = fmt.Sprintf("%dms", d.Milliseconds())
			}
		}

		if r.LatenessMS != nil {
			late = millis(*r.LatenessMS)
		}

		what := f.sign + " " + result(r.State, r.Reason, r.ExitCode)
		if r.Count > 1 {
			what += fmt.Sprintf(" ×%d", r.Count)
		}

		style := Plain
		if f.style == Red {
			style = Red
		}

		rows[i] = row{style: style, cells: []string{m.tick(r.ScheduledTime.Time), m.text(what), took, late, clean(r.Node), clean(r.Message)}}
	}

	head, lines := m.table(runColumns, rows, m.width)

	return append(Picture{head}, lines...)
}

// tick is an instant in a history.
func (m *Model) tick(t time.Time) string {
	if m.cluster().Sub(t) > 6*24*time.Hour {
		return t.In(m.cfg.Zone).Format("2 Jan 15:04")
	}
	return t.In(m.cfg.Zone).Format("Mon 15:04:05")
}

// whyText is an answer: the sentence, then the evidence.
func (m *Model) whyText(a task.Answer) Picture {
	p := m.wrap(" ", m.text(clean(a.Sentence)), Bold)
	m.evidence(&p, a)

	for _, also := range a.Also {
		p = append(append(p, Line{}), m.wrap(" ", m.text(clean(also.Sentence)), Bold)...)
		m.evidence(&p, also)
	}

	return p
}

func (m *Model) evidence(p *Picture, a task.Answer) {
	f := &fields{m: m}
	for _, l := range a.Lines {
		f.add(l.What, l.Says)
	}
	*p = append(*p, f.p...)
}

// nodeText is all that the board knows of a node.
func (m *Model) nodeText(name string) Picture {
	f := &fields{m: m}
	for _, n := range m.board.Nodes {
		if n.Name != name {
			continue
		}

		state := n.State
		if n.Unfit != "" {
			state += ", but " + unfitWords(n.Unfit)
		}

		f.add("State", state)
		f.add("Roles", strings.Join(n.Roles, ", "))
		f.add("Address", n.Address)
		f.add("Version", n.Version)
		f.add("Joined", m.since(n.JoinedAt)+" ago")
		f.add("Runs", fmt.Sprintf("%d of %d slots", n.Running, n.Slots))
		f.add("Shards", fmt.Sprintf("%d (%d firing)", n.Shards, n.Serving))

		if n.Unreadable > 0 {
			f.add("Unreadable", plural(n.Unreadable, "entry"))
		}

		r := n.Recent
		f.section("The last minute")
		f.add("Fired", number(r.Fired)+"  "+bar(r.Rate))
		f.add("Late", fmt.Sprintf("p50 %s, p99 %s, max %s", millis(r.P50MS), millis(r.P99MS), millis(r.MaxMS)))
		f.add("Ended", fmt.Sprintf("%s succeeded, %s failed", number(r.Succeeded), number(r.Failed)))
		f.add("Skipped", number(r.Skipped))

		for _, s := range m.board.Silent {
			if s.Node == name {
				f.section("Silent")
				f.p = append(f.p, m.wrap(" ", clean(s.Reason), Red)...)
			}
		}

		return f.p
	}

	return Picture{{{" the node is not in the cluster any more", Dim}}}
}
