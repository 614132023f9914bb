package taskstate

// Kind is the category in which a Census counts a task.
type Kind uint8

// What a task is counted as. A Task has two bits for it.
const (
	// These are the kinds. An Absent task has no entry; only records of it exist.
	Absent Kind = iota
	Ticking
	Paused
	Unreadable
)

// Census counts the tasks of a shard by kind, so that the counts need no pass over all tasks.
type Census struct {
	// Of is the number of tasks of each kind.
	Of [Unreadable + 1]int
	// until holds, in Unix milliseconds, when pauses end that have an end. Nothing is written at that time.
	until map[*Task]int64
}

// Count updates the counts after t has changed.
func (c *Census) Count(t *Task) {
	is := Ticking

	switch {
	case !t.Present:
		is = Absent
	case t.Bad:
		is = Unreadable
	case t.Paused:
		is = Paused
	}

	c.Of[t.marks&kindMask]--
	c.Of[is]++
	t.marks = t.marks&^kindMask | marks(is)

	until, ends := int64(0), false
	if is == Paused {
		until, ends = t.Silence()
	}

	if !ends {
		delete(c.until, t)
		return
	}

	if c.until == nil {
		c.until = map[*Task]int64{}
	}

	c.until[t] = until
}

// Tasks returns how many tasks there are, and how many of them are paused at now (Unix milliseconds).
func (c *Census) Tasks(now int64) (all, pausing int) {
	pausing = c.Of[Paused]
	for _, until := range c.until {
		if until <= now {
			pausing--
		}
	}

	return c.Of[Ticking] + c.Of[Paused] + c.Of[Unreadable], pausing
}
