package ask

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// If a node is asked more than it can answer, a list that somebody watches gets older. It must not be forgotten because
// of all the other questions.
func TestCache_KeepsWatchedQuestions(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var c cache
		watched := c.entryOf("watched")
		n := 0

		for range 10 {
			if c.entryOf("watched") != watched {
				t.Fatalf("it was forgotten after %d other questions", n)
			}

			for range 2 * maxKept {
				time.Sleep(time.Millisecond)
				c.entryOf(strconv.Itoa(n))
				n++
			}
		}

		if len(c.entries) != maxKept {
			t.Errorf("%d questions are kept", len(c.entries))
		}
	})
}

// Questions that were watched an hour ago leave room for those that are watched now.
func TestCache_ForgetsQuestionsThatNobodyWatchesAnyMore(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var c cache
		for i := range maxKept {
			c.entryOf(strconv.Itoa(i))
			c.entryOf(strconv.Itoa(i))
		}

		time.Sleep(watchedFor + time.Millisecond)
		a, b := c.entryOf("a"), c.entryOf("b")

		for range 10 {
			time.Sleep(5 * time.Second)

			if c.entryOf("a") != a || c.entryOf("b") != b {
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
			kept[key] = c.entryOf(key)
			c.entryOf(key)
		}

		for i := maxKept; i < 2*maxKept; i++ {
			if key := strconv.Itoa(i); c.entries[key] != kept[key] {
				t.Errorf("question %s was forgotten", key)
			}
		}

		time.Sleep(keepFor + time.Millisecond)
		c.entryOf("new")

		if len(c.entries) != 1 {
			t.Errorf("%d questions are kept", len(c.entries))
		}
	})
}
