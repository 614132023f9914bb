package overview_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/internal/overview/overviewtest"
	"github.com/carillonhq/carillon/pkg/task"
)

func ago(d time.Duration) task.Time { return task.At(overviewtest.At.Add(-d)) }

// line is a problem in short.
func line(g overview.Group, p overview.Problem) string {
	text := fmt.Sprintf("%s %s | %s", g.Severity, g.Kind, p.Text())
	if p.Subject.Run != "" {
		text += " | run " + p.Subject.Run
	}
	if !p.Since.IsZero() {
		text += " | " + overviewtest.At.Sub(p.Since.Time).String()
	}
	if !p.Retry.IsZero() {
		text += " | again in " + p.Retry.Sub(overviewtest.At).String()
	}

	return text
}

// lines returns all problems, and a line for those that are not listed.
func lines(groups []overview.Group) []string {
	var list []string
	for _, g := range groups {
		for _, p := range g.Problems {
			list = append(list, line(g, p))
		}
		if n := g.Rest(); n > 0 {
			list = append(list, fmt.Sprintf("%s %s | %d more", g.Severity, g.Kind, n))
		}
	}

	return list
}

// Each kind of problem, and the words for it.
func TestProblems_OfEachKind(t *testing.T) {
	t.Parallel()

	code := 69
	for _, c := range []struct {
		name string
		edit func(b *task.Board)
		want []string
	}{
		{"nothing", func(*task.Board) {}, nil},
		{"shards without an owner", func(b *task.Board) { b.ShardsOwned, b.Missing = 250, []int{1, 2, 3, 4, 5, 6} },
			[]string{"critical no_owner | 6 of 256 shards have no owner: their tasks do not fire"}},
		{"shards that have not answered", func(b *task.Board) { b.Missing = []int{17} },
			[]string{"warning missing | 1 of 256 shards have not answered (17): their tasks are neither counted nor listed"}},
		{"stuck shards", func(b *task.Board) {
			b.Stuck = []task.BoardShard{{ID: 17, Node: "n2", Since: ago(12 * time.Second)}, {ID: 0, Node: "n2", Since: ago(9 * time.Second), Loading: true}}
		}, []string{"critical stuck | shard 17: decides no ticks, on n2 | 12s", "critical stuck | shard 0: is being loaded, on n2 | 9s"}},
		{"overdue ticks, of which one is not listed", func(b *task.Board) {
			b.OverdueCount, b.Overdue = 2, []task.BoardTick{{Namespace: "prod", Task: "web", Time: ago(time.Hour), DueAt: ago(5 * time.Second)}}
		}, []string{"critical overdue | prod/web: a tick is due and not decided | 5s", "critical overdue | 1 more"}},
		{"unreadable tasks", func(b *task.Board) { b.Unreadable = 2 },
			[]string{"critical unreadable | the entries of 2 tasks cannot be read: they do not fire"}},
		{"runs whose node is gone", func(b *task.Board) {
			b.AwayCount, b.Away = 1, []task.BoardRun{{Namespace: "prod", Task: "web", Run: "r1", Node: "n4", Since: ago(time.Minute)}}
		}, []string{"critical node_gone | prod/web: ran on n4, which is gone: lost, unless it comes back | run r1 | 1m0s"}},
		{"a node that does not answer", func(b *task.Board) { b.Silent = []task.Silence{{Node: "n3", Reason: "no answer within 1s"}} },
			[]string{"critical silent | node n3: no answer within 1s: its data is missing"}},
		{"nodes that own no shards", func(b *task.Board) {
			b.Nodes = []task.BoardNode{{Name: "a", Ineligible: task.IneligibleClock}, {Name: "b", Ineligible: task.IneligibleStalled}, {Name: "c", Ineligible: task.IneligibleRestored}, {Name: "d", Ineligible: "tired"}}
		}, []string{
			"warning ineligible | node a: owns no shards, because its clock jumped or differs from the clocks of other nodes",
			"warning ineligible | node b: owns no shards for now, because it did not decide ticks that were due",
			"warning ineligible | node c: owns no shards, because etcd was restored from an older snapshot", "warning ineligible | node d: owns no shards: tired",
		}},
		{"a node that is blocked and drains", func(b *task.Board) {
			b.Nodes = []task.BoardNode{{Name: "a", State: task.NodeDraining, Shards: 86, Running: 1, Blocked: []string{task.FactDiskFree}}}
		}, []string{"warning blocked | node a: accepts no runs: over its own limit of disk_free", "info draining | node a: hands over 86 shards and waits for 1 run"}},
		{"a cordoned node", func(b *task.Board) {
			b.Nodes = []task.BoardNode{{Name: "a", State: task.NodeCordoned}, {Name: "b", State: task.NodeReady}}
		},
			[]string{"info cordoned | node a: gets no new runs, and keeps its shards"}},
		{"warnings of the cluster", func(b *task.Board) {
			b.WarningDetails = []task.Warning{{Code: task.WarnEvenMembers, Text: "even"}, {Code: task.WarnEtcdAlarm, Text: "full"}, {Code: "code-of-another-version", Text: "new"}, {Text: "no code"}}
		}, []string{"critical warning | full", "warning warning | even", "warning warning | new", "warning warning | no code"}},
		{"freezes", func(b *task.Board) {
			b.Freezes = []task.Freeze{{Since: ago(time.Hour), By: &task.Actor{Subject: "ann", Token: "k3vq7t2m5xw4hzra"}, Reason: "INC-42"}, {Namespace: "billing"}}
		}, []string{"warning frozen | the cluster is frozen by ann: INC-42 | 1h0m0s", "warning frozen | namespace billing: frozen"}},
		{"runs that no node matches", func(b *task.Board) {
			b.Waiting = map[string]int{task.ReasonNoNode: 2, task.ReasonRetry: 7}
			b.Waits = []task.BoardWait{{Namespace: "prod", Task: "gpu", Run: "r1", Reason: task.ReasonNoNode, Since: ago(time.Minute)}, {Namespace: "prod", Task: "x", Run: "r2", Reason: task.ReasonRetry}}
		}, []string{"warning no_node | prod/gpu: no available node matches its selector | run r1 | 1m0s", "warning no_node | 1 more"}},
		{"targets that are down, with a run that waits behind another one", func(b *task.Board) {
			b.Waiting = map[string]int{task.ReasonTarget: 3}
			u := &task.Unsent{Count: 7, First: ago(110 * time.Second), Message: "connection refused"}
			b.Waits = []task.BoardWait{
				{Namespace: "prod", Task: "orders", Run: "r1", Reason: task.ReasonTarget, Since: ago(4 * time.Minute), NotBefore: ago(-12 * time.Second), Unsent: u},
				{Namespace: "prod", Task: "orders", Run: "r2", Reason: task.ReasonTarget, Since: ago(3 * time.Minute)},
				{Namespace: "prod", Task: "mail", Run: "r3", Reason: task.ReasonTarget, Unsent: &task.Unsent{Count: 1, First: ago(time.Second)}},
			}
		}, []string{"warning target_down | prod/orders: connection refused, 7 attempts | run r1 | 1m50s | again in 12s",
			"warning target_down | prod/mail: not sent, 1 attempt | run r3 | 1s", "warning target_down | 1 more"}},
		{"problems for a reader who may not read runs", func(b *task.Board) {
			b.FailingCount, b.Failing, b.AwayCount = 1, []task.BoardFailing{{Namespace: "prod", Task: "web"}}, 2
		}, []string{"critical node_gone | 2 more", "warning failing | prod/web: a run failed, timed out or was lost"}},
		{"ticks that are nearly late", func(b *task.Board) { b.Recent = task.Recent{Fired: 1000, P99MS: 999, MaxMS: 60_000} }, nil},
		{"late ticks", func(b *task.Board) { b.Recent = task.Recent{Fired: 1000, P99MS: 1000, MaxMS: 65_000} },
			[]string{"warning late | in the last minute, 1 of 100 ticks was late by 1s or more, at most 1m 5s"}},
		{"failing tasks", func(b *task.Board) {
			b.FailingCount = 1004
			b.Failing = []task.BoardFailing{
				{Namespace: "prod", Task: "web", Run: "r1", State: task.Failed, Reason: task.ReasonExit, ExitCode: &code, Node: "n2", EndedAt: ago(time.Minute), InARow: 1008},
				{Namespace: "prod", Task: "slow", Run: "r2", State: task.TimedOut, Reason: task.ReasonTimeout, InARow: 1},
				{Namespace: "ops", Task: "probe", Run: "r3", State: task.Lost, Reason: task.ReasonNodeLost, Node: "n4"},
				{Namespace: "ops", Task: "kill", Run: "r4", State: task.Failed, Reason: task.ReasonSignal},
			}
		}, []string{
			"warning failing | prod/web: exit 69 on n2, 1,008 in a row | run r1 | 1m0s", "warning failing | prod/slow: timed out | run r2",
			"warning failing | ops/probe: lost on n4 | run r3", "warning failing | ops/kill: killed by a signal | run r4", "warning failing | 1000 more",
		}},
		{"tasks with open alerts", func(b *task.Board) {
			b.AlertingCount = 3
			b.Alerting = []task.BoardAlerting{
				{Namespace: "shop", Task: "sync", Kinds: []task.AlertKind{task.AlertSuccessWithin, task.AlertSuccessBy}, Severity: "critical", LastSuccess: ago(time.Hour)},
				{Namespace: "shop", Task: "mail", Kinds: []task.AlertKind{task.AlertFailures}, Severity: "error"},
			}
		}, []string{"warning alerting | shop/sync: no success in time, no success by the deadline | 1h0m0s", "warning alerting | shop/mail: the last run failed", "warning alerting | 1 more"}},
		{"counts that are lower than the lists", func(b *task.Board) {
			b.Overdue = []task.BoardTick{{Namespace: "prod", Task: "web", Time: ago(5 * time.Second)}}
		},
			[]string{"critical overdue | prod/web: a tick is due and not decided | 5s"}},
		{"only a count", func(b *task.Board) { b.FailingCount = 3 }, []string{"warning failing | 3 more"}},
	} {
		b := task.Board{At: task.At(overviewtest.At), ShardCount: 256, ShardsOwned: 256}
		c.edit(&b)
		if got := lines(overview.Problems(&b)); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// A warning is a problem of its own only if nothing else on the board says the same to this reader.
func TestProblems_SayNothingTwice(t *testing.T) {
	t.Parallel()

	all := []task.Warning{
		{Code: task.WarnShardsUnowned, Text: "unowned"}, {Code: task.WarnFrozen, Text: "frozen"}, {Code: task.WarnUnreadable, Text: "unreadable"},
		{Code: task.WarnNodeIneligible, Text: "ineligible"}, {Code: task.WarnNodeBlocked, Text: "blocked"}, {Code: task.WarnEtcdRestored, Text: "restored"},
	}
	warned := func(b task.Board) (texts []string) {
		for _, g := range overview.Problems(&b) {
			for _, p := range g.Problems {
				if g.Kind == overview.ClusterWarning {
					texts = append(texts, p.Words)
				}
			}
		}
		return texts
	}

	b := task.Board{ShardCount: 8, ShardsOwned: 7, WarningDetails: all, Freezes: []task.Freeze{{}}}
	if got := warned(b); !slices.Equal(got, []string{"restored", "unreadable", "ineligible", "blocked"}) {
		t.Errorf("for a reader of the cluster alone: %q", got)
	}

	b.Unreadable, b.Nodes = 1, []task.BoardNode{{Name: "a", Ineligible: task.IneligibleRestored}, {Name: "b", Ineligible: task.IneligibleClock}, {Name: "c", Blocked: []string{task.FactLoad1}}}
	if got := warned(b); !slices.Equal(got, []string{"restored"}) {
		t.Errorf("for a reader of everything: %q", got)
	}
	if got := strings.Join(lines(overview.Problems(&b)), "\n"); strings.Contains(got, "node a") || !strings.Contains(got, "ineligible | node b") {
		t.Errorf("a restored etcd is there twice, or hides other nodes:\n%s", got)
	}

	b.WarningDetails = nil
	if got := strings.Join(lines(overview.Problems(&b)), "\n"); !strings.Contains(got, "ineligible | node a") {
		t.Errorf("without the warning, nothing says that etcd was restored:\n%s", got)
	}
}

// documentedKinds returns the severities and kinds that the documentation explains, in its order.
func documentedKinds(t *testing.T) (list []string) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}

	_, section, _ := strings.Cut(string(text), "\n## Problems\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\|").FindAllStringSubmatch(section, -1) {
		list = append(list, m[2]+" "+m[1])
	}

	return list
}

