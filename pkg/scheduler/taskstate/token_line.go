package taskstate

import "time"

// TokenLine is the queue of a shard's tasks that wait for a catch-up token, in the order in which they came. A task may
// be in it although it no longer needs a token.
type TokenLine struct {
	Turn    time.Time // when to ask for tokens again
	Granted int       // tokens that the current round may use for tasks that were taken off the line

	tasks []*Task
}

// Len returns the number of tasks in the line.
func (l *TokenLine) Len() int { return len(l.tasks) }

// Add puts a task at the end of the line, and reports whether it was not in the line before. A task without waiting or
// active runs is not added: its tick waits in the queue only after the commit, and then joins.
func (l *TokenLine) Add(t *Task) bool {
	if t.Activity == nil || t.Activity.InLine {
		return false
	}

	t.Activity.InLine = true

	if len(l.tasks) == 0 {
		// The line was empty, so the shard asks for tokens at once.
		l.Turn = time.Time{}
	}

	l.tasks = append(l.tasks, t)

	return true
}

// RemoveLast removes the tasks that joined the line last, in the plan that is being abandoned.
func (l *TokenLine) RemoveLast(joined []*Task) {
	for _, t := range joined {
		// A task whose activity was dropped meanwhile has nothing left that waits.
		if t.Activity != nil {
			t.Activity.InLine = false
		}
	}

	left := len(l.tasks) - len(joined)
	clear(l.tasks[left:])
	l.tasks = l.tasks[:left]
}

// Next removes the first task that still waits from the line and returns it, or nil if there is none.
func (l *TokenLine) Next() *Task {
	for len(l.tasks) > 0 {
		t := l.tasks[0]
		l.tasks[0] = nil
		if l.tasks = l.tasks[1:]; len(l.tasks) == 0 {
			l.tasks = nil
		}

		if t.Activity != nil && t.Activity.InLine {
			t.Activity.InLine = false
			return t
		}
	}

	return nil
}
