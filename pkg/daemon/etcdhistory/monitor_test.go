package etcdhistory

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// fakeCluster returns a state of the cluster as from etcd.
type fakeCluster struct{ present store.Present }

func (f fakeCluster) Present(context.Context) (store.Present, error) { return f.present, nil }

// The history in a node's data directory is compared with etcd, at the start and while the node runs.
func TestHistory_HoldsEtcdAgainstWhatWasSeen(t *testing.T) {
	lower := errors.New("a lower revision")
	for name, c := range map[string]struct {
		there     store.Present
		wentBack  error
		foreign   bool // another cluster
		restored  bool
		epoch     int // the node's epoch afterwards
		beginsNew bool
	}{
		"nothing has changed":      {there: present("c", 2), epoch: 2},
		"a lower revision":         {there: present("c", 2), wentBack: lower, restored: true, epoch: 2},
		"an older epoch":           {there: present("c", 1), restored: true, epoch: 2},
		"a new epoch":              {there: present("c", 3), epoch: 3, beginsNew: true},
		"a new epoch, lower":       {there: present("c", 3), wentBack: lower, epoch: 3, beginsNew: true},
		"another cluster":          {there: present("d", 2), foreign: true, epoch: 2, restored: true},
		"no cluster, and no proof": {there: store.Present{}, foreign: true, epoch: 2},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := datadir.Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.SetHistory("c", 2, 100, false); err != nil {
				t.Fatal(err)
			}
			var reason error
			h := NewMonitor(MonitorConfig{
				State: s, Restored: func() error { return reason }, SetRestored: func(err error) { reason = err }, Logger: zap.NewNop(), Revisions: NewRevisions(100),
				Cluster: fakeCluster{c.there},
			})
			if err := h.checkEtcd(t.Context()); (err != nil) != c.beginsNew {
				t.Errorf("while it runs: %v", err)
			}
			if c.wentBack == nil && (reason != nil) != c.restored {
				t.Errorf("while it runs it is ineligible as %v", reason)
			}
			restored, err := Compare(s, c.there, c.wentBack)
			if errors.Is(err, task.ErrInvalid) != c.foreign || !c.foreign && (err != nil || (restored != nil) != c.restored) {
				t.Errorf("when it begins: %v, %v", restored, err)
			}
			if got := s.Epoch(); got != c.epoch {
				t.Errorf("it is of epoch %d, want %d", got, c.epoch)
			}
		})
	}
}

func present(cluster string, epoch int) store.Present {
	return store.Present{Found: true, Revision: 101, Cluster: task.Cluster{ID: cluster, Epoch: epoch}}
}