// Whatever is on a board, problems come in the order of the documentation, each only once, and the totals cover what is
// listed. The documentation explains each kind, and no others.
func TestProblems_OfRandomBoards(t *testing.T) {
	t.Parallel()

	order, occurred := documentedKinds(t), map[string]bool{}
	for seed := range uint64(2000) {
		b := overviewtest.Board(rand.New(rand.NewPCG(seed, 1)))
		groups := overview.Problems(&b)

		last, attention := -1, 0
		seen := map[string]bool{}
		for _, g := range groups {
			name := string(g.Severity) + " " + string(g.Kind)
			occurred[name] = true

			place := slices.Index(order, name)
			if place <= last {
				t.Fatalf("seed %d: %s is out of order, or not documented: %q", seed, name, order)
			}
			last = place

			if g.Total < len(g.Problems) || g.Total == 0 || g.Sign == "" {
				t.Fatalf("seed %d: %+v", seed, g)
			}
			if g.Severity != overview.Info {
				attention += g.Total
			}

			for _, p := range g.Problems {
				key := string(g.Kind) + fmt.Sprintf("%q", []string{p.Subject.Namespace, p.Subject.Task, p.Subject.Run, p.Subject.Node, p.Subject.Shard})
				if g.Kind == overview.ClusterWarning {
					key += p.Words
				}
				if seen[key] || p.Words == "" {
					t.Fatalf("seed %d: %s is there twice, or has no words", seed, key)
				}
				seen[key] = true
			}
		}

		if got := overview.Attention(groups); got != attention {
			t.Fatalf("seed %d: %d need attention, want %d", seed, got, attention)
		}
	}

	if len(occurred) != len(order) {
		t.Errorf("of %q, only these occurred: %v", order, occurred)
	}
	if rank := map[string]int{"critical": 0, "warning": 1, "info": 2}; !slices.IsSortedFunc(order, func(a, b string) int { return rank[strings.Fields(a)[0]] - rank[strings.Fields(b)[0]] }) {
		t.Errorf("the order is not that of the severities: %q", order)
	}
}

