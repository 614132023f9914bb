package check

// gapJudge judges that no tick is left out: each that is decided has an outcome (G4), and each
// that was due by the end of the history is decided (G16).
type gapJudge struct {
	judge
	stats *stats
}

// checkDecided judges the present stretch of a task: all of its ticks that are
// decided, those up to upTo, must have an outcome.
func (j *gapJudge) checkDecided(t *tasked, upTo int64) {
	if t.entry == nil {
		return
	}
	line := t.entry.line
	st := line.stretch
	if st.ticks == nil {
		return
	}
	var first, last, lost int64
	flush := func() {
		if lost > 0 {
			j.breachTask("G4", t.ref, first, j.keys.Entry(t.ref), "decided and without an outcome: %s, up to %s", count(lost, "tick"), stamp(instant(last)))
			j.stats.Undecided += lost
		}
		lost = 0
	}
	listTicks(st.ticks, st.start, upTo, func(at int64) bool {
		if st.paused(at) {
			return true
		}
		if line.outcomes[at] != nil {
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
	line.stretch.start = max(st.start, upTo)
}

// checkEnd judges the ticks of a task that should have been decided by the end of the
// history. Those that are decided are judged already.
func (j *gapJudge) checkEnd(t *tasked) {
	line := t.entry.line
	if j.opts.Until.IsZero() || line.stretch.ticks == nil {
		return
	}
	var first, open int64
	until := j.opts.Until.UnixMilli()
	listTicks(line.stretch.ticks, line.stretch.start, until, func(at int64) bool {
		if line.stretch.ticks.due(at) > until {
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
			count(open, "tick"), stamp(j.opts.Until), describe(j.cluster.shard(t.ref.Shard).mark))
	}
}
