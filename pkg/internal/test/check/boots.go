package check

import (
	"maps"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// bootJudge judges the runs of tasks with the schedule @reboot (G62): each is written together with the record of the boot that it
// is for, a task has one of them for each boot, and none is missing when the record says that all tasks have theirs.
//
// It does not judge selectors: the leader may decide by labels and namespaces that have just changed. So it expects no run of
// a task with a selector, nor in a namespace that was limited to nodes once.
type bootJudge struct {
	judge
	boots   map[string]record.Boot // by node
	runs    map[bootRef]string     // the run for each boot
	limited map[string]bool        // namespaces that were limited to nodes
}

// bootRef identifies a boot of a node, for a task.
type bootRef struct{ uid, node, boot string }

// bootChange is a change of the record of a boot.
type bootChange struct {
	key  string
	boot *record.Boot // nil: deleted
}

func newBootJudge(base judge) *bootJudge {
	return &bootJudge{judge: base, boots: map[string]record.Boot{}, runs: map[bootRef]string{}, limited: map[string]bool{}}
}

// checkRevision judges the runs for boots that a revision creates, and applies its changes.
func (j *bootJudge) checkRevision(d *delta) {
	for _, ch := range d.sortedRuns() {
		rec, key := ch.recordedRun()
		if rec == nil || !rec.IsBootRun() || rec.RetryOf != "" || j.cluster.taskOf(ch.ref).runs[ch.id] != nil {
			continue
		}

		if b := d.boots[rec.TargetNode]; b == nil || b.boot == nil || b.boot.BootID != rec.BootID {
			j.breachTask("G62", ch.ref, 0, key, "run %s is for boot %s of node %s, which this revision does not handle", ch.id, rec.BootID, rec.TargetNode)
		}

		of := bootRef{rec.UID, rec.TargetNode, rec.BootID}
		if other := j.runs[of]; other != "" {
			j.breachTask("G62", ch.ref, 0, key, "both runs %s and %s are for boot %s of node %s", other, ch.id, rec.BootID, rec.TargetNode)
		}
		j.runs[of] = ch.id
	}

	for _, node := range slices.Sorted(maps.Keys(d.boots)) {
		ch := d.boots[node]
		before := j.boots[node]
		if ch.boot != nil && ch.boot.Done && before.BootID != ch.boot.BootID {
			j.checkComplete(ch)
		}
	}

	j.applyChanges(d)
}

// applyChanges applies the records of boots that a revision writes.
func (j *bootJudge) applyChanges(d *delta) {
	for node, ch := range d.boots {
		if ch.boot == nil {
			delete(j.boots, node)
		} else {
			j.boots[node] = *ch.boot
		}
	}
}

// applyNamespaces notes which namespaces are limited to nodes.
func (j *bootJudge) applyNamespaces(events []Event) {
	for _, ev := range events {
		if name, below := strings.CutPrefix(ev.Key, j.keys.Namespaces()); below && !ev.Deleted {
			if n, err := record.Decode[task.Namespace](ev.Value); err != nil || n.Nodes != "" {
				j.limited[name] = true
			}
		}
	}
}

// checkComplete checks that no run is missing for a boot that one transaction has handled. It compares the entries, so they are those that
// are in force before its revision.
func (j *bootJudge) checkComplete(ch *bootChange) {
	b := ch.boot
	if !j.cluster.nodes[b.Node].takesRuns {
		return
	}

	for ref, t := range j.cluster.tasks {
		if t.entry == nil || j.limited[ref.Namespace] {
			continue
		}

		e := &t.entry.Entry
		since := j.cluster.liveKeys[j.keys.BootTask(ref)]
		if !e.Schedule.AtBoot() || e.Paused || e.Target.Selector != "" || e.Target.Strategy == task.StrategyFirst || since >= b.Registered {
			continue
		}
		if since == 0 {
			j.breachTask("G62", ref, 0, ch.key, "the task runs at boot, but no key says so")
			continue
		}
		if j.runs[bootRef{e.UID, b.Node, b.BootID}] == "" {
			j.breachTask("G62", ref, 0, ch.key, "boot %s of node %s is handled, but the task has no run for it", b.BootID, b.Node)
		}
	}
}
