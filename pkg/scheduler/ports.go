package scheduler

import (
	"math/rand/v2"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/known"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/scheduler/retention"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// ports are what a shard's decisions depend on besides its own state. Decisions depend on nothing else: no
// clock, no network, no global random numbers. Tests and scripts replace all of them.
type ports struct {
	node         string // name of this node, which becomes the owner in run records
	commits      commitMaker
	definitions  known.Definitions
	placement    placer
	tokens       tokens
	trims        trims
	ends         endCounter
	nextAttempt  NextAttempt   // applies the retry policy
	clearedAfter time.Duration // see Config.ClearedAfter
	random       *rand.Rand    // for jitter of retries and of trims
}

// commitMaker makes empty commits. The result depends only on the arguments.
type commitMaker interface {
	NewCommit(shard int, f store.Fences, known int64, w record.Watermark) *store.Commit
}

// trims accepts requests to cut a history to its length. Ask returns false if it is busy; the shard then
// asks again later.
type trims interface{ Ask(retention.Trim) bool }

// Namespaces are the records of the namespaces at one revision. A plan uses one value throughout.
type Namespaces interface {
	// Namespace returns the record of a namespace, or nil if there is none. The record must not be changed.
	Namespace(name string) *task.Namespace
}

// OpenNamespaces has an open record of every namespace, for tests and benchmarks.
type OpenNamespaces struct{}

var openNamespace = task.Namespace{RunAs: []string{"*"}, Groups: []string{"*"}, Shell: true, EnvFiles: []string{"*"}}

// Namespace implements Namespaces.
func (OpenNamespaces) Namespace(string) *task.Namespace { return &openNamespace }

// endCounter counts how runs end.
type endCounter interface {
	AddEnded(now time.Time, failed bool)
}

// placer chooses nodes for runs. All shards of a node share one, which locks internally. It is a port and
// not part of the state, because whether a tick fires or waits depends on whether a node is free: a tick
// cannot be decided first and placed later.
type placer interface {
	// Reserve chooses a node and counts one of its slots as taken. It returns false if no node accepts the
	// run.
	Reserve(w placement.Want, now time.Time) (*task.Node, bool)
	// ReserveNamed is like Reserve, for the node with a given name. Only the pool and the secret of w apply.
	ReserveNamed(name string, w placement.Want, now time.Time) (*task.Node, bool)
	// Rank returns the names of the matching nodes, the best first. It counts nothing.
	Rank(w placement.Want, now time.Time) []string
	// Occupy counts an attempt that was found in a node's inbox.
	Occupy(node string, pool placement.Pool)
	// Release gives a slot back: it was not used, or its attempt has ended.
	Release(node string, pool placement.Pool)
	// Present returns a node, and whether it is present.
	Present(name string) (*task.Node, bool)
	// Suspect leaves a node out for a while, because a commit found that its session is not the one that is
	// known.
	Suspect(node string, session int64, now time.Time)
	// SuspectUntil returns when the first suspicion ends. It returns false if no node is suspect.
	SuspectUntil(now time.Time) (until time.Time, ok bool)
}

// tokens limits how fast runs of late ticks start. All shards of a node share one limiter.
type tokens interface {
	// Take takes a token. It returns false if there is none.
	Take(now time.Time) bool
	// Return gives back n tokens that were not used.
	Return(n int)
	// Turn returns how many tasks of this shard's line may have a token now, and after which time to ask
	// again.
	Turn(now time.Time) (n int, again time.Duration)
	// Leave declares that this shard's line is empty.
	Leave()
}
