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

// Sent is what a receiver of alerts has been told. The difference between it and the open alerts is the next message.
type Sent struct {
	UID string `json:"uid"` // of the receiver's task
	// Delivered holds the alerts that the receiver believes to be open, and Uncertain those about which it may
	// believe either, because a message about them failed.
	Delivered task.AlertKeys `json:"delivered,omitempty"`
	Uncertain task.AlertKeys `json:"uncertain,omitempty"`
	Sending   *SentMessage   `json:"sending,omitempty"` // the message whose runs have not ended
	// Horizon is a revision: alerts with an ID up to it count as delivered. 0: none. It is set when Delivered is full.
	Horizon int64 `json:"horizon,omitempty"`
	// Last is the last message that ended, and Recent how many were sent in a row without a quiet time (see package alert).
	Last   *SentMessage `json:"last,omitempty"`
	Recent int          `json:"recent,omitempty"`
	// FailedInARow is how many messages in a row failed. Above 0, the next message is plain.
	FailedInARow  int       `json:"failed_in_a_row,omitempty"`
	LastDelivered task.Time `json:"last_delivered,omitzero"` // when a message was last delivered
	RepeatedAt    task.Time `json:"repeated_at,omitzero"`    // when open alerts were last sent again

	Receiver string `json:"-"` // NAMESPACE/NAME, in the key
	Mod      int64  `json:"-"`
}

// SentMessage is a message to a receiver: one run of it, with the difference that it told.
type SentMessage struct {
	Runs     []string       `json:"runs"`
	Opened   task.AlertKeys `json:"opened,omitempty"`
	Closed   task.AlertKeys `json:"closed,omitempty"`
	Plain    bool           `json:"plain,omitempty"` // without texts of tasks
	Revision int64          `json:"revision"`        // the revision at which this was the difference
	At       task.Time      `json:"at"`
	Failed   bool           `json:"failed,omitempty"` // of a message that ended
}

// DecodeSent decodes what was sent to a receiver. ok is false if the key is not that of such a record. A record that cannot
// be read is empty: everything that is open is sent again.
func DecodeSent(keys Keys, e *mvccpb.KeyValue) (s Sent, ok bool) {
	receiver, ok := keys.ParseSentTo(string(e.Key))
	if !ok {
		return s, false
	}

	s, err := Decode[Sent](e.Value)
	if err != nil {
		s = Sent{}
	}
	s.Receiver, s.Mod = receiver, e.ModRevision

	return s, true
}
