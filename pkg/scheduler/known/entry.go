package known

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/carillonhq/carillon/pkg/scheduler/definition"
	"github.com/carillonhq/carillon/pkg/scheduler/taskstate"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Definitions parses the parts of entries that many tasks have in common. All shards of a node share the results.
type Definitions interface {
	ParseTiming(text []byte) (*definition.Timing, error)
	ParsePolicy(fields, labels []byte) (*definition.Policy, error)
}

// maxEntrySize is the largest size of an entry in bytes. The API writes little more than the action. A commit
// has room for several entries of this size, each with a run. An entry that fits into no commit would block
// its shard.
const maxEntrySize = 2 * task.MaxAction

// ReadEntry decodes an entry into t. If it returns an error, t has no ticks; some of its fields may have
// been changed.
func (r *Records) ReadEntry(t *taskstate.Task, value []byte, d Definitions) (err error) {
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
	text := make([]byte, 0, int(t.NameLen)+len(p.UID)+len(p.Action))
	text = append(append(append(text, t.FullName()...), p.UID...), p.Action...)
	t.Text, t.UIDLen, t.Secret = string(text), uint8(len(p.UID)), action.NeedsKey()
	t.SetHTTP(action.HTTP != nil)

	r.Tasks.Put(t) // its text has changed
	t.Checked = 0  // nothing is known of the new action
	t.From, t.Anchor, t.Paused, t.Generation = p.From.UnixMilli(), p.Anchor.UnixMilli(), p.Paused, int32(p.Generation)

	return nil
}
