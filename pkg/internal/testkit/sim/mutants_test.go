package sim_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/check"
	"github.com/carillonhq/carillon/pkg/internal/testkit/mutant"
	"github.com/carillonhq/carillon/pkg/internal/testkit/sim"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// hunt describes how a mutant is to be detected.
type hunt struct {
	by []string // guarantees, of which the mutant must break one
	in scenario
}

// scenario is the conditions in which mutants run. It has a name, so that several mutants can share the comparison
// without a mutant.
type scenario struct {
	name string
	sim.Options
}

var (
	calm      = scenario{"calm", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 10 * time.Second}}
	rough     = scenario{"rough", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 20 * time.Second, Rough: true}}
	moving    = scenario{"moving", sim.Options{Plain: true, Only: []string{"join", "drain", "kill", "held", "stall watches"}, Duration: 40 * time.Second}}
	killed    = scenario{"killed", sim.Options{Plain: true, Only: []string{"kill", "kill host"}, Duration: 30 * time.Second}}
	revoked   = scenario{"revoked", sim.Options{Plain: true, Only: []string{"revoke a lease"}, Duration: 30 * time.Second}}
	deposed   = scenario{"deposed", sim.Options{Plain: true, Only: []string{"revoke a lease", "kill", "drain", "join"}, Duration: 30 * time.Second}}
	late      = scenario{"late", sim.Options{Plain: true, Only: []string{"stall watches"}, Duration: 30 * time.Second, Calls: []string{"pause", "resume", "resume", "delete", "apply", "patch"}}}
	waiting   = scenario{"waiting", sim.Options{Plain: true, Only: []string{"stall watches"}, Duration: 30 * time.Second, Calls: []string{"cancel", "trigger"}, Shape: retried(4 * time.Second)}}
	cancelled = scenario{"cancelled", sim.Options{Plain: true, Only: []string{"calm"}, Duration: 30 * time.Second, Tasks: 5, Calls: []string{"cancel", "trigger"}, Shape: retried(500 * time.Millisecond)}}
	lost      = scenario{"lost", sim.Options{Plain: true, Only: []string{"cut"}, Duration: time.Minute, Shape: replaceable}}

	changed  = scenario{"changed", sim.Options{Plain: true, Only: []string{"calm"}, Workloads: []string{"change lost_after"}, Nodes: 4, Tasks: 5, Duration: time.Minute, Shape: replaceable, Calls: []string{"trigger"}}}
	blinking = scenario{"blinking", sim.Options{Plain: true, Only: []string{"calm"}, Workloads: []string{"blink nodes"}, Duration: 40 * time.Second, Slots: 1, Rough: true}}

	frozen  = scenario{"frozen", sim.Options{Only: []string{"stall watches"}, Duration: 30 * time.Second, Calls: []string{"freeze", "unfreeze"}}}
	limited = scenario{"limited", sim.Options{Only: []string{"calm"}, Duration: 20 * time.Second, Shape: bounded}}
	busy    = scenario{"busy", sim.Options{Only: []string{"calm"}, Duration: 20 * time.Second, Shape: long}}
	fanned  = scenario{"fanned", sim.Options{Only: []string{"calm"}, Duration: 15 * time.Second, Tasks: 4, Shape: inParts, Calls: []string{"trigger", "resume"}}}
	unheard = scenario{"unheard", sim.Options{Only: []string{"stall watches"}, Duration: 30 * time.Second, Tasks: 4, Shape: hopelessParts, Calls: []string{"cancel"}}}
	failing = scenario{"failing", sim.Options{Only: []string{"calm"}, Duration: 20 * time.Second, Shape: hopeless}}
)

