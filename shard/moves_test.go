package shard_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/shard"
)

// tell describes changes in short: shard, fence or revision, and next owner.
func tell(c shard.Changes) string {
	var all []string
	for _, moves := range []struct {
		how  string
		list []store.Move
	}{{"!", c.AtOnce}, {"loaded ", c.Loaded}, {"forced ", c.Forced}} {
		for _, m := range moves.list {
			all = append(all, fmt.Sprintf("%s%d:%s→%s/%d", moves.how, m.From.Shard, m.From.Node, m.To, m.Handover))
		}
	}

	for _, h := range c.Prepare {
		all = append(all, fmt.Sprintf("prepare %d→%s/%d", h.Shard, h.To, h.Revision))
	}

	for _, h := range c.Withdraw {
		all = append(all, fmt.Sprintf("withdraw %d→%s/%d", h.Shard, h.To, h.Revision))
	}

	return strings.Join(all, ", ")
}

func TestMoves_HandsOverWhatFires(t *testing.T) {
	node := func(name string, change ...func(*task.Node)) task.Node {
		n := task.Node{Name: name, State: task.NodeReady, Weight: 1, Roles: []string{task.RoleScheduler}, Revision: int64(name[0])}
		for _, f := range change {
			f(&n)
		}
		return n
	}

	draining := func(n *task.Node) { n.State = task.NodeDraining }
	ineligible := func(n *task.Node) { n.Ineligible = "clock" }
	executor := func(n *task.Node) { n.Roles = []string{task.RoleExecutor} }
	again := func(n *task.Node) { n.Revision = 999 }
	owned := func(by ...string) (owners []record.Owner) {
		for id, name := range by {
			owners = append(owners, record.Owner{Shard: id, Node: name, Fence: int64(100 + id)})
		}
		return owners
	}

	moving := func(id int, to string, ready int64) record.Handover {
		return record.Handover{Shard: id, To: to, Ready: ready, Revision: int64(200 + id)}
	}

	a, b := node("a"), node("b")
	for name, c := range map[string]struct {
		nodes     []task.Node
		owners    []record.Owner
		handovers []record.Handover
		notes     shard.Notes
		want      string
	}{
		"a node joins":                           {[]task.Node{a, b}, owned("a", "a"), nil, shard.Notes{}, "prepare 1→b/0"},
		"a node drains":                          {[]task.Node{node("a", draining), b}, owned("a", "b"), nil, shard.Notes{}, "prepare 0→b/0"},
		"a node dies":                            {[]task.Node{b}, owned("a", "b"), nil, shard.Notes{}, "!0:a→b/0"},
		"a node is ineligible":                   {[]task.Node{node("a", ineligible), b}, owned("a", "b"), nil, shard.Notes{}, "!0:a→b/0"},
		"an ineligible node drains":              {[]task.Node{node("a", ineligible, draining), b}, owned("a", "b"), nil, shard.Notes{}, "!0:a→b/0"},
		"a scheduler came back as none":          {[]task.Node{node("a", executor), b}, owned("a", "b"), nil, shard.Notes{}, "!0:a→b/0"},
		"it is being loaded":                     {[]task.Node{a, b}, owned("a", "a"), []record.Handover{moving(1, "b", 0)}, shard.Notes{}, ""},
		"it is loaded":                           {[]task.Node{a, b}, owned("a", "a"), []record.Handover{moving(1, "b", 'b')}, shard.Notes{}, "loaded 1:a→b/201"},
		"by a session that is over":              {[]task.Node{a, node("b", again)}, owned("a", "a"), []record.Handover{moving(1, "b", 'b')}, shard.Notes{}, ""},
		"it has had its time":                    {[]task.Node{a, b}, owned("a", "a"), []record.Handover{moving(1, "b", 0)}, shard.Notes{Late: map[int]bool{1: true}}, "forced 1:a→b/201"},
		"its owner dies meanwhile":               {[]task.Node{b}, owned("a", "b"), []record.Handover{moving(0, "b", 0)}, shard.Notes{}, "!0:a→b/200"},
		"its owner becomes ineligible":           {[]task.Node{node("a", ineligible), b}, owned("a", "b"), []record.Handover{moving(0, "b", 0)}, shard.Notes{}, "!0:a→b/200"},
		"its next owner dies":                    {[]task.Node{node("a", draining), node("c")}, owned("a", "c"), []record.Handover{moving(0, "b", 0)}, shard.Notes{}, "prepare 0→c/200"},
		"its next owner dies, loaded":            {[]task.Node{node("a", draining), node("c")}, owned("a", "c"), []record.Handover{moving(0, "b", 'b')}, shard.Notes{}, "prepare 0→c/200"},
		"its next owner is ineligible, and late": {[]task.Node{node("a", draining), node("b", ineligible), node("c")}, owned("a", "c"), []record.Handover{moving(0, "b", 'b')}, shard.Notes{Late: map[int]bool{0: true}}, "prepare 0→c/200"},
		"the joined node dies":                   {[]task.Node{a}, owned("a", "a"), []record.Handover{moving(1, "b", 0)}, shard.Notes{}, "withdraw 1→b/201"},
		"the drain is called off":                {[]task.Node{a, b}, owned("a", "b"), []record.Handover{moving(0, "b", 'b')}, shard.Notes{}, "withdraw 0→b/200"},
		"nobody is left":                         {nil, owned("a", "a"), []record.Handover{moving(1, "b", 'b')}, shard.Notes{}, "withdraw 1→b/201"},
		"an unreadable handover":                 {[]task.Node{a, b}, owned("a", "b"), []record.Handover{moving(0, "", 0)}, shard.Notes{}, "withdraw 0→/200"},
		"of a shard that is none":                {[]task.Node{a, b}, owned("a", "b"), []record.Handover{moving(7, "b", 'b')}, shard.Notes{}, "withdraw 7→b/207"},
		"to its own owner":                       {[]task.Node{a, b}, owned("a", "b"), []record.Handover{moving(0, "a", 'a')}, shard.Notes{}, "withdraw 0→a/200"},
		"a newcomer waits":                       {[]task.Node{a, b}, owned("a", "a"), nil, shard.Notes{Newcomers: map[string]bool{"b": true}}, ""},
		"a newcomer that loads goes":             {[]task.Node{a, b}, owned("a", "a"), []record.Handover{moving(1, "b", 0)}, shard.Notes{Newcomers: map[string]bool{"b": true}}, "withdraw 1→b/201"},
		"all are newcomers":                      {[]task.Node{b}, owned("a", "a"), nil, shard.Notes{Newcomers: map[string]bool{"b": true}}, "!0:a→b/0, !1:a→b/0"},
		"one drains, the other is new":           {[]task.Node{node("a", draining), b}, owned("a", "a"), nil, shard.Notes{Newcomers: map[string]bool{"b": true}}, "prepare 0→b/0, prepare 1→b/0"},
		"most are gone":                          {[]task.Node{a}, owned("b", "c"), []record.Handover{moving(1, "a", 'a')}, shard.Notes{Hold: true}, ""},
	} {
		got := tell(shard.Moves(2, store.Lineup{Nodes: c.nodes, Owners: c.owners, Handovers: c.handovers}, c.notes))
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A plan may be carried out shard by shard in any order: nothing that is prepared is withdrawn, sent
// elsewhere, or followed by another move.
func TestMoves_ArePlannedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const count = 64
		weights := rapid.SliceOfN(rapid.IntRange(1, 3), 2, 6).Draw(t, "weights")
		l := store.Lineup{}
		for i, w := range weights {
			l.Nodes = append(l.Nodes, task.Node{Name: fmt.Sprint("n", i), State: task.NodeReady, Weight: w, Roles: []string{task.RoleScheduler}, Revision: 1})
		}

		first := rapid.IntRange(1, len(weights)).Draw(t, "nodes at first")
		for _, m := range shard.Moves(count, store.Lineup{Nodes: l.Nodes[:first]}, shard.Notes{}).AtOnce {
			l.Owners = append(l.Owners, record.Owner{Shard: m.From.Shard, Node: m.To, Fence: 1})
		}

		if rapid.Bool().Draw(t, "one drains") {
			l.Nodes[rapid.IntRange(0, len(weights)-1).Draw(t, "which")].State = task.NodeDraining
		}

		planned := shard.Moves(count, l, shard.Notes{}).Prepare
		for i := range planned {
			planned[i].Revision = 5
		}

		l.Handovers = planned
		for _, i := range rapid.Permutation(indexes(len(planned))).Draw(t, "order") {
			c := shard.Moves(count, l, shard.Notes{})
			if len(c.Prepare)+len(c.Withdraw)+len(c.AtOnce) > 0 {
				t.Fatalf("with %d to go: %s", len(l.Handovers), tell(c))
			}

			id, to := planned[i].Shard, planned[i].To
			l.Owners[id].Node = to
			var left []record.Handover
			for _, h := range l.Handovers {
				if h.Shard != id {
					left = append(left, h)
				}
			}

			l.Handovers = left
		}

		if c := shard.Moves(count, l, shard.Notes{}); tell(c) != "" {
			t.Fatalf("when all is done: %s", tell(c))
		}
	})
}

func indexes(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}
