package record

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// Brief is a spec in a list that was not read in full: most of those that a list
// looks at are not wanted.
type Brief struct {
	Namespace, Name string

	value []byte
	mod   int64
}

// Labels are the task's; none if the spec cannot be read.
func (b Brief) Labels() map[string]string {
	var labels map[string]string
	_ = eachField(b.value, func(r *reader, name []byte) { // what cannot be read has none
		if string(name) == "labels" {
			r.readAny(&labels)
			return
		}
		r.skipValue()
	})

	return labels
}

// MayBePaused is false for a task that cannot be: its user did not pause it, and does
// not want it paused when it fails. Whether it is, its entry says.
func (b Brief) MayBePaused() bool {
	var paused bool
	var failures int
	err := eachField(b.value, func(r *reader, name []byte) {
		switch string(name) {
		case "paused":
			r.readBool(&paused)
		case "pause_after_failures":
			r.readInt(&failures)
		default:
			r.skipValue()
		}
	})

	return err != nil || paused || failures > 0
}

// Task is the spec. One that cannot be read has its name alone, and says so.
func (b Brief) Task() task.Task {
	t, err := DecodeTask(b.value, b.mod)
	if err != nil {
		t = task.Task{Spec: task.Spec{Namespace: b.Namespace, Name: b.Name, Description: "unreadable: " + err.Error()}, Revision: b.mod}
	}
	return t
}

// DecodeBrief keeps the record of a spec as it is; false if the key is not a spec's.
func DecodeBrief(keys Keys, e *mvccpb.KeyValue) (Brief, bool) {
	ns, name, ok := keys.ParseSpec(string(e.Key))
	return Brief{ns, name, e.Value, e.ModRevision}, ok
}
