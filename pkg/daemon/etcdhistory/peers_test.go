package etcdhistory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/internal/peerhistory"
	"github.com/carillonhq/carillon/pkg/task"
)

// fakeAsker answers for nodes by their addresses. All others are silent.
type fakeAsker map[string]peerhistory.Status

func (f fakeAsker) AskAll(_ context.Context, addresses []string) (list []peerhistory.Answer) {
	for _, address := range addresses {
		a := peerhistory.Answer{Address: address, Status: f[address]}
		if a.Cluster == "" {
			a.Err = errors.New("silent")
		}
		list = append(list, a)
	}

	return list
}

// newPeers returns a monitor of a node of epoch 5, and why it counts as restored.
func newPeers(t *testing.T, dir string, asker fakeAsker) (m *Monitor, s *datadir.State, reason *error) {
	t.Helper()
	s, err := datadir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if err := s.SetHistory("c", 5, 100, s.Restored()); err != nil {
		t.Fatal(err)
	}

	reason = new(error)
	m = NewMonitor(MonitorConfig{
		Node: "n1", State: s, Asker: asker, Revisions: NewRevisions(100), Logger: zap.NewNop(),
		Restored: func() error { return *reason }, SetRestored: func(err error) { *reason = err },
	})
	if err := m.CheckRecord(task.Cluster{ID: "c", Epoch: 5, Restored: []task.Restored{{Epoch: 5, ID: "r", Nodes: []string{"http://lost"}}}}); err != nil {
		t.Fatal(err)
	}

	return m, s, reason
}

// A node gives up its shards if another one that it knows follows a later history, and not otherwise.
func TestMonitor_GivesUpForALaterHistory(t *testing.T) {
	for name, c := range map[string]struct {
		other peerhistory.History
		gives bool
		isOld bool
	}{
		"the same history":     {other: peerhistory.History{Cluster: "c", Epoch: 5, Restore: "r"}},
		"a later one":          {other: peerhistory.History{Cluster: "c", Epoch: 6, Restore: "s"}, gives: true},
		"another of the epoch": {other: peerhistory.History{Cluster: "c", Epoch: 5, Restore: "s"}, gives: true},
		"an earlier one":       {other: peerhistory.History{Cluster: "c", Epoch: 4, Restore: "q"}, isOld: true},
		"another cluster":      {other: peerhistory.History{Cluster: "d", Epoch: 6, Restore: "s"}},
		"silence":              {},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			m, s, reason := newPeers(t, dir, fakeAsker{"http://n2": {History: c.other, Session: true}})
			m.ObserveNodes([]task.Node{{Name: "n1", Address: "http://n1"}, {Name: "n2", Address: "http://n2"}})
			m.AskFirst(t.Context())
			m.AskFirst(t.Context()) // does nothing

			if (*reason != nil) != c.gives || s.Restored() != c.gives {
				t.Errorf("it gives up: %v, stored: %v", *reason, s.Restored())
			}
			if old := m.OldNodes(time.Now()); len(old) > 0 {
				t.Errorf("after one answer, it reports %v", old)
			}

			m.askNodes(t.Context(), m.addresses())
			if old := m.OldNodes(time.Now()); slices.Equal(old, []string{"http://n2"}) != c.isOld {
				t.Errorf("it reports %v", old)
			}
		})
	}
}

// A node knows others after a restart, when it finds no others in etcd: those that it has seen, and those of the backup.
func TestMonitor_RemembersOtherNodes(t *testing.T) {
	dir := t.TempDir()
	m, s, _ := newPeers(t, dir, nil)
	var nodes []task.Node
	for i := range 30 {
		nodes = append(nodes, task.Node{Name: fmt.Sprintf("m%02d", i), Address: fmt.Sprintf("http://m%02d", i)})
	}
	m.ObserveNodes(nodes[:2])
	m.ObserveNodes(nodes[1:2]) // the first one is gone
	s.Close()

	m, _, _ = newPeers(t, dir, nil)
	if got, want := m.addresses(), []string{"http://lost", "http://m00", "http://m01"}; !slices.Equal(got, want) {
		t.Errorf("it knows %v, want %v", got, want)
	}

	m.ObserveNodes(nodes)
	if got := m.addresses(); len(got) != maxPeers+1 {
		t.Errorf("it knows %d others", len(got))
	}
}
