package node

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// newSleepingLimiter returns a ScanLimiter that charges the time that passes, because scans of the tests only sleep.
func newSleepingLimiter() *ScanLimiter {
	began := time.Now()
	return NewScanLimiterMeasuredBy(func() time.Duration { return time.Since(began) })
}

// askToScan scans for as long as took, again and again, until ctx ends. A subject that is refused asks again at once if
// hasty, else when it was told to. It returns how much time its scans took.
func askToScan(ctx context.Context, l *ScanLimiter, subject string, took time.Duration, hasty bool) (total time.Duration) {
	for ctx.Err() == nil {
		end, retry, err := l.Begin(ctx, subject)
		switch {
		case err != nil:
			return total
		case end != nil:
			time.Sleep(took)
			end()
			total += took
		case hasty:
			time.Sleep(time.Millisecond)
		default:
			time.Sleep(retry)
		}
	}

	return total
}

func TestLimiter_KeepsToItsPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newSleepingLimiter()
		l.rate = 0.1
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()

		var used [4]time.Duration
		var wg sync.WaitGroup
		for i := range used {
			wg.Go(func() { used[i] = askToScan(ctx, l, "ann", 15*time.Millisecond, true) })
		}
		wg.Wait()

		// Ten percent of a minute, what was saved up, and a debt for each scan that may run at a time.
		sum := used[0] + used[1] + used[2] + used[3]
		if sum < 5900*time.Millisecond || sum > 6200*time.Millisecond+time.Duration(cap(l.slots))*15*time.Millisecond {
			t.Errorf("%s of a minute", sum)
		}
	})
}

// Somebody who asks all the time and for much leaves the others what they need.
func TestLimiter_SubjectsShareFairly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newSleepingLimiter()
		l.rate = 0.1
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()

		var greedy [8]time.Duration
		var ann, bob time.Duration
		var wg sync.WaitGroup
		for i := range greedy {
			wg.Go(func() { greedy[i] = askToScan(ctx, l, "greedy", 80*time.Millisecond, true) })
		}
		wg.Go(func() { ann = askToScan(ctx, l, "ann", 15*time.Millisecond, false) })
		wg.Go(func() { bob = askToScan(ctx, l, "bob", 15*time.Millisecond, false) })
		wg.Wait()

		var g time.Duration
		for _, used := range greedy {
			g += used
		}

		third := 4 * time.Second
		for who, used := range map[string]time.Duration{"greedy": g, "ann": ann, "bob": bob} {
			if used < third*3/4 || used > third*5/4 {
				t.Errorf("%s used %s of %s", who, used, 3*third)
			}
		}
	})
}

// Eight subjects, who together ask once a second for a scan of a million tasks, need half of what scans may take. They rarely
// wait, although several of them sometimes ask at the same time.
func TestLimiter_QuestionsThatComeTogetherRarelyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newSleepingLimiter()
		l.rate, l.slots = 0.1, make(chan struct{}, 1) // as with two processors

		const subjects, questions, pause = 8, 500, 8 * time.Second
		var took [subjects][]time.Duration
		var wg sync.WaitGroup

		for i := range subjects {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			wg.Go(func() {
				for range questions {
					asked := time.Now()
					for {
						end, retry, _ := l.Begin(t.Context(), strconv.Itoa(i))
						if end != nil {
							time.Sleep(40*time.Millisecond + time.Duration(random.Int64N(int64(30*time.Millisecond))))
							end()
							break
						}
						time.Sleep(retry)
					}

					took[i] = append(took[i], time.Since(asked))
					time.Sleep(pause/2 + time.Duration(random.Int64N(int64(pause))))
				}
			})
		}
		wg.Wait()

		all := slices.Sorted(slices.Values(slices.Concat(took[:]...)))
		if p99 := all[len(all)*99/100]; p99 > 200*time.Millisecond {
			t.Errorf("p50 %s, p99 %s", all[len(all)/2], p99)
		}
	})
}

// A subject may use what others leave, also while many others ask now and then.
func TestLimiter_SubjectsUseWhatOthersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newSleepingLimiter()
		l.rate = 0.1
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()

		var ann time.Duration
		var wg sync.WaitGroup
		wg.Go(func() { ann = askToScan(ctx, l, "ann", 40*time.Millisecond, false) })

		for _, rare := range []string{"bob", "eve", "joe", "kim", "lee", "max", "sue"} {
			wg.Go(func() {
				for ctx.Err() == nil {
					pause := 5 * time.Second
					if end, retry, _ := l.Begin(ctx, rare); end != nil {
						time.Sleep(time.Millisecond)
						end()
					} else if pause = retry; pause > time.Second {
						t.Errorf("%s is refused for %s", rare, pause)
					}

					select {
					case <-ctx.Done():
					case <-time.After(pause):
					}
				}
			})
		}
		wg.Wait()

		if ann < 5*time.Second {
			t.Errorf("ann used %s of 6 s", ann)
		}
	})
}

func TestLimiter_ForgetsSubjectsAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newSleepingLimiter()
		ctx, cancel := context.WithCancel(t.Context())
		var ends []func()
		for range cap(l.slots) {
			end, _, err := l.Begin(ctx, "ann")
			if end == nil || err != nil {
				t.Fatal("refused", err)
			}
			ends = append(ends, end)
		}

		cancel()

		if _, _, err := l.Begin(ctx, "bob"); err == nil {
			t.Error("a further scan has begun")
		}

		for _, end := range ends {
			end()
		}

		time.Sleep(subjectActiveFor + time.Second)

		end, _, err := l.Begin(t.Context(), "bob")
		if err != nil {
			t.Fatal(err)
		}

		if end(); len(l.subjects) != 1 {
			t.Errorf("%d subjects are known", len(l.subjects))
		}
	})
}

// A scan that waits for a processor is not charged for that.
func TestLimiter_ChargesProcessorTime(t *testing.T) {
	l := NewScanLimiter()
	l.rate = 0.02
	most := time.Duration(1.5 * l.rate * float64(scanBurst)) // more than can be saved up
	end, _, err := l.Begin(t.Context(), "ann")
	if err != nil || end == nil {
		t.Fatal(err)
	}

	time.Sleep(most)
	end()

	if runtime.GOOS == "linux" && l.all.seconds < 0 {
		t.Errorf("%g s are left", l.all.seconds)
	}

	end, _, err = l.Begin(t.Context(), "ann")
	if err != nil || end == nil {
		t.Fatal(err)
	}

	for from := threadTime(); threadTime()-from < most; {
	}
	end()

	if l.all.seconds > 0 {
		t.Errorf("%g s are left", l.all.seconds)
	}
}
