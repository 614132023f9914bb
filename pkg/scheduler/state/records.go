package state

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Records is what is known about a shard's records, from events, from the owner's commits, and from reads.
type Records struct {
	Shard int
	Keys  record.Keys

	// Tasks are the tasks of the shard by namespace/name, including those with only runs or history
	// left.
	Tasks Tasks
	// Watermark is the last known watermark, and WatermarkRev its mod revision, which the next commit
	// compares.
	Watermark    record.Watermark
	WatermarkRev int64

	// Links connect the tasks with those that run after them.
	Links Links

	parts record.EntryParts // scratch space for splitting entries
}

// TaskNamed returns the task with the given name (namespace/name). It adds an empty one if there is none.
func (r *Records) TaskNamed(name string) *Task {
	t := r.Tasks.Get(name)
	if t == nil {
		t = &Task{Text: strings.Clone(name), NameLen: uint16(len(name)), At: -1, Row: -1}
		r.Tasks.Put(t)
	}

	return t
}

// TaskOf returns the task that an event is about, as TaskNamed does.
func (r *Records) TaskOf(ev *store.ShardEvent) *Task { return r.TaskNamed(ev.Task) }

// CoveredByWatermark reports whether the task existed when the watermark was written, so that the watermark
// determines which of its ticks are decided (G4).
func (r *Records) CoveredByWatermark(t *Task) bool { return t.Create <= r.Watermark.Seen }

// NextUndecided returns the task's first tick that neither the entry's from nor the watermark decides, in
// Unix milliseconds, or 0 if there is none. See "Covered entries" in docs/architecture.md.
func (r *Records) NextUndecided(t *Task) int64 {
	after, mark := t.From, r.Watermark.Time.UnixMilli()
	if t.Paused {
		// A pause with an end acts as a from: ticks up to its end do not exist.
		until, _ := t.Silence()
		after = max(after, until)
	}

	covered := r.CoveredByWatermark(t)
	if covered && mark > after {
		// All ticks that were due before the watermark's time are decided. At exactly that time, only those
		// of tasks up to Watermark.Last may be.
		after = max(after, t.LastDue(mark-1))
	}

	tick := t.After(after)
	if covered && tick != 0 && r.Watermark.Decided(task.At(Instant(t.Due(tick))), t.FullName()) {
		return t.After(tick)
	}

	return tick
}

// Definitions parses the parts of entries that many tasks have in common. All shards of a node share the results.
type Definitions interface {
	ParseTiming(text []byte) (*Timing, error)
	ParsePolicy(fields, labels []byte) (*Policy, error)
}

// maxEntrySize is the largest size of an entry in bytes. The API writes little more than the action. A commit
// has room for several entries of this size, each with a run. An entry that fits into no commit would block
// its shard.
const maxEntrySize = 2 * task.MaxAction

// ReadEntry decodes an entry into t. If it returns an error, t has no ticks; some of its fields may have
// been changed.
func (r *Records) ReadEntry(t *Task, value []byte, d Definitions) (err error) {
	if len(value) > maxEntrySize {
		return fmt.Errorf("%w: an entry of %d bytes; at most %d are read", task.ErrInvalid, len(value), maxEntrySize)
	}

	p := &r.parts
	if err := p.Split(value); err != nil {
		return err
	}

	// A key with an invalid name was not written by the API. Its runs could not be addressed.
	namespace, name, _ := strings.Cut(t.FullName(), "/")
	if err := errors.Join(task.CheckName("namespace", namespace), task.CheckName("name", name)); err != nil {
		return err
	}
	if len(p.UID) > math.MaxUint8 || p.Generation != int64(int32(p.Generation)) {
		return fmt.Errorf("%w: uid or generation", task.ErrInvalid)
	}

	// Parse the whole action now: one that cannot be read must fail here and not on a node.
	action, err := record.DecodeAction(p.Action)
	if err != nil {
		return err
	}
	if t.Policy, err = d.ParsePolicy(p.Policy, p.Labels); err != nil {
		return err
	}
	if t.Timing, err = d.ParseTiming(p.Timing); err != nil {
		return err
	}

	var own *task.Own
	if len(p.Own) > 0 {
		o, err := record.DecodeOwn(p.Own)
		if err != nil {
			return err
		}
		own = &o
	}

	// From here on nothing can fail.
	t.SetOwn(own)
	t.Text = joinText(t.FullName(), p.UID, p.Action)
	t.UIDLen, t.Secret = uint8(len(p.UID)), action.NeedsKey()
	t.SetHTTP(action.HTTP != nil)
	t.SetWorkflow(action.Workflow != nil)

	r.Tasks.Put(t) // its text has changed
	t.Checked = 0  // nothing is known of the new action
	t.From, t.Anchor, t.Paused, t.Generation = p.From.UnixMilli(), p.Anchor.UnixMilli(), p.Paused, int32(p.Generation)

	return nil
}

// joinText returns a Task.Text. It allocates only the result: garbage of the same size between the texts of a million tasks would
// stay in memory as free slots.
func joinText(name string, uid, action []byte) string {
	var b strings.Builder
	b.Grow(len(name) + len(uid) + len(action))
	b.WriteString(name)
	b.Write(uid)
	b.Write(action)

	return b.String()
}

// Opening describes how a worker found its shard when it became the owner. It is used for the reasons of
// missed ticks.
type Opening struct {
	At   time.Time // by the owner's clock
	Mark time.Time // the watermark: ticks up to here had been decided
}

// DescribeMissed returns the evidence why ticks of t were missed, for people. node is the owner.
func (o Opening) DescribeMissed(reason, node string, r *Records, t *Task, now time.Time) string {
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
