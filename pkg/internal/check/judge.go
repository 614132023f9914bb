package check

import "github.com/carillonhq/carillon/pkg/store/record"

// judge is what every judge works with. A judge is responsible for one group of
// promises: it compares what a revision changes (a delta, or one run's or entry's
// part of it) with the cluster as it was before, and reports each breach.
//
// A judge reads the cluster's state and never changes it. What it has to remember for
// its own promises it keeps in its own fields.
type judge struct {
	*findings
	cluster *clusterState
	keys    record.Keys
	opts    *Options
}