// Names and messages of users reach the front ends as they are. These escape them, each in its way.
func TestProblems_KeepHostileTexts(t *testing.T) {
	t.Parallel()

	const hostile = "\x1b[31m<b onload=x>&\u202e\x00"
	b := task.Board{
		Silent:         []task.Silence{{Node: hostile, Reason: hostile}},
		Freezes:        []task.Freeze{{Namespace: hostile, By: task.NewActor(hostile), Reason: hostile}},
		WarningDetails: []task.Warning{{Code: hostile, Text: hostile}},
		Nodes:          []task.BoardNode{{Name: hostile, State: hostile, Ineligible: hostile}},
	}
	b.Overdue = []task.BoardTick{{Namespace: hostile, Task: hostile}}
	b.Failing = []task.BoardFailing{{Namespace: hostile, Task: hostile, Node: hostile}}

	groups := overview.Problems(&b)
	for _, g := range groups {
		for _, p := range g.Problems {
			if !strings.Contains(p.Text(), hostile) {
				t.Errorf("%s: %q", g.Kind, p.Text())
			}
		}
	}
	if len(groups) != 6 {
		t.Errorf("%q", lines(groups))
	}
}

// The status alone has most problems of the cluster. With the board, all of them are listed, and none of single tasks.
func TestOfStatus(t *testing.T) {
	t.Parallel()

	status := client.ClusterStatus{Shards: 8, ShardsOwned: 7, Unreadable: 1, Freezes: []task.Freeze{{Namespace: "prod", Reason: "INC-42"}},
		WarningDetails: []task.Warning{{Code: task.WarnShardsUnowned, Text: "1 of 8 shards"}, {Code: task.WarnNodeBlocked, Text: "node a accepts no runs"}, {Code: task.WarnFrozen, Text: "prod is frozen"}}}
	want := []string{
		"critical no_owner | 1 of 8 shards have no owner: their tasks do not fire", "critical unreadable | the entries of 1 task cannot be read: they do not fire",
		"warning warning | node a accepts no runs", "warning frozen | namespace prod: frozen: INC-42",
	}
	if got := lines(overview.OfStatus(status, nil)); !slices.Equal(got, want) {
		t.Errorf("without the board:\n%s", strings.Join(got, "\n"))
	}

	board := task.Board{ShardCount: 8, ShardsOwned: 8, Nodes: []task.BoardNode{{Name: "a", Blocked: []string{task.FactLoad1}}}}
	board.Stuck = []task.BoardShard{{ID: 3, Node: "a"}}
	board.Overdue = []task.BoardTick{{Namespace: "prod", Task: "web", Time: ago(time.Minute)}}
	want = []string{"critical stuck | shard 3: decides no ticks, on a", "warning blocked | node a: accepts no runs: over its own limit of load1", "warning frozen | namespace prod: frozen: INC-42"}
	if got := lines(overview.OfStatus(status, &board)); !slices.Equal(got, want) {
		t.Errorf("with the board:\n%s", strings.Join(got, "\n"))
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()

	b := task.Board{ShardCount: 8, Nodes: []task.BoardNode{{Name: "a", State: task.NodeDraining}}}
	b.FailingCount, b.OverdueCount = 1234, 2
	if got := strings.Join(overview.Summary(overview.Problems(&b)), ", "); got != "no owner, 2 overdue, 1,234 failing" {
		t.Error(got)
	}
}
