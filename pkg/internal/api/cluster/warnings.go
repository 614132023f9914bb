package cluster

import (
	"fmt"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// restoredAt are the nodes that say that etcd was restored from an older snapshot.
func restoredAt(nodes []task.Node) string {
	var names []string
	for _, n := range nodes {
		if n.Unfit == task.UnfitRestored {
			names = append(names, n.Name)
		}
	}
	return strings.Join(names, ", ")
}

// unfitWarnings are of nodes that gave their shards up by themselves, or take no runs.
func unfitWarnings(nodes []task.Node) (list []string) {
	if names := restoredAt(nodes); names != "" {
		list = append(list, fmt.Sprintf("etcd was restored from an older snapshot, as %s found: nothing fires and nothing can be changed "+
			"until an operator accepts what it holds now, with carillon cluster recover", names))
	}
	for _, n := range nodes {
		if len(n.Pressed) > 0 {
			list = append(list, fmt.Sprintf("node %s takes no runs: %s", n.Name, task.PressedWords(n.Pressed)))
		}
		if n.Stuck > 0 {
			list = append(list, fmt.Sprintf("node %s has %d starts of runs that hang: a program, a directory or a file system there does not answer", n.Name, n.Stuck))
		}
		switch n.Unfit {
		case "", task.UnfitRestored:
		case task.UnfitClock:
			list = append(list, fmt.Sprintf("node %s owns no shards: its clock jumped, or differs from that of other nodes", n.Name))
		case task.UnfitStalled:
			list = append(list, fmt.Sprintf("node %s owns no shards for a while: it did not decide what was due; its log says more", n.Name))
		default:
			list = append(list, fmt.Sprintf("node %s owns no shards: %s", n.Name, n.Unfit))
		}
	}
	return list
}

// listenWarnings are of nodes that cannot be reached as they should be.
func listenWarnings(nodes []task.Node) []string {
	var list []string
	for _, n := range nodes {
		if n.APIError != "" {
			list = append(list, fmt.Sprintf("node %s fires, but %s", n.Name, n.APIError))
		}
	}
	return list
}

// warnings are what an operator should look at.
func warnings(st client.ClusterStatus) []string {
	var list []string
	warn := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if st.Leader == "" {
		warn("there is no leader: shards are not assigned until one is elected")
	}
	if st.NodesReady == 0 {
		warn("no node is ready: nothing fires")
	}
	if n := st.Shards - st.ShardsOwned; n > 0 {
		warn("%d of %d shards have no owner that is present: their tasks do not fire", n, st.Shards)
	}
	if st.Unreadable > 0 {
		warn("%d tasks do not fire, as their entries cannot be read: the logs of the nodes name them; apply them again", st.Unreadable)
	}
	return append(list, etcdWarnings(st)...)
}
