package overview

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// lateFrom is the 99th percentile of the lateness from which ticks count as late.
const lateFrom = time.Second

// ofCluster returns a problem that concerns the cluster.
func ofCluster(format string, args ...any) []Problem {
	return []Problem{{Words: fmt.Sprintf(format, args...)}}
}

// ofEach returns the problems of items. An item whose problem has no words has none.
func ofEach[T any](items []T, problemOf func(item T) Problem) []Problem {
	var list []Problem
	for _, item := range items {
		if p := problemOf(item); p.Words != "" {
			list = append(list, p)
		}
	}

	return list
}

// warnings returns the warnings of the cluster, except for those that another problem covers. The board has nodes only for
// readers who may read them, and the number of unreadable tasks only for readers of all namespaces. For others, the warning
// is all there is.
func warnings(b *task.Board, critical bool) []Problem {
	covered := map[string]bool{
		task.WarnShardsUnowned: true, task.WarnFrozen: true, task.WarnUnreadable: b.Unreadable > 0,
		task.WarnNodeIneligible: len(b.Nodes) > 0, task.WarnNodeBlocked: len(b.Nodes) > 0,
	}

	return ofEach(b.WarningDetails, func(w task.Warning) Problem {
		if covered[w.Code] || task.IsCriticalWarning(w.Code) != critical {
			return Problem{}
		}
		return Problem{Words: w.Text}
	})
}

func criticalWarnings(b *task.Board) []Problem { return warnings(b, true) }
func otherWarnings(b *task.Board) []Problem    { return warnings(b, false) }

// unownedShards returns one problem for all shards without an owner.
func unownedShards(b *task.Board) []Problem {
	n := b.ShardCount - b.ShardsOwned
	if n <= 0 {
		return nil
	}
	return ofCluster("%d of %d shards have no owner: their tasks do not fire", n, b.ShardCount)
}

// missingShards returns one problem for all shards that are not on the board. Those without an owner are never on it, and
// are a problem of their own.
func missingShards(b *task.Board) []Problem {
	n := len(b.Missing)
	if n <= max(b.ShardCount-b.ShardsOwned, 0) {
		return nil
	}
	return ofCluster("%d of %d shards have not answered (%s): their tasks are neither counted nor listed", n, b.ShardCount, wording.NamedShards(b.Missing))
}

func stuckShards(b *task.Board) []Problem {
	return ofEach(b.Stuck, func(s task.BoardShard) Problem {
		words := "decides no ticks"
		if s.Loading {
			words = "is being loaded"
		}
		return Problem{Subject: Subject{Shard: strconv.Itoa(s.ID)}, Words: words + ", on " + s.Node, Since: s.Since}
	})
}

func overdueTasks(b *task.Board) []Problem {
	return ofEach(b.Overdue, func(t task.BoardTick) Problem {
		return Problem{Subject: Subject{Namespace: t.Namespace, Task: t.Task}, Words: "a tick is due and not decided", Since: t.Due()}
	})
}

// unreadableTasks returns one problem for all tasks that cannot be read, because the board does not name them.
func unreadableTasks(b *task.Board) []Problem {
	if b.Unreadable == 0 {
		return nil
	}
	return ofCluster("the entries of %s cannot be read: they do not fire", wording.Plural(int64(b.Unreadable), "task"))
}

func awayRuns(b *task.Board) []Problem {
	return ofEach(b.Away, func(r task.BoardRun) Problem {
		return Problem{Subject: Subject{Namespace: r.Namespace, Task: r.Task, Run: r.Run}, Words: "ran on " + r.Node + ", which is gone: lost, unless it comes back", Since: r.Began()}
	})
}

func silentNodes(b *task.Board) []Problem {
	return ofEach(b.Silent, func(s task.Silence) Problem {
		return Problem{Subject: Subject{Node: s.Node}, Words: s.Reason + ": its data is missing"}
	})
}

// ineligibleNodes returns the nodes that own no shards. If etcd was restored, all nodes have given up their shards, and the
// warning about it names them.
func ineligibleNodes(b *task.Board) []Problem {
	restored := slices.ContainsFunc(b.WarningDetails, func(w task.Warning) bool { return w.Code == task.WarnEtcdRestored })

	return ofEach(b.Nodes, func(n task.BoardNode) Problem {
		if restored && n.Ineligible == task.IneligibleRestored {
			return Problem{}
		}
		return Problem{Subject: Subject{Node: n.Name}, Words: wording.IneligibleText(n.Ineligible)}
	})
}

