package scheduler

import (
	"math/rand/v2"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/definition"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/retention"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ports is what a shard decides by, beside what it knows of its tasks. Decisions depend on nothing
// else: no clock, no network, no global random numbers. Scripts and tests replace all of it.
type ports struct {
	node         string // own name
	commits      commitMaker
	definitions  definitions
	placement    placer
	tokens       tokens
	trims        trims
	ends         endCounter
	nextAttempt  NextAttempt
	clearedAfter time.Duration
	random       *rand.Rand
}

// commitMaker makes empty commits. It depends on nothing but its arguments.
type commitMaker interface {
	NewCommit(shard int, f store.Fences, known int64, w record.Watermark) *store.Commit
}

// definitions reads what many tasks have alike, and keeps it once for all shards.
type definitions interface {
	parseTiming(text []byte) (*definition.Timing, error)
	parsePolicy(text []byte) (*definition.Policy, error)
}

// trims takes histories that are to be cut to their length. false: it is busy, and is to be asked
// again.
type trims interface{ Ask(retention.Trim) bool }

// endCounter counts how runs end, for the board.
type endCounter interface {
	AddEnded(now time.Time, failed bool)
}

// placer chooses nodes for runs. All shards of a node share one, which is locked inside. It is
// a port and not state, since whether a tick fires or waits depends on whether a node is free: it
// cannot be decided first and placed later.
type placer interface {
	// Reserve chooses a node, and counts a slot of it. false: no node takes the run.
	Reserve(w placement.Want, now time.Time) (*task.Node, bool)
	// ReserveNamed is Reserve of a node by its name.
	ReserveNamed(name string, secret bool, now time.Time) (*task.Node, bool)
	// Rank returns the nodes that match, the best first. It counts nothing.
	Rank(w placement.Want, now time.Time) []string
	// Occupy counts an attempt that was found at a node.
	Occupy(node string)
	// Release gives a slot back: it was not used, or the attempt has ended.
	Release(node string)
	Present(name string) (*task.Node, bool)
	// Suspect leaves a node out for a while: its session was found to be another than that known.
	Suspect(node string, session int64, now time.Time)
	// SuspectUntil returns when the first suspicion ends; false if there is none.
	SuspectUntil(now time.Time) (until time.Time, ok bool)
}

// tokens paces the runs of ticks that came to light late. All shards of a node share them.
type tokens interface {
	// Take takes a token; false if there is none.
	Take(now time.Time) bool
	// Return gives tokens back that were not used.
	Return(n int)
	// Turn returns for how many tasks of this shard's line there are tokens now, and when it may ask
	// again.
	Turn(now time.Time) (n int, again time.Duration)
	// Leave says that the shard has no line any more.
	Leave()
}
