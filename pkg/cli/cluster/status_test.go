package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestClusterStatus_ShowsAFullEtcd(t *testing.T) {
	s := client.ClusterStatus{
		ID: "c1", Shards: 8, ShardsOwned: 8, Nodes: 1, NodesReady: 1, Leader: "n1", Tasks: 1000, Unreadable: 2,
		Etcd: []client.EtcdMember{
			{Endpoint: "http://e1:2379", Version: "3.7.3", DBSize: 101 << 20, DBInUse: 60 << 20, DBQuota: 100 << 20, Leader: true, Alarms: []string{"NOSPACE"}},
			{Endpoint: "http://e2:2379", Version: "3.7.3", DBSize: 60 << 20, DBInUse: 60 << 20, DBQuota: 100 << 20, Learner: true},
			{Endpoint: "http://e3:2379", Error: "refused"},
		},
		Revisions: client.Revisions{Newest: 150, Oldest: 51},
		Room:      &client.Room{Tasks: 1300, BytesPerTask: 63 << 10, HistoryPerTask: 4.5},
		Ledger:    task.DefaultLedger, CatchUpRate: 100, LostAfter: task.DefaultLostAfter, Format: client.FormatStatus{Format: 1, Possible: 1},
		MakeSpace: []string{"etcdctl one", "etcdctl two"},
		WarningDetails: []task.Warning{{Code: task.WarnEtcdAlarm, Text: "etcd at http://e1:2379 is full"}, {Code: task.WarnUnreadable, Text: "2 tasks do not run"},
			{Code: task.WarnNodeBlocked, Text: "node n1 accepts no runs: \x1b[2Jits policy cannot be read"}},
	}
	d := factorytest.New("")
	problems := overview.OfStatus(s, nil) // the board could not be read
	if err := output.EmitOne(&d.Factory.Printer, s, s.ID, func(w *output.Details) { describeCluster(d.Factory, w, s, problems) }); err != nil {
		t.Fatal(err)
	}

	const want = `Cluster      c1 · since –
Nodes        1 of 1 ready
Leader       n1
Shards       8 of 8 owned
Tasks        1000
Active runs  0
Format       1
Catching up  100 late runs per second
Lost after   2m without contact with the node
Ledgers      remember ticks for 30d, unless history.ledger of a task says otherwise
Capacity     about 1300 tasks, at 63.0 KiB per task with 4.5 history records
Revisions    100, from 51 to 150

etcd
  http://e1:2379  leader   3.7.3  101.0 MiB of 100.0 MiB (101%)  60.0 MiB in use  NOSPACE
  http://e2:2379  learner  3.7.3  60.0 MiB of 100.0 MiB (60%)    60.0 MiB in use
  http://e3:2379  away            –                                               refused

Problems
  ! etcd at http://e1:2379 is full
  ! the entries of 2 tasks cannot be read: they do not fire
    Find them with carillon audit, and apply them again.
  ! node n1 accepts no runs: �[2Jits policy cannot be read

To free space
  etcdctl one
  etcdctl two
`
	if got := d.Out.String(); got != want {
		t.Errorf("got\n%s", got)
	}
}