func blockedNodes(b *task.Board) []Problem {
	return ofEach(b.Nodes, func(n task.BoardNode) Problem {
		if len(n.Blocked) == 0 {
			return Problem{}
		}
		return Problem{Subject: Subject{Node: n.Name}, Words: "accepts no runs: " + task.DescribeBlocked(n.Blocked)}
	})
}

func drainingNodes(b *task.Board) []Problem {
	return ofEach(b.Nodes, func(n task.BoardNode) Problem {
		if n.State != task.NodeDraining {
			return Problem{}
		}
		words := fmt.Sprintf("hands over %s and waits for %s", wording.Plural(int64(n.Shards), "shard"), wording.Plural(int64(n.Running), "run"))
		return Problem{Subject: Subject{Node: n.Name}, Words: words}
	})
}

func cordonedNodes(b *task.Board) []Problem {
	return ofEach(b.Nodes, func(n task.BoardNode) Problem {
		if n.State != task.NodeCordoned {
			return Problem{}
		}
		return Problem{Subject: Subject{Node: n.Name}, Words: "gets no new runs, and keeps its shards"}
	})
}

func freezes(b *task.Board) []Problem {
	return ofEach(b.Freezes, func(f task.Freeze) Problem {
		words := "frozen"
		if f.Namespace == "" {
			words = "the cluster is frozen"
		}
		if f.By != nil {
			words += " by " + f.By.Name()
		}
		if f.Reason != "" {
			words += ": " + f.Reason
		}
		return Problem{Subject: Subject{Namespace: f.Namespace}, Words: words, Since: f.Since}
	})
}

func unplacedRuns(b *task.Board) []Problem {
	return ofEach(b.Waits, func(w task.BoardWait) Problem {
		if w.Reason != task.ReasonNoNode {
			return Problem{}
		}
		return Problem{Subject: Subject{Namespace: w.Namespace, Task: w.Task, Run: w.Run}, Words: "no available node matches its selector", Since: w.Since}
	})
}

// unsentRuns returns runs whose own requests were not sent. Runs that wait behind them are only counted.
func unsentRuns(b *task.Board) []Problem {
	return ofEach(b.Waits, func(w task.BoardWait) Problem {
		u := w.Unsent
		if w.Reason != task.ReasonTarget || u == nil {
			return Problem{}
		}
		words := cmp.Or(u.Message, "not sent") + ", " + wording.Plural(int64(u.Count), "attempt")
		return Problem{Subject: Subject{Namespace: w.Namespace, Task: w.Task, Run: w.Run}, Words: words, Since: u.First, Retry: w.NotBefore}
	})
}

func lateTicks(b *task.Board) []Problem {
	p99, most := time.Duration(b.Recent.P99MS)*time.Millisecond, time.Duration(b.Recent.MaxMS)*time.Millisecond
	if p99 < lateFrom {
		return nil
	}
	return ofCluster("in the last minute, 1 of 100 ticks was late by %s or more, at most %s", task.Duration(p99).Approximate(), task.Duration(most).Approximate())
}

func failingTasks(b *task.Board) []Problem {
	return ofEach(b.Failing, func(f task.BoardFailing) Problem {
		words := Cause(f)
		if f.Node != "" {
			words += " on " + f.Node
		}
		if f.InARow > 1 {
			words += ", " + wording.Grouped(f.InARow) + " in a row"
		}
		return Problem{Subject: Subject{Namespace: f.Namespace, Task: f.Task, Run: f.Run}, Words: words, Since: f.EndedAt}
	})
}

// alertingTasks returns the tasks that are not failing but have open alerts. How long an expectation has not been met is not on the
// board, so the last success stands for it.
func alertingTasks(b *task.Board) []Problem {
	return ofEach(b.Alerting, func(a task.BoardAlerting) Problem {
		return Problem{Subject: Subject{Namespace: a.Namespace, Task: a.Task}, Words: wording.UnmetText(a.Kinds), Since: a.LastSuccess}
	})
}

// Cause returns how the run of a failing task ended, in a few words: "exit 1". Tasks that failed in the same way on
// different nodes have the same cause.
func Cause(f task.BoardFailing) string {
	if f.State == "" {
		return "a run failed, timed out or was lost" // the reader may not read runs
	}
	if f.Reason == task.ReasonSignal {
		return "killed by a signal" // the board does not name it
	}
	return wording.RunResult(task.Run{State: f.State, Reason: f.Reason, ExitCode: f.ExitCode}, time.Time{})
}
