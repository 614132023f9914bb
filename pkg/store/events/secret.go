package events

import (
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// secretEvent returns the event of a secret: what was done, and by whom. It never contains a
// value. It returns false if the change has no event.
func (t *Translator) secretEvent(c Change) (task.Event, bool) {
	ns, name, ok := t.keys.ParseSecret(c.Key)
	if !ok {
		return task.Event{}, false
	}

	e := task.Event{Kind: task.EventSecret, Namespace: ns, Secret: name}
	if c.After == nil {
		if c.Before != nil {
			if was, err := t.keys.DecodeSecret(c.Before); err == nil && was.Deleted() {
				return e, false // the deletion had its event when the record was marked as deleted
			}
		}

		// The record was deleted with another tool than Carillon.
		e.Action = task.ActionDeleted
		return e, true
	}

	r, err := t.keys.DecodeSecret(c.After)
	if err != nil {
		e.Action, e.Detail = task.ActionSet, unreadableRecord
		return e, true
	}

	e.Action, e.Time, e.Actor, e.Generation = r.Change, r.UpdatedAt, r.UpdatedBy, r.Generation
	if !r.Deleted() {
		e.Detail = strings.Join(r.Keys, ", ") + " under key " + r.KeyID
	}

	return e, true
}
