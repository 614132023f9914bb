package api

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// nodes reads the nodes that are present, with how many shards each owns, and
// the owners of all shards.
func (s *server) nodes(c *call) ([]task.Node, []store.Owner, error) {
	nodes, owners, err := s.Store.Fleet(c.ctx())
	if err != nil {
		return nil, nil, err
	}
	owned := map[string]int{}
	for _, o := range owners {
		owned[o.Node]++
	}
	for i := range nodes {
		n := &nodes[i]
		n.Shards = owned[n.Name]
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		if n.Roles == nil {
			n.Roles = []string{}
		}
	}
	return nodes, owners, nil
}

// listNodes serves the nodes.
func (s *server) listNodes(c *call) (answer, error) {
	nodes, _, err := s.nodes(c)
	if err != nil {
		return answer{}, err
	}
	return all(nodes)
}

// getNode serves one of them.
func (s *server) getNode(c *call) (answer, error) {
	name := c.r.PathValue("node")
	if err := task.CheckName("node", name); err != nil {
		return answer{}, err
	}
	nodes, _, err := s.nodes(c)
	if err != nil {
		return answer{}, err
	}
	for _, n := range nodes {
		if n.Name == name {
			return answer{status: http.StatusOK, body: n}, nil
		}
	}
	return answer{}, fmt.Errorf("node %s: %w", name, task.ErrNotFound)
}

// listShards serves all shards, in the order of their numbers.
func (s *server) listShards(c *call) (answer, error) {
	owners, err := s.Store.Owners(c.ctx())
	if err != nil {
		return answer{}, err
	}
	records, err := s.Store.ShardRecords(c.ctx(), s.Cluster.Shards)
	if err != nil {
		return answer{}, err
	}
	shards := make([]task.Shard, len(records))
	for i, r := range records {
		shards[i] = task.Shard{ID: i, Previous: []task.Assignment{}, Watermark: r.Watermark.Time, Tasks: r.Tasks, Queued: r.Queued}
	}
	for _, o := range owners {
		if o.Shard >= len(shards) {
			continue
		}
		sh := &shards[o.Shard]
		sh.Node, sh.Fence, sh.Since = o.Node, o.Fence, o.Since
		sh.Previous = append(sh.Previous, o.Previous...)
	}
	return all(shards)
}

// clusterStatus serves how the cluster fares.
func (s *server) clusterStatus(c *call) (answer, error) {
	nodes, owners, err := s.nodes(c)
	if err != nil {
		return answer{}, err
	}
	totals, err := s.Store.Totals(c.ctx())
	if err != nil {
		return answer{}, err
	}
	st := client.ClusterStatus{
		ID: s.Cluster.ID, Shards: s.Cluster.Shards, Epoch: s.Cluster.Epoch, Schema: s.Cluster.Schema, CreatedAt: s.Cluster.CreatedAt,
		CatchUpRate: s.Cluster.CatchUp(), LostAfter: s.Cluster.EffectiveLostAfter(),
		Leader: totals.Leader, Nodes: len(nodes), Tasks: totals.Tasks, ActiveRuns: totals.ActiveRuns,
		Etcd: []client.EtcdMember{}, Warnings: []string{}, MakeSpace: []string{},
	}
	if p, err := s.Store.Present(c.ctx()); err == nil && p.Found {
		st.Epoch, st.CatchUpRate, st.LostAfter = p.Cluster.Epoch, p.Cluster.CatchUp(), p.Cluster.EffectiveLostAfter() // this node may not have heard of it yet
		st.ChangedBy, st.ChangedAt, st.Change = p.Cluster.ChangedBy, p.Cluster.ChangedAt, p.Cluster.Change
	}
	for _, n := range nodes {
		st.Unreadable += n.Unreadable
		if n.State == task.NodeReady && n.Unfit == "" {
			st.NodesReady++
			if len(n.Pressed) > 0 {
				st.Pressed++
			}
		}
	}
	for _, o := range owners {
		if slices.ContainsFunc(nodes, func(n task.Node) bool { return n.Name == o.Node }) {
			st.ShardsOwned++
		}
	}
	s.lookAtEtcd(c.ctx(), &st)
	s.lookAtFormat(c, &st)
	s.lookAtFreezes(c, &st)
	st.Warnings = append(append(append([]string{}, unfitWarnings(nodes)...), st.Warnings...), warnings(st)...)
	if st.NodesReady > 0 && !slices.ContainsFunc(nodes, func(n task.Node) bool { return n.Takes() }) {
		st.Warnings = append(st.Warnings, "no node takes runs: what falls due waits for one")
	}
	st.Warnings = append(st.Warnings, listenWarnings(nodes)...)
	st.Warnings = append(st.Warnings, expiryWarnings(nodes, s.Now())...)
	st.MakeSpace = append(st.MakeSpace, makeSpace(st, s.Etcd)...)
	return answer{status: http.StatusOK, body: st}, nil
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

// version serves what answers.
func (s *server) version(*call) (answer, error) {
	return answer{status: http.StatusOK, body: client.Version{Version: s.Version, Node: s.Node, Cluster: s.Cluster.ID, Go: runtime.Version()}}, nil
}

// health serves whether the process answers: if this does, it does.
func (s *server) health(c *call) (answer, error) { return plain(c, "ok\n") }

// ready serves whether the node does its work.
func (s *server) ready(c *call) (answer, error) {
	if err := s.Ready(); err != nil {
		return answer{}, fail(http.StatusServiceUnavailable, client.CodeNotReady, "not ready: %s", err)
	}
	return plain(c, "ready\n")
}

func plain(c *call, text string) (answer, error) {
	c.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(c.w, text) // the caller is gone
	return answer{}, nil
}

// registerPlain adds what is not part of the document.
func (s *server) registerPlain() {
	s.mux.Handle("GET /metrics", promhttp.HandlerFor(s.Gatherer, promhttp.HandlerOpts{}))
	document := sync.OnceValues(func() (written [2][]byte, err error) {
		written[0], written[1], err = s.document()
		return written, err
	})
	for i, format := range []string{"json", "yaml"} {
		s.mux.HandleFunc("GET /openapi."+format, func(w http.ResponseWriter, r *http.Request) {
			written, err := document()
			if err != nil {
				s.writeError(w, r, err)
				return
			}
			w.Header().Set("Content-Type", "application/openapi+"+format)
			_, _ = w.Write(written[i]) // the caller is gone
		})
	}
}
