package scheduler

// kind is what a worker counts a task as.
type kind uint8

const (
	isAbsent kind = iota // nothing but records of it is there
	isTicking
	isPaused
	isUnreadable
)

// census is how many tasks of a worker are of which kind, so that nobody has to go
// through all of them to know.
type census struct {
	of [isUnreadable + 1]int
	// until is when pauses end that do so by themselves: nothing is written then.
	until map[*taskState]int64
}

// count puts t among its kind.
func (s *shardState) count(t *taskState) {
	is := isTicking
	switch {
	case !t.present:
		is = isAbsent
	case t.bad:
		is = isUnreadable
	case t.paused:
		is = isPaused
	}
	c := &s.census
	c.of[t.kind]--
	c.of[is]++
	t.kind = is
	until, ends := int64(0), false
	if is == isPaused {
		until, ends = t.silence()
	}
	if !ends {
		delete(c.until, t)
		return
	}
	if c.until == nil {
		c.until = map[*taskState]int64{}
	}
	c.until[t] = until
}

// tasks is how many there are, and how many of them are paused at now, in ms.
func (c *census) tasks(now int64) (all, pausing int) {
	pausing = c.of[isPaused]
	for _, until := range c.until {
		if until <= now {
			pausing--
		}
	}
	return c.of[isTicking] + c.of[isPaused] + c.of[isUnreadable], pausing
}
