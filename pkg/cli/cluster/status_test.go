package cluster

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
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

func TestRoughly_SaysNoMoreThanIsKnown(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 7: "7", 99: "99", 1349: "1300", 9960: "10,000", 83_900: "84,000", 418_256: "420,000", 4_182_560: "4.2 million", 41_825_600: "42 million"} {
		if got := wording.TwoDigits(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}
