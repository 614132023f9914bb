package ask

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
)

// If a node is asked more than it can answer, a list that somebody watches gets older. It must not be forgotten because
// of all the other questions.
func TestCache_KeepsWatchedQuestions(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var c cache
		watched := c.entryOf("watched", "user:ann")
		n := 0

		for range 10 {
			if c.entryOf("watched", "user:ann") != watched {
				t.Fatalf("it was forgotten after %d other questions", n)
			}

			for range 2 * maxKept {
				time.Sleep(time.Millisecond)
				c.entryOf(strconv.Itoa(n), "user:ann")
				n++
			}
		}

		if len(c.entries) != maxKept {
			t.Errorf("%d questions are kept", len(c.entries))
		}
	})
}

// A question that was asked once keeps its answer while somebody else asks many others: those that were refused go first,
// and then those of the subject with the most.
func TestCache_OneSubjectDoesNotReplaceTheAnswersOfOthers(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		asks int // how often each of the other questions is asked
		err  error
	}{
		"refused": {1, &readmodel.Busy{}}, "answered": {1, nil}, "watched": {2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			synctest.Test(t, func(t *testing.T) {
				var cache cache
				answer := func(e *entry, err error) {
					if _, under, mine := e.shared(time.Time{}, nil, shareFor); mine {
						e.finish(under, Answer{}, err)
					}
				}

				once := cache.entryOf("once", "user:bob")
				answer(once, nil)
				for i := range 4 * maxKept {
					time.Sleep(time.Millisecond)
					for range c.asks {
						answer(cache.entryOf(strconv.Itoa(i), "user:eve"), c.err)
					}
				}

				if cache.entryOf("once", "user:bob") != once {
					t.Error("the answer was forgotten")
				}
			})
		})
	}
}

// Refused questions leave room for answers of the same subject, too.
func TestCache_KeepsAnswersRatherThanRefusals(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var c cache
		once := c.entryOf("once", "user:ann")
		_, under, _ := once.shared(time.Time{}, nil, shareFor)
		once.finish(under, Answer{}, nil)

		for i := range 4 * maxKept {
			time.Sleep(time.Millisecond)
			e := c.entryOf(strconv.Itoa(i), "user:ann")
			_, under, _ := e.shared(time.Time{}, nil, shareFor)
			e.finish(under, Answer{}, &readmodel.Busy{})
		}

		if c.entryOf("once", "user:ann") != once {
			t.Error("the answer was forgotten")
		}
	})
}

// Questions that were watched an hour ago leave room for those that are watched now.
func TestCache_ForgetsQuestionsThatNobodyWatchesAnyMore(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var c cache
		for i := range maxKept {
			c.entryOf(strconv.Itoa(i), "user:ann")
			c.entryOf(strconv.Itoa(i), "user:ann")
		}

		time.Sleep(watchedFor + time.Millisecond)
		a, b := c.entryOf("a", "user:ann"), c.entryOf("b", "user:ann")

		for range 10 {
			time.Sleep(5 * time.Second)

			if c.entryOf("a", "user:ann") != a || c.entryOf("b", "user:ann") != b {
				t.Fatal("the new questions replace each other")
			}
		}
	})
}

func TestCache_DropsTheQuestionThatWasNotAskedForLongest(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var c cache
		kept := map[string]*entry{}

		// All of them are watched.
		for i := range 2 * maxKept {
			key := strconv.Itoa(i)
			time.Sleep(time.Millisecond)
			kept[key] = c.entryOf(key, "user:ann")
			c.entryOf(key, "user:ann")
		}

		for i := maxKept; i < 2*maxKept; i++ {
			if key := strconv.Itoa(i); c.entries[key] != kept[key] {
				t.Errorf("question %s was forgotten", key)
			}
		}

		time.Sleep(keepFor + time.Millisecond)
		c.entryOf("new", "user:ann")

		if len(c.entries) != 1 {
			t.Errorf("%d questions are kept", len(c.entries))
		}
	})
}

// An answer is shared only with those whose writes it contains.
func TestEntry_SharesOnlyWhatContainsTheWrites(t *testing.T) {
	t.Parallel()
	var e entry
	_, first, mine := e.shared(time.Time{}, Revisions{3: 7}, shareFor)

	if _, same, mine := e.shared(time.Time{}, Revisions{3: 6}, shareFor); mine || same != first {
		t.Error("a question that needs less was not shared")
	}
	_, second, mineToo := e.shared(time.Time{}, Revisions{3: 6, 4: 1}, shareFor)
	if !mine || !mineToo || second == first {
		t.Error("a question that needs more was shared")
	}

	e.finish(second, Answer{needed: second.needed}, nil)
	if answer, _, _ := e.shared(time.Time{}, Revisions{4: 1}, shareFor); answer == nil {
		t.Error("an answer that contains more was not shared")
	}
	if answer, _, _ := e.shared(time.Time{}, Revisions{3: 7}, shareFor); answer != nil {
		t.Error("an answer that lacks a write was shared")
	}
}

// A load takes long to count, and is shared for longer than a list, unless shards are missing in it.
func TestEntry_SharesALoadForLonger(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		load, list := Question{Load: &readmodel.LoadRange{}}, Question{}
		for _, c := range []struct {
			what    string
			missing []int
			q       *Question
			after   time.Duration
			want    bool
		}{
			{"a list", nil, &list, shareFor, true},
			{"an old list", nil, &list, shareFor + 1, false},
			{"a load", nil, &load, shareLoadFor, true},
			{"an old load", nil, &load, shareLoadFor + 1, false},
			{"a load that lacks shards", []int{3}, &load, shareFor, true},
			{"an old load that lacks shards", []int{3}, &load, shareFor + 1, false},
		} {
			var e entry
			_, under, _ := e.shared(time.Time{}, nil, c.q.shareFor())
			time.Sleep(time.Nanosecond)
			e.finish(under, Answer{Page: readmodel.Page{Missing: c.missing}}, nil)
			time.Sleep(c.after - 1)

			if answer, _, _ := e.shared(time.Time{}, nil, c.q.shareFor()); (answer != nil) != c.want {
				t.Errorf("%s was shared: %t", c.what, answer != nil)
			}
		}
	})
}
