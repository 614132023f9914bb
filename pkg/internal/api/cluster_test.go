package api_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/kv/embedded/embeddedtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// status reads the cluster's status until it includes that of etcd, which may take two seconds each time.
func (w *world) status() (st client.ClusterStatus) {
	w.t.Helper()
	eventually(w.t, func() bool {
		var err error
		st, err = w.Cluster.Status(w.t.Context())
		must(w.t, err)

		return st.Revisions.Newest > 0 && !slices.ContainsFunc(st.Etcd, func(m client.EtcdMember) bool { return m.Error != "" })
	})

	return st
}

func TestCluster(t *testing.T) {
	server := embeddedtest.StartServer(t)
	for name, w := range map[string]*world{"over gRPC": newWorldOn(t, server.Client()), "in the process": newWorldOn(t, server.InProcess())} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			w.t = t
			k := w.store.Keys()

			st := w.status()
			if st.ID != w.cluster.ID || st.Shards != shards || st.ShardsOwned != 0 || st.Leader != "" || len(st.Warnings) != 3 {
				t.Errorf("empty: %+v", st)
			}

			w.present("node-a", w.url)
			w.present("node-b", "http://127.0.0.1:1")

			for i := range shards {
				w.put(k.Owner(i), record.Owner{Node: []string{"node-a", "node-b", "node-a"}[i%3], Since: task.At(w.clock.now()), Term: 3})
			}

			w.put(k.Leader()+"7f", "node-b")
			_, err := w.Tasks.Apply(ctx, spec("a", "@daily"), client.ApplyOptions{})
			must(t, err)
			w.active("node-a", "a", id(1, "aaaa"))

			st = w.status()
			if st.Leader != "node-b" || st.Nodes != 2 || st.NodesReady != 2 || st.ShardsOwned != shards || st.Tasks != 1 || st.ActiveRuns != 1 || st.Warnings == nil || len(st.Warnings) != 0 {
				t.Errorf("running: %+v", st)
			}

			if len(st.Etcd) != 1 || st.Etcd[0].Version == "" || st.Etcd[0].DBSize == 0 || !st.Etcd[0].Leader || st.Etcd[0].Error != "" || st.Etcd[0].Endpoint == "" ||
				st.Etcd[0].Fault != "" || st.Etcd[0].Applied == 0 || st.Revisions.Newest == 0 || st.Revisions.Oldest != 1 || st.Room != nil || st.MakeSpace == nil {
				t.Errorf("etcd: %+v", st)
			}

			nodes, err := w.Nodes.List(ctx)
			must(t, err)

			if len(nodes) != 2 || nodes[0].Shards != 5 || nodes[1].Shards != 3 || nodes[0].Revision == 0 {
				t.Errorf("nodes: %+v", nodes)
			}

			if n, err := w.Nodes.Get(ctx, "node-b"); err != nil || n.Shards != 3 || n.Instance != "i-node-b" {
				t.Errorf("node: %+v, %v", n, err)
			}

			wantError(t, second(w.Nodes.Get(ctx, "node-c")), task.ErrNotFound, client.CodeNotFound)
			all, err := w.Shards.List(ctx)
			must(t, err)

			mine := all[ref("default", "a").Shard]
			if len(all) != shards || mine.Tasks != 1 || mine.Fence == 0 || mine.Node == "" || mine.Previous == nil {
				t.Errorf("shards: %+v", all)
			}

			v, err := w.Version(ctx)
			must(t, err)

			if v.Version != "1.2.3" || v.Node != "node-a" || v.Cluster != w.cluster.ID {
				t.Errorf("version: %+v", v)
			}
		})
	}
}

