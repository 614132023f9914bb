package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// probed returns a history of one task with four attempts of three runs, and the log that its probes wrote.
func probed(t *testing.T) (s *sim, log []string) {
	s = newSim(t, 1, "a")
	one := s.create("one", 0, 1, nil)
	line := func(word string) {
		log = append(log, fmt.Sprintf("%s %s %d %d %s 4711", word, one.active.ID, one.active.Attempt, one.active.create, formatTime(time.UnixMilli(s.now))))
	}

	for _, end := range []task.State{task.Succeeded, task.Failed, task.Succeeded} {
		s.pass(1)
		s.round(0)
		line("START")
		line("END")
		s.finish(one, end)
	}

	s.pass(1)
	s.round(0)
	line("START")

	if r := s.check(Options{}); !r.OK() {
		t.Fatal(r)
	}

	return s, log
}

// Verifies: G9-G11
func TestCheckProbeLog(t *testing.T) {
	for _, c := range []struct {
		name, promise string
		mutate        func(s *sim, log []string) []string
	}{
		{"a good log", "", func(_ *sim, log []string) []string { return log }},
		{"a line cut off", "", func(_ *sim, log []string) []string { return append(log, "STA") }},
		{"a retry that starts twice", "G9", func(_ *sim, log []string) []string { return append(log, log[len(log)-1]) }},
		{"an attempt with a second token", "G9", func(_ *sim, log []string) []string {
			w := strings.Fields(log[0])
			w[3] = "999"
			return append(log, strings.Join(w, " "))
		}},
		{"two ends", "G9", func(_ *sim, log []string) []string { return append(log, log[1]) }},
		{"no inbox record", "G10", func(_ *sim, log []string) []string {
			return append(log, "START 20261120T120009.000Z-abcd 1 12345 2026-11-20T12:00:09Z 4711")
		}},
		{"an end without a start", "G10", func(_ *sim, log []string) []string { return slices.Delete(log, 0, 1) }},
		{"an old token starts late", "G11", func(_ *sim, log []string) []string { return append(slices.Clone(log[2:]), log[:2]...) }},
		{"runs overlap", "G8", func(_ *sim, log []string) []string {
			log[1], log[2] = log[2], log[1]
			return log
		}},
		{"nonsense", "form", func(_ *sim, log []string) []string { return append(log, "hello") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, log := probed(t)
			text := strings.Join(c.mutate(s, log), "\n")
			if c.name != "a line cut off" {
				text += "\n"
			}

			got := CheckProbeLog(strings.NewReader(text), s.keys, s.events)
			if c.promise == "" && len(got) > 0 {
				t.Errorf("a good log: %v", got)
			}

			if c.promise != "" && !slices.ContainsFunc(got, func(v Violation) bool { return v.Promise == c.promise }) {
				t.Errorf("not caught as %s: %v", c.promise, got)
			}
		})
	}
}

// Verifies: G9-G11
func TestCheckProbeLog_CatchesASuccessorOfALostAttempt(t *testing.T) {
	s := newSim(t, 1, "a")
	one := s.create("one", 0, 1, func(e *task.Entry) { e.Retry = task.Retry{Attempts: 3, On: []task.State{task.Lost}} })
	s.pass(1)
	s.round(0)
	var log strings.Builder
	start := func() {
		fmt.Fprintf(&log, "START %s %d %d now 1\n", one.active.ID, one.active.Attempt, one.active.create)
	}

	start()
	s.finish(one, task.Lost)
	s.round(0)
	start()

	if got := CheckProbeLog(strings.NewReader(log.String()), s.keys, s.events); len(got) > 0 {
		t.Fatalf("a wanted retry: %v", got)
	}

	for i := range s.events { // as if the policy did not allow the retry
		s.events[i].Value = []byte(strings.ReplaceAll(string(s.events[i].Value), `"on":["lost"]`, `"on":["failed"]`))
	}

	got := CheckProbeLog(strings.NewReader(log.String()), s.keys, s.events)
	if len(got) != 1 || got[0].Promise != "G9" {
		t.Errorf("not caught as G9: %v", got)
	}

	if got := CheckProbeLog(strings.NewReader(log.String()), s.keys, nil); len(got) > 0 {
		t.Errorf("of the log alone: %v", got)
	}
}

func TestSiblings_AreThePartsOfOneRun(t *testing.T) {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	run, other := task.RunID(at, "a"), task.RunID(at, "b")
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{task.PartID(run, 1), task.PartID(run, 2), true},
		{task.PartID(run, 1), task.PartID(other, 1), false},
		{task.PartID(run, 1), run, false},
		{run, run, false},
	} {
		if got := Siblings(c.a, c.b); got != c.want {
			t.Errorf("Siblings(%s, %s) = %v", c.a, c.b, got)
		}
	}
}

func TestActivations(t *testing.T) {
	s := newSim(t, 1, "a")
	one := s.create("one", 0, 1, func(e *task.Entry) { e.Retry = task.Retry{Attempts: 3, On: []task.State{task.Failed}} })
	var tokens []int64
	dispatched := func() {
		t.Helper()
		s.round(0)

		if one.active == nil {
			t.Fatal("no attempt was dispatched")
		}

		tokens = append(tokens, one.active.create)
	}

	s.pass(1)
	dispatched()
	id := one.active.ID
	s.handBack(one)
	s.update(one, false, func() { one.entry.Overlap, one.entry.MaxActive = task.OverlapAllow, 2 })
	dispatched()
	s.finish(one, task.Failed)
	s.update(one, false, func() { one.entry.Overlap = task.OverlapQueue })
	dispatched()

	all := Activations(s.keys, s.events)

	for i, want := range []Activation{{tokens[0], task.OverlapSkip, 0}, {tokens[1], task.OverlapAllow, 2}, {tokens[1], task.OverlapAllow, 2}} {
		if got := all[AttemptID{"default/one", id, tokens[i]}]; got != want {
			t.Errorf("attempt %d: %+v, want %+v", i+1, got, want)
		}
	}
}
