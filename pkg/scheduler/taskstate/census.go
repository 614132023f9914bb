package taskstate

// Kind is what a worker counts a task as.
type Kind uint8

// What a task is counted as.
const (
	Absent Kind = iota // nothing but records of it is there
	Ticking
	Paused
	Unreadable
)

// Census is how many tasks of a worker are of which kind, so that nobody has to go
// through all of them to know.
type Census struct {
	// Of is how many tasks are of each kind.
	Of [Unreadable + 1]int
	// until is when pauses end that do so by themselves: nothing is written then.
	until map[*Task]int64
}

// Count puts t among its kind.
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

	c.Of[t.kind]--
	c.Of[is]++
	t.kind = is

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

// Tasks is how many there are, and how many of them are paused at now, in ms.
func (c *Census) Tasks(now int64) (all, pausing int) {
	pausing = c.Of[Paused]
	for _, until := range c.until {
		if until <= now {
			pausing--
		}
	}

	return c.Of[Ticking] + c.Of[Paused] + c.Of[Unreadable], pausing
}
