package api_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// takes lets the nodes of the world change their states on request.
func (w *world) takes(ctx context.Context, node, state string, by *task.Actor) error {
	if w.stubborn != nil {
		return w.stubborn
	}

	n, err := w.store.Node(ctx, node)
	if err == nil {
		n.State, n.StateBy = state, by
		w.put(w.store.Keys().Node(node), n)
	}

	return err
}

// obeysRequests lets a node change its state when other nodes request it, until the test ends.
func (w *world) obeysRequests(node string) {
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan struct{})
	w.t.Cleanup(func() { cancel(); <-ended })
	go func() {
		defer close(ended)
		_ = w.store.FollowNodeRequests(ctx, node, 0, func(r store.NodeRequest) error {
			if r.Instance != "i-"+node {
				w.t.Errorf("requested from instance %q", r.Instance)
			}

			if err := w.takes(ctx, node, r.State, r.By); err != nil {
				return err
			}

			_, err := w.store.DeleteNodeRequest(ctx, node, r.Mod)
			return err
		})
	}()
}

func TestNodes_TakeStatesThroughAnyNode(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.present("node-a", w.url)
	url := w.serve("node-b")
	w.present("node-b", url)
	w.obeysRequests("node-b")
	w.stateTimeout = 300 * time.Millisecond
	impatient := w.client(w.serve("node-e"))
	w.present("node-c", "http://127.0.0.1:1")

	for who, c := range map[string]*client.Client{"itself": w.client(url), "another": w.Client} {
		for _, step := range []struct {
			do    func(context.Context, string) (task.Node, error)
			state string
		}{{c.Nodes.Drain, task.NodeDraining}, {c.Nodes.Cordon, task.NodeCordoned}, {c.Nodes.Resume, task.NodeReady}} {
			if n, err := step.do(ctx, "node-b"); err != nil || n.Name != "node-b" || n.State != step.state || n.StateBy.String() != w.actor() {
				t.Errorf("%s: %s: %+v, %v", who, step.state, n, err)
			}
		}
	}

	wantError(t, second(impatient.Nodes.Drain(ctx, "node-c")), task.ErrUnavailable, client.CodeNodeAway)

	if kvs, err := w.etcd.Get(ctx, w.store.Keys().Root()+"requests/", clientv3.WithPrefix()); err != nil || len(kvs.Kvs) > 0 {
		t.Errorf("requests that are left: %v, %v", kvs, err)
	}

	wantError(t, second(w.Nodes.Drain(ctx, "node-x")), task.ErrNotFound, client.CodeNotFound)

	if r := w.do(request{method: "POST", path: "/v1/nodes/node-b/drain", noToken: true}); r.status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", r.status)
	}

	w.stubborn = task.ErrUnavailable
	wantError(t, second(w.Nodes.Drain(ctx, "node-a")), task.ErrUnavailable, client.CodeUnavailable)
}

// Nothing is done whose audit record may not have been written, so its outcome is not unknown.
func TestNodes_WithoutAnAuditRecordTheStateStays(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.present("node-a", w.url)
	w.writes.set(nil, func(kv.Result, error) (kv.Result, error) { return kv.Result{}, errLost })

	wantError(t, second(w.Nodes.Drain(ctx, "node-a")), task.ErrUnavailable, client.CodeUnavailable)

	if n, err := w.store.Node(ctx, "node-a"); err != nil || n.State == task.NodeDraining {
		t.Errorf("%+v, %v", n, err)
	}
}

func TestNodes_ThatGaveTheirShardsUpAreWarnedOf(t *testing.T) {
	w, ctx := newWorld(t), t.Context()

	for _, ineligible := range []string{task.IneligibleClock, task.IneligibleStalled, "new"} {
		w.put(w.store.Keys().Node("n-"+ineligible), task.Node{Name: "n-" + ineligible, State: task.NodeReady, Ineligible: ineligible, Roles: []string{task.RoleScheduler}})
	}

	st, err := w.Cluster.Status(ctx)
	must(t, err)
	all := strings.Join(st.Warnings, "\n")

	for _, words := range []string{"n-clock owns no shards: its clock", "n-stalled temporarily owns no shards", "n-new owns no shards: new", "no node is ready"} {
		if !strings.Contains(all, words) {
			t.Errorf("no warning %q in\n%s", words, all)
		}
	}

	if st.NodesReady != 0 || st.Nodes != 3 {
		t.Errorf("%d of %d are ready", st.NodesReady, st.Nodes)
	}
}

func TestNodes_ThatAreBlockedAreCountedAndWarnedOf(t *testing.T) {
	w, ctx := newWorld(t), t.Context()

	for _, name := range []string{"n1", "n2"} {
		w.put(w.store.Keys().Node(name), task.Node{Name: name, State: task.NodeReady, Blocked: []string{task.FactDiskFree}, Roles: []string{task.RoleScheduler, task.RoleExecutor}})
	}

	st, err := w.Cluster.Status(ctx)
	must(t, err)

	all := strings.Join(st.Warnings, "\n")
	if st.NodesReady != 2 || st.Blocked != 2 || !strings.Contains(all, "n2 accepts no runs: over its own limit of disk_free") || !strings.Contains(all, "no node accepts runs") {
		t.Errorf("%d of %d ready nodes are blocked; warnings:\n%s", st.Blocked, st.NodesReady, all)
	}
}

