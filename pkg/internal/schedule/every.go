package schedule

// @every ticks are arithmetic: anchor + k·period, k ≥ 1. All periods of a task
// share its anchor, so that the union of several is the multiples of any of them.

// withoutMultiples drops, from ascending periods, those whose ticks another has.
func withoutMultiples(periods []int64) []int64 {
	var kept []int64
	for _, period := range periods {
		if !isMultiple(period, kept) {
			kept = append(kept, period)
		}
	}

	return kept
}

func isMultiple(n int64, periods []int64) bool {
	for _, period := range periods {
		if n%period == 0 {
			return true
		}
	}

	return false
}

// countMultiples counts the numbers from 1 to limit that are multiples of any of
// the periods, by inclusion and exclusion. Least common multiples beyond the
// limit end a branch, so that few of the 2^n subsets are ever looked at.
func countMultiples(limit int64, periods []int64) int64 {
	if limit <= 0 {
		return 0
	}

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

// leastMultiple returns the least common multiple of a and b, or a number beyond
// limit if it is beyond limit.
func leastMultiple(a, b, limit int64) int64 {
	a /= greatestDivisor(a, b)
	if a > limit/b {
		return limit + 1
	}
	return a * b
}

// greatestDivisor returns the greatest common divisor.
func greatestDivisor(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// A progression is the ticks of an @every that are whole seconds: the instants
// first + k·period, k ≥ 0, in seconds.
type progression struct{ first, period int64 }

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

// wholeSeconds returns the whole seconds of an @every, if it has any.
func wholeSeconds(anchor, period int64) (progression, bool) {
	step := 1000 / greatestDivisor(period, 1000) // every step-th tick has the same ms
	for k := int64(1); k <= step; k++ {
		if tick := anchor + k*period; tick%1000 == 0 {
			return progression{first: tick / 1000, period: step * period / 1000}, true
		}
	}

	return progression{}, false
}
