// Package overviewtest makes random boards for tests of what judges and shows them.
package overviewtest

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// At is the time of all boards.
var At = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// Most is the maximum number of items in each list of a board. The counts of a board may be higher.
const Most = 4

// Board returns a random board, in which each kind of problem occurs in about half of all cases. Nodes of one board have
// different names, and so have tasks.
func Board(r *rand.Rand) task.Board {
	b := task.Board{At: task.At(At), Node: "n0", Leader: "n0", ShardCount: 16, ShardsOwned: 16 - r.IntN(2)*r.IntN(17)}
	b.Span, b.Tasks, b.Waiting = task.Duration(10*time.Minute), 100, map[string]int{}

	made := 0
	name := func() string { made++; return fmt.Sprintf("t%d", made) }
	ago := func() task.Time { return task.At(At.Add(-time.Duration(1+r.IntN(5000)) * time.Second)) }
	some := func() int { return r.IntN(2) * r.IntN(Most+1) }
	pick := func(words ...string) string { return words[r.IntN(len(words))] }

	codes := []string{task.WarnEtcdSilent, task.WarnEtcdMember, task.WarnNoLeader, task.WarnShardsUnowned, task.WarnUnreadable, task.WarnFrozen,
		task.WarnNodeIneligible, task.WarnNodeBlocked, task.WarnEtcdRestored, task.WarnBootstrapToken, "code-of-another-version"}
	for i := range some() {
		code := pick(codes...)
		b.WarningDetails = append(b.WarningDetails, task.Warning{Code: code, Text: fmt.Sprintf("warning %d about %s", i, code)})
	}

	for i := range some() {
		n := task.BoardNode{Name: fmt.Sprintf("n%d", i), State: pick(task.NodeReady, task.NodeCordoned, task.NodeDraining), Roles: []string{task.RoleScheduler, task.RoleExecutor},
			Ineligible: pick("", "", task.IneligibleClock, task.IneligibleStalled, task.IneligibleRestored), Shards: r.IntN(9), Running: r.IntN(9)}
		if r.IntN(3) == 0 {
			n.Blocked = []string{pick(task.FactDiskFree, task.BlockedByPolicy, task.BlockedByStarts)}
		}
		if n.Silent = r.IntN(3) == 0; n.Silent {
			b.Silent = append(b.Silent, task.Silence{Node: n.Name, Reason: "no answer"})
		}
		b.Nodes = append(b.Nodes, n)
	}

	for i := range some() {
		b.Freezes = append(b.Freezes, task.Freeze{Namespace: []string{"", "prod", "test", "ops"}[i], Since: ago(), By: task.NewActor(pick("", "ann")), Reason: "INC-42"})
	}
	for i := range r.IntN(2) * r.IntN(b.ShardCount) {
		b.Missing = append(b.Missing, i)
	}
	for i := range some() {
		b.Stuck = append(b.Stuck, task.BoardShard{ID: i, Node: "n0", Since: ago(), Loading: r.IntN(2) == 0})
	}
	for range some() {
		b.Overdue = append(b.Overdue, task.BoardTick{Namespace: "prod", Task: name(), Time: ago()})
	}
	for range some() {
		b.Away = append(b.Away, task.BoardRun{Namespace: "prod", Task: name(), Run: "20261121T115500.000Z-" + name(), Node: "n9", Since: ago()})
	}
	for range some() {
		w := task.BoardWait{Namespace: "prod", Task: name(), Run: "20261121T115500.000Z-" + name(), Since: ago(), Reason: pick(task.ReasonNoNode, task.ReasonTarget, task.ReasonRetry)}
		if w.Reason == task.ReasonTarget && r.IntN(2) == 0 {
			w.Unsent = &task.Unsent{Count: 1 + r.IntN(9), First: ago(), Message: "refused"}
		}
		b.Waits = append(b.Waits, w)
		b.Waiting[w.Reason]++
	}
	for range some() {
		code := r.IntN(3)
		f := task.BoardFailing{Namespace: "prod", Task: name(), Run: "20261121T115500.000Z-" + name(), State: task.Failed, Reason: task.ReasonExit, ExitCode: &code, Node: pick("", "n0", "n1"), EndedAt: ago(), InARow: r.IntN(3)}
		if r.IntN(3) == 0 {
			f.State, f.Reason, f.ExitCode = task.Lost, task.ReasonNodeLost, nil
		}
		b.Failing = append(b.Failing, f)
	}

	for range some() {
		b.Alerting = append(b.Alerting, task.BoardAlerting{Namespace: "prod", Task: name(), Kinds: task.TaskAlertKinds[r.IntN(len(task.TaskAlertKinds)):], Severity: pick(task.AlertSeverities()...), LastSuccess: ago()})
	}
	b.AlertingCount = len(b.Alerting) + some()
	b.OverdueCount, b.AwayCount, b.FailingCount = len(b.Overdue)+some(), len(b.Away)+some(), len(b.Failing)+some()
	b.Waiting[task.ReasonNoNode] += some()
	b.Waiting[task.ReasonTarget] += some()
	b.Unreadable = some()
	b.Recent.P99MS = int64(r.IntN(2) * r.IntN(5000))
	b.Recent.MaxMS = 2 * b.Recent.P99MS

	return b
}
