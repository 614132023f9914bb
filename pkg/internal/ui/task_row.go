package ui

import (
	"html/template"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// taskRow is a task in the list. Its fields are the contents of its cells: the rows are rendered again and again while somebody
// watches, and a template that finds these in nested values, and calls functions for them, costs several times as much.
type taskRow struct {
	ID                        string // of the element
	Namespace, Name, FullName string
	Path                      string // of the page of the task; "" if there is none
	Description               string

	State    template.HTML
	Next     template.HTML
	Schedule string

	Ran    bool // there is a last run, which the next fields describe
	Last   template.HTML
	Result template.HTML
	Node   string
	Took   string
	Late   string

	Strip    template.HTML // the states of past runs, the newest last
	StripAlt string        // the same in words; "" if there are none

	Left string // why the row is not in the list any more; "" if it is
}

// TaskRows returns the rows of the list, and after them those that have left it.
func (v *View) TaskRows() []taskRow {
	p, _ := v.Data.(tasksPage)
	linked := v.HasScreen("task")

	rows := make([]taskRow, 0, len(p.Tasks)+len(p.left))
	add := func(row taskRow, exists bool) {
		if linked && exists {
			row.Path, _ = v.Link("/ui/tasks/{}/{}", row.Namespace, row.Name) // it fails only for names that no task has
		}
		rows = append(rows, row)
	}
	for i := range p.Tasks {
		add(v.taskRow(&p.Tasks[i]), true)
	}
	for i := range p.left {
		add(v.leftTaskRow(&p.left[i]), !p.left[i].deleted)
	}

	return rows
}

// taskRow returns the row of a task, without its path.
func (v *View) taskRow(t *client.Task) taskRow {
	row := taskRow{
		ID: v.RowID("task", t.Namespace, t.Name), Namespace: t.Namespace, Name: t.Name, FullName: taskKey(*t), Description: t.Description,
		State: stateBadge(t.State), Next: v.nextCell(t), Schedule: wording.ScheduleText(t.Spec),
	}

	if run := t.LastRun; run != nil {
		row.Ran = true
		row.Last, row.Result, row.Node = v.Ago(run.LastSeen(), t.Timezone), resultBadge(run), run.Node
		row.Took, row.Late = tookText(run), latenessText(run)
	}
	row.Strip, row.StripAlt = stripOf(t.Recent)

	return row
}

// leftTaskRow returns the row of a task that has left the list. A task that no longer exists has no state.
func (v *View) leftTaskRow(left *leftRow[client.Task]) taskRow {
	if !left.deleted {
		row := v.taskRow(&left.item)
		row.Left = "no longer in this list"
		return row
	}

	t := left.item

	return taskRow{
		ID: v.RowID("task", t.Namespace, t.Name), Namespace: t.Namespace, Name: t.Name, FullName: taskKey(t),
		State: noValue, Next: noValue, Left: "deleted",
	}
}

// nextCell returns the cell with the next tick of a task, or with why there is none.
func (v *View) nextCell(t *client.Task) template.HTML {
	text := nextText(t)
	switch {
	case text == "":
		return v.Left(t.Next, t.Timezone)
	case t.PausedUntil.IsZero():
		return template.HTML(template.HTMLEscapeString(text)) //nolint:gosec // the text is escaped
	}

	return template.HTML(template.HTMLEscapeString(text)+" until ") + v.When(t.PausedUntil, t.Timezone) //nolint:gosec // the text is escaped
}

// nextText returns what a task shows instead of the time of its next tick; "" if it has one.
func nextText(t *client.Task) string {
	switch {
	case t.Paused:
		return pauseText(t)
	case t.Next.IsZero() && wording.IsManual(t.Spec):
		return "when triggered"
	case t.NoNext != "":
		return "no more ticks"
	case t.Next.IsZero():
		return string(noValue)
	}

	return ""
}

// pauseText describes a pause briefly, without its end.
func pauseText(t *client.Task) string {
	if by := wording.PausedBy(t.Pause); by != "" {
		return "paused (" + by + ")"
	}
	return "paused"
}

// latenessText returns how late a run was.
func latenessText(r *task.Run) string {
	if r.LatenessMS == nil {
		return string(noValue)
	}
	return millisecondsText(*r.LatenessMS)
}

// stripOf returns the states of past runs, which are given with the newest first, as symbols and in words.
func stripOf(recent []client.PastRun) (signs template.HTML, words string) {
	names := make([]string, 0, len(recent))
	var b strings.Builder
	for _, run := range slices.Backward(recent) {
		b.WriteString(string(stateSign(string(run.State))))
		names = append(names, plainState(string(run.State)))
	}

	return template.HTML(b.String()), strings.Join(names, ", ") //nolint:gosec // stateSign escapes
}
