package executor

import (
	"testing"
	"time"
)

func TestRenewals_AreNeverYoungerThanTheyWere(t *testing.T) {
	began := time.Now()
	last := began.Add(-3 * time.Second)
	r := newRenewals(clocksOf(nil), func() time.Time { return last })
	first := r.look()
	// What the test itself takes, which may be long, counts at most twice.
	if age := Boottime() - first; age < 3*time.Second || age > 4*time.Second+2*time.Since(began) {
		t.Errorf("a renewal of three seconds ago is %s old", age)
	}
	if again := r.look(); again != first {
		t.Errorf("the same renewal moved by %s", again-first)
	}
	// The host sleeps for a minute after the look, and before it the session was
	// renewed once more: that renewal may be from before the sleep.
	r.slept -= time.Minute
	last = time.Now()
	if at := r.look(); Boottime()-at < time.Minute {
		t.Errorf("a renewal that may be from before a minute's sleep counts as %s old", Boottime()-at)
	}
	// The next one is from after it.
	last = time.Now()
	if age := Boottime() - r.look(); age > time.Second+2*time.Since(began) {
		t.Errorf("a renewal of just now is %s old", age)
	}
}

func TestParseStat_NamesMayContainAnything(t *testing.T) {
	line := "42 (a) R (b c) S 1 40 40 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1000 1 0 0\n"
	st, err := parseStat(42, []byte(line))
	if err != nil || st.pgrp != 40 || st.state != 'S' || st.start != 123450*time.Millisecond {
		t.Errorf("got %+v, %v", st, err)
	}
	if _, err := parseStat(42, []byte("42 (x) R 1")); err == nil {
		t.Error("a short line is read")
	}
}
