package task

import (
	"testing"
	"time"
)

func TestFreezes_Lasted(t *testing.T) {
	t.Parallel()
	at := func(s int) Time { return At(time.Unix(int64(s), 0)) }
	f := &Freezes{
		Holding: []Freeze{{Since: at(90)}},
		Past:    []Freeze{{Namespace: "a", Since: at(10), Ended: at(30)}, {Since: at(20), Ended: at(40)}, {Namespace: "b", Since: at(50), Ended: at(60)}},
	}

	for _, c := range []struct{ from, until, want int }{{0, 100, 40}, {15, 25, 10}, {35, 95, 10}, {40, 90, 0}, {100, 50, 0}} {
		if got := f.Lasted("a", at(c.from).Time, at(c.until).Time); got != time.Duration(c.want)*time.Second {
			t.Errorf("from %d to %d: %s, want %d s", c.from, c.until, got, c.want)
		}
	}
}
