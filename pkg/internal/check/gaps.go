package check

// gapJudge judges that no tick is left out: each that is decided has an outcome (G4), and each
// that was due by the end of the history is decided (G16).
type gapJudge struct {
	judge
	stats *stats
}

// checkDecided judges the present epoch of a task: all of its ticks that are
// decided, those up to upTo, must have an outcome.
func (j *gapJudge) checkDecided(t *taskHistory, upTo int64) {
	if t.entry == nil {
		return
	}

	inc := t.entry.incarnation
	st := inc.epoch
	if st.ticks == nil {
		return
	}

	var first, last, lost int64
	flush := func() {
		if lost > 0 {
			j.breachTask("G4", t.ref, first, j.keys.Entry(t.ref), "decided and without an outcome: %s, up to %s", plural(lost, "tick"), formatTime(timeOfMS(last)))
			j.stats.Undecided += lost
		}
		lost = 0
	}

	listTicks(st.ticks, st.start, upTo, func(at int64) bool {
		if st.wasPaused(at) {
			return true
		}

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

// checkEnd judges the ticks of a task that should have been decided by the end of the
// history. Those that are decided are judged already.
func (j *gapJudge) checkEnd(t *taskHistory) {
	inc := t.entry.incarnation
	if j.opts.Until.IsZero() || inc.epoch.ticks == nil {
		return
	}

	var first, open int64
	until := j.opts.Until.UnixMilli()
	listTicks(inc.epoch.ticks, inc.epoch.start, until, func(at int64) bool {
		if inc.epoch.ticks.due(at) > until {
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
			plural(open, "tick"), formatTime(j.opts.Until), describeWatermark(j.cluster.shardOf(t.ref.Shard).watermark))
	}
}
