package record

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// Brief is a spec of a list that has not been decoded completely. A list filters specs by a few
// fields and needs only some of them.
type Brief struct {
	Namespace, Name string

	value []byte // the record
	mod   int64  // its mod revision
}

// Labels returns the labels of the task, or none if the spec cannot be read.
func (b Brief) Labels() map[string]string {
	var labels map[string]string
	_ = eachField(b.value, func(r *reader, name []byte) {
		if string(name) == "labels" {
			r.readAny(&labels)
			return
		}
		r.skipValue()
	})

	return labels
}

// Task decodes the spec. If that fails, the result has only the name, and the error as its
// description.
func (b Brief) Task() task.Task {
	t, err := DecodeTask(b.value, b.mod)
	if err != nil {
		t = task.Task{Spec: task.Spec{Namespace: b.Namespace, Name: b.Name, Description: "unreadable: " + err.Error()}, Revision: b.mod}
	}
	return t
}

// DecodeBrief returns the record of a spec without decoding it. It returns false if the key is
// not that of a spec.
func DecodeBrief(keys Keys, e *mvccpb.KeyValue) (Brief, bool) {
	ns, name, ok := keys.ParseSpec(string(e.Key))
	return Brief{ns, name, e.Value, e.ModRevision}, ok
}
