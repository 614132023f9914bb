// Package overview judges what needs people. It turns a board into problems, in a fixed order of severity. "carillon top",
// the Web UI and "carillon cluster status" show its result, so they agree on what a problem is, on how many there are, and
// on the words.
//
// A problem is identified by its kind and its subject, except for warnings of the cluster, which all have the cluster as
// their subject. Both are stable: they do not change while the problem lasts, even if other problems come and go. What
// somebody did on purpose, such as draining a node, is listed as information and is not counted as something that needs
// people.
//
// The package is pure. Its texts contain names and messages of users and programs as they are, so that code that shows them
// must escape control characters and markup. They contain no times, so that they change only with the problem.
package overview

import (
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// Severity says how urgent a problem is.
type Severity string

// The severities, the most urgent first.
const (
	Critical Severity = "critical" // tasks do not fire, runs are in doubt, or it is unknown
	Warning  Severity = "warning"  // something failed, waits or is about to fail
	Info     Severity = "info"     // somebody has done this on purpose
)

// Kind is a kind of problem. Its value is stable, for programs.
type Kind string

// The kinds. The section Problems of docs/operations.md explains each of them.
const (
	ClusterWarning Kind = "warning" // a warning of the cluster that no other problem covers
	NoOwner        Kind = "no_owner"
	Stuck          Kind = "stuck"
	Overdue        Kind = "overdue"
	Unreadable     Kind = "unreadable"
	NodeGone       Kind = "node_gone"
	Silent         Kind = "silent"
	Missing        Kind = "missing"
	Ineligible     Kind = "ineligible"
	Blocked        Kind = "blocked"
	Frozen         Kind = "frozen"
	NoNode         Kind = "no_node"
	TargetDown     Kind = "target_down"
	Late           Kind = "late"
	Failing        Kind = "failing"
	Alerting       Kind = "alerting"
	Draining       Kind = "draining"
	Cordoned       Kind = "cordoned"
)

// kinds are all kinds in their order, which is that of their severities. Warnings of the cluster have two places.
var kinds = []struct {
	kind     Kind
	severity Severity
	tasks    bool   // its subjects are tasks and runs
	sign     string // a symbol for people, one column wide
	hint     string // what to do about it
	find     func(b *task.Board) []Problem
	count    func(b *task.Board) int // nil: the board lists all of them
}{
	{ClusterWarning, Critical, false, "!", "", criticalWarnings, nil}, // a warning says itself what to do
	{NoOwner, Critical, false, "!", "Check that schedulers run: carillon node list.", unownedShards, nil},
	{Stuck, Critical, false, "!", "Check the log and the load of the node, and etcd.", stuckShards, nil},
	{Overdue, Critical, true, "○", "Find out why: carillon why TASK.", overdueTasks, func(b *task.Board) int { return b.OverdueCount }},
	{Unreadable, Critical, false, "!", "Find them with carillon audit, and apply them again.", unreadableTasks, nil},
	{NodeGone, Critical, true, "?", "Start the node again, or let the retry policy of the task decide.", awayRuns, func(b *task.Board) int { return b.AwayCount }},
	{Silent, Critical, false, "!", "Check the node, and the network between the nodes.", silentNodes, nil},
	{Missing, Warning, false, "!", "Wait until they are loaded. If this lasts, check the nodes that are silent.", missingShards, nil},
	{Ineligible, Warning, false, "!", "Correct its clock, or check its log and its load.", ineligibleNodes, nil},
	{Blocked, Warning, false, "!", "Free what its host lacks, or change its limits.", blockedNodes, nil},
	{ClusterWarning, Warning, false, "!", "", otherWarnings, nil},
	{Frozen, Warning, false, "❄", "End the freeze when its reason is gone: carillon cluster unfreeze, with --namespace for one namespace.", freezes, nil},
	{NoNode, Warning, true, "…", "Start a node that matches, or change the selector of the task.", unplacedRuns, func(b *task.Board) int { return b.Waiting[task.ReasonNoNode] }},
	{TargetDown, Warning, true, "…", "Check the target of the request.", unsentRuns, func(b *task.Board) int { return b.Waiting[task.ReasonTarget] }},
	{Late, Warning, false, "○", "Check the load of the nodes, and etcd.", lateTicks, nil},
	{Failing, Warning, true, "✗", "Read the output with carillon logs, then retry or dismiss the run.", failingTasks, func(b *task.Board) int { return b.FailingCount }},
	{Alerting, Warning, true, "!", "Find out why: carillon why TASK. To say that you work on it: carillon alert ack TASK.", alertingTasks, func(b *task.Board) int { return b.AlertingCount }},
	{Draining, Info, false, "↓", "When the work on the node is done: carillon node resume.", drainingNodes, nil},
	{Cordoned, Info, false, "◐", "When the work on the node is done: carillon node resume.", cordonedNodes, nil},
}

// Problems returns the problems of a board in groups, the most severe first. Kinds that do not occur have no group.
func Problems(b *task.Board) []Group {
	var groups []Group
	for _, k := range kinds {
		g := Group{Kind: k.kind, Severity: k.severity, Sign: k.sign, Hint: k.hint, Tasks: k.tasks, Problems: k.find(b)}
		g.Total = len(g.Problems)
		if k.count != nil {
			g.Total = max(g.Total, k.count(b))
		}
		if g.Total > 0 {
			groups = append(groups, g)
		}
	}

	return groups
}

// Group is the problems of one kind and severity.
type Group struct {
	Kind     Kind
	Severity Severity
	Tasks    bool      // the subjects are tasks and runs
	Sign     string    // a symbol for people, one column wide
	Hint     string    // what to do, as sentences; "" if the problems say it themselves
	Total    int       // how many there are
	Problems []Problem // those that are listed, in the order of the board
}

// Label returns the kind in words: "node gone".
func (g Group) Label() string { return strings.ReplaceAll(string(g.Kind), "_", " ") }

// Rest returns how many problems are not listed. If the reader of the board may not read runs, these may be all of them.
func (g Group) Rest() int { return max(g.Total-len(g.Problems), 0) }

// Problem is something that a person may have to act on.
type Problem struct {
	Subject Subject
	Words   string    // what is wrong with the subject
	Since   task.Time // zero if that is not known
	Retry   task.Time // when Carillon tries again by itself; zero if that is not known
}

// Text returns the subject and what is wrong with it.
func (p Problem) Text() string {
	if p.Subject == (Subject{}) {
		return p.Words
	}
	return p.Subject.String() + ": " + p.Words
}

// Subject is what has a problem: a task, perhaps one of its runs, a whole namespace, a node or a shard. Without any of them
// it is the cluster.
type Subject struct {
	Namespace, Task, Run string
	Node                 string
	Shard                string // its number
}

// String returns the subject for people, without its run.
func (s Subject) String() string {
	switch {
	case s.Task != "":
		return s.Namespace + "/" + s.Task
	case s.Namespace != "":
		return "namespace " + s.Namespace
	case s.Node != "":
		return "node " + s.Node
	case s.Shard != "":
		return "shard " + s.Shard
	}

	return "cluster"
}

// Attention returns how many problems need people.
func Attention(groups []Group) int {
	n := 0
	for _, g := range groups {
		if g.Severity != Info {
			n += g.Total
		}
	}

	return n
}

// Summary names the kinds of problems that need people, with their numbers: "no owner", "14 failing". A single problem has
// no number.
func Summary(groups []Group) []string {
	var words []string
	for _, g := range groups {
		switch {
		case g.Severity == Info:
		case g.Total == 1:
			words = append(words, g.Label())
		default:
			words = append(words, wording.Grouped(g.Total)+" "+g.Label())
		}
	}

	return words
}

// OfCluster returns the groups that are not about single tasks and runs.
func OfCluster(groups []Group) []Group {
	return slices.DeleteFunc(slices.Clone(groups), func(g Group) bool { return g.Tasks })
}

// OfStatus returns the problems of the cluster from its status and its board. Without a board, which is nil then, warnings
// of the status stand for what only the nodes know.
func OfStatus(status client.ClusterStatus, board *task.Board) []Group {
	b := task.Board{ShardCount: status.Shards, ShardsOwned: status.ShardsOwned}
	b.Unreadable = status.Unreadable
	if board != nil {
		b = *board
	}

	// The board has those of a status that may be older by some seconds.
	b.WarningDetails, b.Freezes = status.WarningDetails, status.Freezes

	return OfCluster(Problems(&b))
}
