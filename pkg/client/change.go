package client

import "github.com/carillonhq/carillon/pkg/task"

// Change is the result of a dry run: what the write would change if it were made at that moment.
type Change struct {
	Result string        `json:"result" doc:"created, configured, unchanged or deleted."`
	Fields []FieldChange `json:"fields" doc:"The fields that would change; for a new task, the fields that differ from their defaults."`
	Ticks  *TickChange   `json:"ticks,omitempty" doc:"Which ticks would be added, removed or moved; absent if nothing would be written, or with ticks=0."`
}

// FieldChange is a field that would change.
type FieldChange = task.FieldChange

// TickChange is the difference between the ticks of a task before and after a change. It covers the ticks that
// are due later than From and up to Until, which is 7 days ahead, but at least as far as the next tick of
// either version. If there are very many ticks, Until is earlier.
//
// The ticks before the change, without those that are removed or moved, and with those that are added and the
// moved ones at their new times, are exactly the ticks after it.
type TickChange struct {
	From  task.Time `json:"from" doc:"The time of the dry run. Schedules that count from the write, such as @every, count from here. The real write shifts them by the time that passes until then."`
	Until task.Time `json:"until"`
	Come  int       `json:"come"`
	Go    int       `json:"go"`
	Move  int       `json:"move"`
	// Ticks are the first of these ticks.
	Ticks []TickMove `json:"ticks" doc:"The ticks in order of time, up to the requested number."`
}

// TickMove is a tick that is added, removed or moved. A tick moves if it keeps its time but is due at another
// time because of jitter, or if it has the same local time in another time zone.
type TickMove struct {
	Was *TickTime `json:"was,omitempty" doc:"The old tick; absent if the tick would be added."`
	Is  *TickTime `json:"is,omitempty" doc:"The new tick; absent if the tick would be removed."`
}

// TickTime is a tick with its due time.
type TickTime struct {
	Time  task.Time `json:"time"`
	Local string    `json:"local" doc:"The same instant in the schedule's zone, with its offset."`
	DueAt task.Time `json:"due_at,omitzero" doc:"When it is due, if jitter delays it."`
	// DueBefore is set for a task that does not exist yet. With jitter, the due time of a tick follows from the
	// task's uid, which is not known then.
	DueBefore task.Time `json:"due_before,omitzero" doc:"With jitter, for a task that does not exist yet: the tick is due at time or later, but before this."`
}

// Changes reports whether the write would change anything.
func (c *Change) Changes() bool { return c.Result != Unchanged }

// Deleted is the Result of a delete.
const Deleted = "deleted"