func TestCluster_ChangesNothingInARestoredEtcdUntilItIsAccepted(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	w.create("a", "@daily")
	w.present("node-a", w.url)
	wantError(t, second(w.Cluster.Recover(ctx)), task.ErrConflict, client.CodeConflict)

	w.restored = errors.New("etcd is at revision 1, and this node has seen 2")
	w.writes.set(nil, nil)
	wantError(t, second(w.Tasks.Apply(ctx, spec("b", "@daily"), client.ApplyOptions{})), task.ErrUnavailable, client.CodeRestored)
	wantError(t, second(w.Tasks.Pause(ctx, "default", "a", 0)), task.ErrUnavailable, client.CodeRestored)

	if r := w.do(request{method: "POST", path: "/v1/tasks:batch", body: "{}\n", header: map[string]string{"Content-Type": "application/x-ndjson"}}); r.status != http.StatusServiceUnavailable {
		t.Errorf("a batch: %d %s", r.status, r.body)
	}

	if n := w.writes.committed(); n != 0 {
		t.Errorf("%d commits", n)
	}

	if _, err := w.Tasks.Get(ctx, "default", "a"); err != nil {
		t.Errorf("reading: %v", err)
	}

	k, err := w.Cluster.Recover(ctx)
	if err != nil || k.Epoch != int(w.cluster.CreatedAt.Unix()) || k.ID != w.cluster.ID {
		t.Errorf("recover: %+v, %v", k, err)
	}
	if r := k.LastRestored(); r == nil || r.Epoch != k.Epoch || r.FromEpoch != 1 || r.HasGap() || r.By == nil {
		t.Errorf("the restore on record: %+v", r)
	}
	epoch := k.Epoch

	st, err := w.Cluster.Status(ctx)
	must(t, err)

	if st.Epoch != epoch {
		t.Errorf("epoch %d; want %d", st.Epoch, epoch)
	}

	// It is sufficient if any node reports it.
	w.restored = nil
	w.put(w.store.Keys().Node("node-b"), task.Node{Name: "node-b", State: task.NodeReady, Ineligible: task.IneligibleRestored})

	if k, err := w.Cluster.Recover(ctx); err != nil || k.Epoch <= epoch {
		t.Errorf("recover: %+v, %v", k, err)
	}

	// The snapshot is older than an epoch that has already begun.
	w.put(w.store.Keys().Node("node-b"), task.Node{Name: "node-b", State: task.NodeReady, Ineligible: task.IneligibleRestored, Epoch: epoch + 1_000_000})

	if k, err := w.Cluster.Recover(ctx); err != nil || k.Epoch != epoch+1_000_001 {
		t.Errorf("recover: %+v, %v", k, err)
	}

	if st, err = w.Cluster.Status(ctx); err != nil || !strings.Contains(strings.Join(st.Warnings, "\n"), "carillon cluster recover") {
		t.Errorf("warnings %q, %v", st.Warnings, err)
	}
}

// Programs identify warnings by their codes, so each has one. The texts stay in their field.
func TestCluster_WarningsHaveCodes(t *testing.T) {
	w := newWorld(t)
	w.put(w.store.Keys().Node("n"), task.Node{Name: "n", State: task.NodeReady, Roles: []string{task.RoleExecutor}, Slots: 1, Format: 3,
		Ineligible: task.IneligibleClock, Blocked: []string{task.FactDiskFree}, Stuck: 2, Unreadable: 1, APIError: "the API does not listen"})
	_, err := w.store.SetFreezes(t.Context(), store.FreezeRecord{}, task.Freezes{Holding: []task.Freeze{{Since: task.At(w.clock.now()), By: task.NewActor("ann"), Reason: "a test"}}})
	must(t, err)

	// The first token never expires. Later, there is another administrator.
	w.clock.advance(31 * 24 * time.Hour)
	_, err = w.Bindings.Put(t.Context(), task.Binding{Name: "safe", Role: "admin", Subjects: []string{"cert:safe"}, Cluster: true}, client.Writing{})
	must(t, err)

	st, err := w.Cluster.Status(t.Context())
	must(t, err)

	var codes []string
	for i, d := range st.WarningDetails {
		codes = append(codes, d.Code)
		if d.Code == "" || d.Text != st.Warnings[i] {
			t.Errorf("%+v beside %q", d, st.Warnings[i])
		}
	}

	for _, code := range []string{task.WarnNodeIneligible, task.WarnNodeBlocked, task.WarnStartsHang, task.WarnNodeUnreachable, task.WarnUnreadable,
		task.WarnShardsUnowned, task.WarnFrozen, task.WarnFreezeUnconfirmed, task.WarnNoLeader, task.WarnNoNodeReady, task.WarnBootstrapToken} {
		if !slices.Contains(codes, code) {
			t.Errorf("no %s among %q", code, codes)
		}
	}

	board, err := w.Board.Get(t.Context(), client.BoardOptions{})
	if err != nil || !slices.Equal(board.Warnings, task.WarningTexts(board.WarningDetails)) || len(board.Warnings) != len(st.Warnings) {
		t.Errorf("the board: %q, %+v, %v", board.Warnings, board.WarningDetails, err)
	}
}
