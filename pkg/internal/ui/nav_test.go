package ui

import (
	"slices"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

// A page names the other nodes that serve it to viewers who may read nodes, unless a proxy is in front of them.
func TestNav_OtherNodes(t *testing.T) {
	board := task.Board{Nodes: []task.BoardNode{
		{Name: "web-3", Address: "http://web-3:7070", Roles: []string{task.RoleScheduler, task.RoleAPI}},
		{Name: "node-a", Address: "http://node-a:7070", Roles: []string{task.RoleAPI}},
		{Name: "worker", Address: "http://worker:7070", Roles: []string{task.RoleExecutor}},
		{Name: "starting", Roles: []string{task.RoleAPI}},
		{Name: "web-2", Address: "http://web-2:7070", Roles: []string{task.RoleAPI}},
	}}

	for _, c := range []struct {
		name   string
		counts counts
		origin string
		want   []OtherNode
	}{
		{"all", counts{known: true, readsFleet: true, board: board}, "", []OtherNode{{"web-2", "http://web-2:7070"}, {"web-3", "http://web-3:7070"}}},
		{"no right", counts{known: true, board: board}, "", nil},
		{"not known", counts{readsFleet: true, board: board}, "", nil},
		{"proxy", counts{known: true, readsFleet: true, board: board}, "https://carillon.example.com", nil},
	} {
		v := &View{server: &Server{Config: Config{Node: "node-a", Origin: c.origin}}, counts: c.counts}
		if got := v.OtherNodes(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
