package record

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// DecodeAlert decodes an alert. ok is false if the key is not that of an alert. If the value cannot be read, the alert has
// only what its key says, and err is set.
func DecodeAlert(keys Keys, e *mvccpb.KeyValue) (a task.Alert, shard int, ok bool, err error) {
	a, shard, ok = keys.ParseAlert(string(e.Key))
	if !ok {
		return a, shard, false, nil
	}

	value, err := Decode[task.Alert](e.Value)
	if err != nil {
		value = task.Alert{}
	}

	value.Namespace, value.Task, value.Kind, value.Receiver, value.Code = a.Namespace, a.Task, a.Kind, a.Receiver, a.Code
	value.ID, value.Mod = e.CreateRevision, e.ModRevision

	return value, shard, true, err
}

// EncodeAlert encodes an alert without what its key says.
func EncodeAlert(a task.Alert) string {
	a.ID, a.Namespace, a.Task, a.Kind, a.Receiver, a.Code = 0, "", "", "", "", ""
	return Encode(a)
}

// DecodeSilence decodes a silence. ok is false if the key is not that of a silence, or if the value cannot be read.
func DecodeSilence(keys Keys, e *mvccpb.KeyValue) (s task.AlertSilence, ok bool) {
	namespace, id, ok := keys.ParseSilence(string(e.Key))
	if !ok {
		return s, false
	}

	s, err := Decode[task.AlertSilence](e.Value)
	s.Namespace, s.ID, s.Mod = namespace, id, e.ModRevision

	return s, err == nil
}

// EncodeSilence encodes a silence without what its key says.
func EncodeSilence(s task.AlertSilence) string {
	s.Namespace, s.ID = "", ""
	return Encode(s)
}

// DecodeAlertRule decodes a rule of alerts. ok is false if the key is not that of a rule, or if the value cannot be read.
func DecodeAlertRule(keys Keys, e *mvccpb.KeyValue) (r task.AlertRule, ok bool) {
	namespace, name, ok := keys.ParseAlertRule(string(e.Key))
	if !ok {
		return r, false
	}

	r, err := Decode[task.AlertRule](e.Value)
	r.Namespace, r.Name, r.Revision = namespace, name, e.ModRevision

	return r, err == nil
}

// EncodeAlertRule encodes a rule without what its key says.
func EncodeAlertRule(r task.AlertRule) string {
	r.Namespace, r.Name, r.Revision = "", "", 0
	return Encode(r)
}

// DecodeSent decodes what was sent to a receiver. ok is false if the key is not that of such a record. A record that cannot
// be read is empty: everything that is open is sent again.
func DecodeSent(keys Keys, e *mvccpb.KeyValue) (s task.AlertsSent, ok bool) {
	receiver, ok := keys.ParseSentTo(string(e.Key))
	if !ok {
		return s, false
	}

	s, err := Decode[task.AlertsSent](e.Value)
	if err != nil {
		s = task.AlertsSent{}
	}
	s.Receiver, s.Mod = receiver, e.ModRevision

	return s, true
}
