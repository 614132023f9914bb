package known

import (
	"fmt"
	"time"

	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/task"
)

// Opening describes how a worker found its shard when it became the owner. It is used for the reasons of
// missed ticks.
type Opening struct {
	At   time.Time // by the owner's clock
	Mark time.Time // the watermark: ticks up to here had been decided
}

// DescribeMissed returns the evidence why ticks of t were missed, for people. node is the owner.
func (o Opening) DescribeMissed(reason, node string, r *Records, t *taskstate.Task, now time.Time) string {
	at := func(t time.Time) string { return task.At(t).Format(time.RFC3339Nano) }

	switch reason {
	case task.ReasonNoOwner:
		text := fmt.Sprintf("%s opened shard %d at %s", node, r.Shard, at(o.At))
		if isMark(o.Mark) {
			text += "; the ticks of its tasks had been decided up to " + at(o.Mark)
		}
		return text
	case task.ReasonWindow:
		return fmt.Sprintf("decided at %s, and missed.window is %s; %s", at(now), t.Policy.Missed.Window, o.describeOutage(node, r))
	case task.ReasonDeadline:
		return fmt.Sprintf("decided at %s, and start_deadline is %s; %s", at(now), task.Duration(t.Policy.Deadline), o.describeOutage(node, r))
	}

	return fmt.Sprintf("decided at %s; %s", at(now), o.describeOutage(node, r))
}

// describeOutage returns since when this node has owned the shard, and up to which time it had decided.
func (o Opening) describeOutage(node string, r *Records) string {
	text := fmt.Sprintf("%s has owned shard %d since %s", node, r.Shard, task.At(o.At).Format(time.RFC3339Nano))
	if isMark(r.Watermark.Time.Time) {
		text += ", and had decided up to " + r.Watermark.Time.Format(time.RFC3339Nano)
	}
	return text
}

// isMark reports whether a watermark was ever moved: that of a new cluster is at time zero.
func isMark(mark time.Time) bool { return mark.UnixMilli() > 0 }