// hunts maps mutants to hunts. The faults are chosen so that the mutant does harm quickly. Others would do, given
// enough seeds.
var hunts = map[string]hunt{
	"no-owner-fence":       {[]string{"G1"}, moving},
	"no-session-fence":     {[]string{"G2"}, revoked},
	"no-watermark-compare": {[]string{"G3", "G5"}, rough},
	"no-entry-compare":     {[]string{"G7"}, late},
	"no-queue-compare":     {[]string{"G3", "G12"}, waiting},
	"no-run-compare":       {[]string{"G9", "G12", "state"}, lost},
	"no-term-compare":      {[]string{"G2"}, deposed},
	"open-without-commit":  {[]string{"G1"}, calm},
	"seen-ahead":           {[]string{"G5"}, calm},
	"tick-again":           {[]string{"G3"}, calm},
	"error-is-nothing":     {[]string{"G3", "G12", "G13"}, rough},
	"error-is-done":        {[]string{"G13"}, rough},
	"stale-scan":           {[]string{"G8"}, killed},
	"anyones-attempt":      {[]string{"G9"}, killed},
	"cleared-unseen":       {[]string{"G17"}, lost},
	"present-lost-after":   {[]string{"G8", "G17"}, changed},
	"adoption-forged":      {[]string{"G9", "G11", "G13", "G17"}, blinking},
	"forged-renewals":      {[]string{"G17"}, lost},
	"start-before-commit":  {[]string{"G10"}, calm},
	"deaf-watches":         {[]string{"G16"}, calm},
	"no-freezes-compare":   {[]string{"G21"}, frozen},
	"no-revised-compare":   {[]string{"G4"}, late},
	"edit-unrevised":       {[]string{"G4"}, late},
	"run-uncounted":        {[]string{"G24"}, limited},
	"range-short":          {[]string{"G3", "G12"}, busy},
	"nothing-kept":         {[]string{"G25"}, failing},
	"no-parent-compare":    {[]string{"state"}, unheard},
	"part-again":           {[]string{"G9"}, fanned},
	"part-astray":          {[]string{"G24"}, fanned},
	"part-untold":          {[]string{"G4"}, fanned},
	"rule-bent":            {[]string{"G24"}, fanned},
	"conflicts-together":   {[]string{"G1", "G3", "G12"}, cancelled},
}

// replaceable gives tasks long runs that start again elsewhere when they are lost.
func replaceable(s *task.Spec) {
	s.Schedule, s.Timeout = task.Schedules{"*/5 * * * * *"}, 0
	s.Retry.Attempts, s.Retry.Backoff, s.Retry.On = 4, task.Duration(100*time.Millisecond), []task.State{task.Lost}
	s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "40s", "0"}}}
}

// bounded limits the number of runs.
func bounded(s *task.Spec) {
	*s = quick(*s)
	s.MaxRuns = 5
}

// long gives tasks runs that take as long as many ticks.
func long(s *task.Spec) {
	*s = quick(*s)
	s.Overlap, s.Action = task.OverlapSkip, task.Action{Process: &task.Process{Command: []string{"sim", "8s", "0"}}}
}

// hopeless gives tasks that fail.
func hopeless(s *task.Spec) {
	*s = quick(*s)
	s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "10ms", "1"}}}
}

// hopelessParts gives tasks runs with parts that fail and wait for a retry.
func hopelessParts(s *task.Spec) {
	inParts(s)
	s.Target = task.Target{Parts: 4, Count: 1, Strategy: task.StrategyAuto}
	s.Retry.Attempts, s.Retry.Backoff = 4, task.Duration(4*time.Second)
	s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "100ms", "1"}}}
}

// quick returns a task with a tick every second and no policies.
func quick(s task.Spec) task.Spec {
	q := task.Defaults()
	q.Name, q.Namespace, q.Description = s.Name, s.Namespace, s.Description
	q.Schedule, q.Action, q.Overlap = task.Schedules{"* * * * * *"}, task.Action{Noop: &task.Noop{}}, s.Overlap
	return q
}

// retried gives tasks that fail and wait for a moment before the retry.
func retried(backoff time.Duration) func(*task.Spec) {
	return func(s *task.Spec) {
		s.Retry.Attempts, s.Retry.Backoff, s.Retry.On = 4, task.Duration(backoff), []task.State{task.Failed}
		s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "100ms", "1"}}}
	}
}

// Each mutant must break a guarantee of its rule, and the same simulation must be valid without the mutant.
func TestMutants_AreCaught(t *testing.T) {
	keys, err := record.NewKeys(record.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}

	const (
		most     = 40               // simulations; each takes about a second
		patience = 90 * time.Second // for runs to end; with a mutant they may never end
	)
	clean := map[string]bool{}
	for _, m := range mutant.All {
		h, known := hunts[m.Name]
		if !known {
			t.Errorf("nobody looks for %s", m.Name)
			continue
		}

		t.Run(m.Name, func(t *testing.T) {
			for seed := uint64(1); seed <= most; seed++ {
				o := h.in.Options
				o.Patience = patience
				o.Mutate = m.New(keys)
				r := sim.Run(t, seed, o)

				i := slices.IndexFunc(r.Violations, func(v check.Violation) bool { return slices.Contains(h.by, v.Promise) })
				if i < 0 {
					continue
				}

				t.Logf("caught by %s in %q, seed %d: %s", r.Violations[i].Promise, h.in.name, seed, r.Violations[i])

				if story := fmt.Sprint(h.in.name, seed); !clean[story] {
					o = h.in.Options
					if slices.Contains(h.by, "G16") {
						o.Patience = patience
					}

					runInBubble(t, seed, o)
					clean[story] = true
				}

				return
			}

			t.Errorf("not caught by %v in %d simulations of %q", h.by, most, h.in.name)
		})
	}
}
