package check

import "github.com/carillonhq/carillon/pkg/store/record"

// judge holds what all judges share. A judge is responsible for one group of guarantees: it compares what a
// revision changes (a delta, or the part of it that concerns one run or entry) with the cluster as it was
// before, and reports each violation.
//
// A judge reads the cluster's state and never changes it. It keeps what it must remember for its own guarantees
// in its own fields.
type judge struct {
	// findings receives the violations and notes.
	*findings
	// cluster is the replayed state before the revision that is judged.
	cluster *clusterState
	// keys are the keys of the cluster, for the messages. opts is what the author of the history demands.
	keys record.Keys
	opts *Options
}
