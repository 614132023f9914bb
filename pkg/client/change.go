package client

import "github.com/carillonhq/carillon/pkg/task"

// Change is what a dry run says a write would do, had it been made at that moment.
type Change struct {
	Result string        `json:"result" doc:"created, configured, unchanged or deleted."`
	Fields []FieldChange `json:"fields" doc:"What the task would say otherwise; of a new one, what it says that is not the default."`
	Ticks  *TickChange   `json:"ticks,omitempty" doc:"Which ticks would be added, removed or moved; absent if nothing would be written, or with ticks=0."`
}

// FieldChange is a field that would change.
type FieldChange = task.FieldChange

// TickChange tells the ticks of a task before and after a change apart: those that
// fall due later than From and up to Until, 7 days ahead, but at least up to the
// next tick of either. Of very many ticks Until is sooner.
//
// The ticks before, without those that go and move, and with those that come and
// those that have moved, are exactly the ticks after.
type TickChange struct {
	From  task.Time `json:"from" doc:"The time of the dry run. Schedules that count from the write, such as @every, count from here. The real write shifts them by the time that passes until then."`
	Until task.Time `json:"until"`
	Come  int       `json:"come"`
	Go    int       `json:"go"`
	Move  int       `json:"move"`
	// Ticks are the first of them.
	Ticks []TickMove `json:"ticks" doc:"The ticks in order of time, up to the requested number."`
}

// TickMove is a tick that comes, goes or moves: one of the same time that falls due
// at another, by its jitter, or one whose clock shows the same time in another zone.
type TickMove struct {
	Was *TickTime `json:"was,omitempty" doc:"The old tick; absent if the tick would be added."`
	Is  *TickTime `json:"is,omitempty" doc:"The new tick; absent if the tick would be removed."`
}

// TickTime is a tick, and when it falls due.
type TickTime struct {
	Time  task.Time `json:"time"`
	Local string    `json:"local" doc:"The same instant in the schedule's zone, with its offset."`
	DueAt task.Time `json:"due_at,omitzero" doc:"When it is due, if jitter delays it."`
	// DueBefore is set of a task that is not there yet: when a tick falls due with
	// jitter follows from its uid.
	DueBefore task.Time `json:"due_before,omitzero" doc:"With jitter, for a task that does not exist yet: the tick is due at time or later, but before this."`
}

// Changes tells whether anything would be written.
func (c *Change) Changes() bool { return c.Result != Unchanged }

// Deleted is the Result of a delete.
const Deleted = "deleted"