func TestPanic_Is500AndMetricsCount(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")
	w.spool = nil
	w.ended("a", id(1, "aaaa"), task.Succeeded, nil)
	w.writes.set(nil, nil)
	w.panics.Store(true)

	r := w.do(request{method: "GET", path: "/readyz"})
	if r.status != 500 || r.Code != client.CodeInternal || strings.Contains(r.body, "on purpose") {
		t.Errorf("got %d %s", r.status, r.body)
	}

	w.panics.Store(false)
	must(t, w.Ready(t.Context()))
	w.do(request{method: "GET", path: "/v1/anything/" + strings.Repeat("x", 50)})
	m := w.do(request{method: "GET", path: "/metrics"}).body

	for _, want := range []string{
		`carillon_api_requests_total{code="500",method="GET",route="/readyz"} 1`,
		`carillon_api_requests_total{code="200",method="GET",route="/readyz"} 1`,
		`carillon_api_requests_total{code="201",method="POST",route="/v1/namespaces/{ns}/tasks"} 1`,
		`carillon_api_requests_total{code="404",method="GET",route="none"} 1`,
		`carillon_api_request_duration_seconds_count{method="GET",route="/readyz"} 2`,
	} {
		if !strings.Contains(m, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
}

func TestClient_UnknownWhenTheAnswerIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hold := make(chan struct{})
	t.Cleanup(func() { close(hold) })
	w.writes.set(nil, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // it is sent within that time
	defer cancel()

	w.hold.Store(&hold)
	wantError(t, second(w.Tasks.Create(ctx, "default", spec("a", "@daily"))), task.ErrUnknown, client.CodeUnknown)
	w.hold.Store(nil)
}

// The format depends on what the nodes understand and on what an operator requests.
func TestFormat(t *testing.T) {
	const now, next = store.NewestFormat, store.NewestFormat + 1
	w := newWorld(t)
	ctx := t.Context()
	w.store = w.store.Understanding(next) // the server simulates a later version
	w.url = w.serve("node-a")
	w.Client = w.client(w.url)
	k := w.store.Keys()
	node := func(name, version string, understands, writes int) {
		w.put(k.Node(name), task.Node{Name: name, State: task.NodeReady, Version: version, Format: understands, Writes: writes})
	}

	node("node-a", "v2", next, now)
	node("node-b", "v1", now, now)

	f, err := w.Cluster.SetFormat(ctx, 0)
	if err != nil || f.Format != now || f.Possible != now || f.Because != "node node-b (v1)" {
		t.Errorf("while node-b is an old version: %+v, %v", f, err)
	}

	node("node-b", "v2", next, now)

	if f, err = w.Cluster.SetFormat(ctx, 0); err != nil || f.Format != next || f.Because != "" {
		t.Errorf("when all are upgraded: %+v, %v", f, err)
	}

	node("node-b", "v1", now, now)
	st, err := w.Cluster.Status(ctx)
	must(t, err)

	if st.Format.Format != next || st.Format.Possible != now || !strings.Contains(strings.Join(st.Warnings, "\n"), fmt.Sprint("node-b (v1) only understands record format ", now)) {
		t.Errorf("with one that should not be there: %+v", st)
	}

	wantError(t, second(w.Cluster.SetFormat(ctx, 0)), task.ErrConflict, client.CodeConflict)
	wantError(t, second(w.Cluster.SetFormat(ctx, next+1)), task.ErrInvalid, task.CodeOutOfRange)
	wantError(t, second(w.Cluster.SetFormat(ctx, -1)), task.ErrInvalid, task.CodeOutOfRange)

	if f, err = w.Cluster.SetFormat(ctx, now); err != nil || f.Format != next || f.Wanted != now || f.WaitsFor != "" {
		t.Errorf("%+v, %v", f, err)
	}

	node("node-a", "v2", next, next)

	if f, err = w.Cluster.Format(ctx); err != nil || !strings.Contains(f.WaitsFor, "node-a") {
		t.Errorf("while node-a writes format %d: %+v, %v", next, f, err)
	}

	node("node-b", "v2", next, next)

	if f, err = w.Cluster.SetFormat(ctx, 0); err != nil || f.Format != next || f.Wanted != 0 {
		t.Errorf("the way back is broken off: %+v, %v", f, err)
	}
}

// The members of an etcd that is not embedded in several agents cannot be changed.
func TestMembers_OfAnotherEtcdStay(t *testing.T) {
	server := embeddedtest.StartServer(t)
	for name, w := range map[string]*world{"over gRPC": newWorldOn(t, server.Client()), "in the process": newWorldOn(t, server.InProcess())} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			members, err := w.Members.List(t.Context())
			if err != nil || len(members) != 1 || members[0].ID == "" || members[0].Name == "" {
				t.Errorf("%+v, %v", members, err)
			}

			wantError(t, second(w.Members.Remove(t.Context(), "n1")), task.ErrConflict, client.CodeConflict)
			wantError(t, second(w.Members.Add(t.Context(), client.AddMemberRequest{Name: "n1", PeerURL: "http://127.0.0.1:2380"})), task.ErrConflict, client.CodeConflict)

			for _, u := range []string{"", "127.0.0.1:2380", "http://127.0.0.1", "ftp://a:1", "http://a:1/x"} {
				wantError(t, second(w.Members.Add(t.Context(), client.AddMemberRequest{Name: "n1", PeerURL: u})), task.ErrInvalid, task.CodeBadValue)
			}
		})
	}
}

// twoMembers is the list of members of an embedded etcd, as its first member gives it.
type twoMembers struct {
	clientv3.Cluster
	removed []uint64
}

func (t *twoMembers) MemberList(context.Context, ...clientv3.OpOption) (*clientv3.MemberListResponse, error) {
	return &clientv3.MemberListResponse{
		Header:  &etcdserverpb.ResponseHeader{MemberId: 1},
		Members: []*etcdserverpb.Member{{ID: 1, Name: "n1", PeerURLs: []string{"http://127.0.0.1:1"}}, {ID: 2, Name: "n2", PeerURLs: []string{"http://127.0.0.1:2"}}},
	}, nil
}

func (t *twoMembers) MemberRemove(_ context.Context, id uint64) (*clientv3.MemberRemoveResponse, error) {
	t.removed = append(t.removed, id)
	return &clientv3.MemberRemoveResponse{}, nil
}

// noStatus does not answer requests for the status of a member.
type noStatus struct{ clientv3.Maintenance }

func (noStatus) Status(context.Context, string) (*clientv3.StatusResponse, error) {
	return nil, context.DeadlineExceeded
}

func (noStatus) AlarmList(context.Context) (*clientv3.AlarmResponse, error) {
	return nil, context.DeadlineExceeded
}

// A node does not remove its own member, even while etcd has no leader and does not answer for its status.
func TestMembers_TheNodesOwnStays(t *testing.T) {
	w := newWorld(t)
	members := &twoMembers{}
	w.etcd.Cluster, w.etcd.Maintenance = members, noStatus{}

	for _, name := range []string{"n1", "1"} {
		wantError(t, second(w.Members.Remove(t.Context(), name)), task.ErrConflict, client.CodeConflict)
	}
	must(t, second(w.Members.Remove(t.Context(), "n2")))

	if !slices.Equal(members.removed, []uint64{2}) {
		t.Errorf("removed %d, want only 2", members.removed)
	}
}