// The board has problems that only the nodes know. Without it, the status is enough. What somebody has done on purpose is no
// reason to exit with 8.
func TestClusterStatus_ReadsTheBoardIfItCan(t *testing.T) {
	node := func(state string) task.Board {
		return task.Board{ShardCount: 8, ShardsOwned: 8, Nodes: []task.BoardNode{{Name: "n1", State: state}}}
	}
	stuck := node(task.NodeReady)
	stuck.Stuck = []task.BoardShard{{ID: 3, Node: "n1", Since: factorytest.At("2026-11-20T22:11:48Z")}}
	warned := client.ClusterStatus{ID: "c1", Shards: 8, ShardsOwned: 8, WarningDetails: []task.Warning{{Code: task.WarnNodeBlocked, Text: "node n1 accepts no runs"}}}

	for _, c := range []struct {
		name      string
		status    client.ClusterStatus
		board     *task.Board // nil: it cannot be read
		out, errs string
		exit      int
	}{
		{name: "calm", status: client.ClusterStatus{ID: "c1", Shards: 8, ShardsOwned: 8}, board: new(node(task.NodeReady))},
		{name: "drained on purpose", status: client.ClusterStatus{ID: "c1", Shards: 8, ShardsOwned: 8}, board: new(node(task.NodeDraining)), out: "Problems\n  - node n1: hands over 0 shards"},
		{name: "stuck", status: client.ClusterStatus{ID: "c1", Shards: 8, ShardsOwned: 8}, board: &stuck, out: "  ! shard 3: decides no ticks, on n1 · since 12s ago\n    Check the log", exit: failure.ExitFinding},
		{name: "without the board", status: warned, out: "  ! node n1 accepts no runs\n", errs: "problems that only the nodes know are missing: the board is away", exit: failure.ExitFinding},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			var answer any = c.status
			switch {
			case r.URL.Path != "/v1/board":
			case c.board == nil:
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(http.StatusForbidden)
				answer = client.Problem{Status: http.StatusForbidden, Code: client.CodeForbidden, Detail: "the board is away"}
			default:
				answer = c.board
			}
			_ = json.NewEncoder(w).Encode(answer)
		}))
		defer server.Close()

		d := factorytest.New("")
		d.ServerFlag, d.Vars["CARILLON_TOKEN"] = server.URL, "the-token"
		cmd := statusCommand(d.Factory)
		cmd.SetArgs([]string{"--exit-code"})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true

		exit := 0
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			fail := new(failure.Error)
			if !errors.As(err, &fail) {
				t.Fatalf("%s: %v", c.name, err)
			}
			exit = fail.Exit
		}
		out, errs := d.Out.String(), d.Errs.String()
		if exit != c.exit || !strings.Contains(out, c.out) || strings.Contains(out, "Problems") != (c.out != "") || !strings.Contains(errs, c.errs) || (errs != "") != (c.errs != "") {
			t.Errorf("%s: exit code %d\n%s\n%s", c.name, exit, out, errs)
		}
	}
}

// The output for programs has the problems as well. The board is not asked after the status, because a node that hangs delays
// both.
func TestClusterStatus_ListsTheProblemsForPrograms(t *testing.T) {
	board := task.Board{ShardCount: 8, ShardsOwned: 8, Nodes: []task.BoardNode{{Name: "n1", State: task.NodeCordoned}}}
	board.Stuck = []task.BoardShard{{ID: 3, Node: "n1", Since: factorytest.At("2026-11-20T22:11:48Z")}}
	boardAsked := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/v1/board" {
			close(boardAsked)
			_ = json.NewEncoder(w).Encode(board)
			return
		}

		select {
		case <-boardAsked:
		case <-time.After(10 * time.Second):
			t.Error("the board was not asked for while the status was read")
		}
		_ = json.NewEncoder(w).Encode(client.ClusterStatus{ID: "c1", Shards: 8, ShardsOwned: 8, Freezes: []task.Freeze{{Namespace: "prod"}}})
	}))
	defer server.Close()

	d := factorytest.New("")
	d.ServerFlag, d.Vars["CARILLON_TOKEN"], d.Factory.Format = server.URL, "the-token", output.FormatJSON
	cmd := statusCommand(d.Factory)
	cmd.SetArgs([]string{})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}

	var got struct {
		ID       string          `json:"id"`
		Problems json.RawMessage `json:"problems"`
	}
	var problems bytes.Buffer
	if err := json.Unmarshal(d.Out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Compact(&problems, got.Problems); err != nil {
		t.Fatal(err)
	}

	const want = `[{"severity":"critical","kind":"stuck","shard":"3","words":"decides no ticks, on n1","hint":"Check the log and the load of the node, and etcd.","since":"2026-11-20T22:11:48.000Z"},` +
		`{"severity":"warning","kind":"frozen","namespace":"prod","words":"frozen","hint":"End the freeze when its reason is gone: carillon cluster unfreeze, with --namespace for one namespace."},` +
		`{"severity":"info","kind":"cordoned","node":"n1","words":"gets no new runs, and keeps its shards","hint":"When the work on the node is done: carillon node resume."}]`
	if got.ID != "c1" || problems.String() != want {
		t.Errorf("of %s:\n%s", got.ID, problems.String())
	}
}

func TestRoughly_SaysNoMoreThanIsKnown(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 7: "7", 99: "99", 1349: "1300", 9960: "10,000", 83_900: "84,000", 418_256: "420,000", 4_182_560: "4.2 million", 41_825_600: "42 million"} {
		if got := wording.TwoDigits(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}
