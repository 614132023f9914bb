package schedule

// withoutMultiples removes, from ascending periods, those whose ticks another period includes.
//
// The ticks of @every are anchor + k·period, k ≥ 1. All periods of a task share its anchor, so the union of their
// ticks is the set of multiples of any of the periods, counted from the anchor.
func withoutMultiples(periods []int64) []int64 {
	var kept []int64
	for _, period := range periods {
		if !isMultiple(period, kept) {
			kept = append(kept, period)
		}
	}

	return kept
}

// isMultiple reports whether n is a multiple of any of the periods.
func isMultiple(n int64, periods []int64) bool {
	for _, period := range periods {
		if n%period == 0 {
			return true
		}
	}

	return false
}

// countMultiples counts the numbers from 1 to limit that are multiples of any of the periods, by inclusion and
// exclusion. A branch ends when the least common multiple exceeds the limit, so that few of the 2^n subsets are
// visited.
func countMultiples(limit int64, periods []int64) int64 {
	if limit <= 0 {
		return 0
	}

	// visit counts the multiples of multiple that are also multiples of any of the periods from i on.
	var visit func(i int, multiple int64) int64
	visit = func(i int, multiple int64) int64 {
		var count int64
		for ; i < len(periods); i++ {
			if with := leastMultiple(multiple, periods[i], limit); with <= limit {
				count += limit/with - visit(i+1, with)
			}
		}

		return count
	}

	return visit(0, 1)
}

// leastMultiple returns the least common multiple of a and b, or limit + 1 if it exceeds limit. It cannot overflow.
func leastMultiple(a, b, limit int64) int64 {
	a /= greatestDivisor(a, b)
	if a > limit/b {
		return limit + 1
	}
	return a * b
}

// greatestDivisor returns the greatest common divisor of a and b.
func greatestDivisor(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// progression is the set of those ticks of an @every that are whole seconds: first + k·period, k ≥ 0, in seconds.
type progression struct{ first, period int64 }

// containsInstant reports whether an instant in seconds belongs to the progression.
func (p progression) containsInstant(instant int64) bool {
	return instant >= p.first && (instant-p.first)%p.period == 0
}

// firstFrom returns the first instant of the progression that is not before start.
func (p progression) firstFrom(start int64) int64 {
	if start <= p.first {
		return p.first
	}
	return p.first + (start-p.first+p.period-1)/p.period*p.period
}

// wholeSeconds returns those ticks of an @every that are whole seconds, or false if none is.
func wholeSeconds(anchor, period int64) (progression, bool) {
	step := 1000 / greatestDivisor(period, 1000) // every step-th tick has the same milliseconds
	for k := int64(1); k <= step; k++ {
		if tick := anchor + k*period; tick%1000 == 0 {
			return progression{first: tick / 1000, period: step * period / 1000}, true
		}
	}

	return progression{}, false
}
