package eventlog

import (
	"encoding/json"
	"sync"

	"github.com/carillonhq/carillon/pkg/task"
)

// Query selects events, and the place from which they are delivered.
type Query struct {
	After *task.Place            // nil: only new events; the zero Place: from the oldest that exists
	Wants func(*task.Event) bool // reports whether to deliver an event; nil: all

	// Only a Hub uses the following fields.

	// Brief means that the reader reads past events and soon ends. The hub does not open for it.
	Brief bool
	// OwnWatch, if set, allows the reader to open a watch of its own, or refuses it. The reader calls release when the
	// watch has ended.
	OwnWatch func() (release func(), err error)
}

// Event is an event that several readers may share. They must not modify it.
type Event struct {
	task.Event
	Place task.Place // the place of the event, which is also its ID

	encode sync.Once
	text   []byte
	err    error
}

// JSON returns the event as JSON. It is encoded only once, for all readers.
func (e *Event) JSON() ([]byte, error) {
	e.encode.Do(func() { e.text, e.err = json.Marshal(&e.Event) })
	return e.text, e.err
}

// Batch is a step of what is delivered. Events may be empty. Then there are no wanted events up to Told.
type Batch struct {
	Events []*Event
	Told   task.Place // all events up to this place have been delivered
}
