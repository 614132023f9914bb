package check

// gapJudge judges that no tick is left out: each decided tick has an outcome (G4), and each tick that is due by
// Options.Until is decided when the history ends (G16).
type gapJudge struct {
	judge
	stats *stats
}

// checkDecided judges the current epoch of a task: each tick up to upTo, which is decided, must have an outcome.
// Ticks in a row without one are reported as one violation. It then moves the start of the epoch to upTo, so that
// no tick is judged or counted twice.
func (j *gapJudge) checkDecided(t *taskHistory, upTo int64) {
	if t.entry == nil {
		return
	}

	inc := t.entry.incarnation
	st := inc.epoch
	if st.ticks == nil {
		return
	}

	// flush reports the current series of ticks without an outcome.
	var first, last, lost int64
	flush := func() {
		if lost > 0 {
			j.breachTask("G4", t.ref, first, j.keys.Entry(t.ref), "decided without an outcome: %s, up to %s", formatCount(lost, "tick"), formatTime(timeOfMS(last)))
			j.stats.Undecided += lost
		}
		lost = 0
	}

	st.ticks.ListTicks(st.start, upTo, func(at int64) bool {
		if inc.outcomes[at] != nil {
			j.stats.Ticks++
			flush()
			return true
		}

		j.stats.Ticks++

		if lost == 0 {
			first = at
		}

		last = at
		lost++

		return true
	})

	flush()
	inc.epoch.start = max(st.start, upTo)
}

// checkEnd judges the ticks of a task that are due by Options.Until and not decided when the history ends.
// checkDecided has judged the decided ones.
func (j *gapJudge) checkEnd(t *taskHistory) {
	inc := t.entry.incarnation
	if j.opts.Until.IsZero() || inc.epoch.ticks == nil {
		return
	}

	var first, open int64
	until := j.opts.Until.UnixMilli()
	inc.epoch.ticks.ListTicks(inc.epoch.start, until, func(at int64) bool {
		if inc.epoch.ticks.DueAt(at) > until {
			return false
		}

		if open == 0 {
			first = at
		}

		open++

		return true
	})

	if open > 0 {
		j.stats.Ticks += open
		j.stats.Undecided += open
		j.breachTask("G16", t.ref, first, j.keys.Watermark(t.ref.Shard), "not decided: %s up to %s; the watermark is at %s",
			formatCount(open, "tick"), formatTime(j.opts.Until), describeWatermark(j.cluster.shardOf(t.ref.Shard).watermark))
	}
}
