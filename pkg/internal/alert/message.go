package alert

import (
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Message is a message to a receiver: what opened and closed since the last one that was delivered.
type Message struct {
	Now       time.Time
	Cluster   string // the ID of the cluster
	PublicURL string // of the Web UI; "" if it is not known
	Receiver  string // NAMESPACE/NAME
	Repeat    time.Duration
	Output    bool // the receiver allows the output of runs
	Plain     bool // only names and counts, because the last message failed
	Test      bool // somebody tests the receiver

	Opened, Closed, Repeated []Item // all of them, the newest first; the texts contain the first ones

	Open          map[string]int // the alerts that are open and not silenced, by namespace, with those of this message
	Silenced      int            // the open alerts that are silenced
	SilencedBy    string         // who silenced them, if it was one person, and until when
	SilencedUntil time.Time
}

// Item is an alert in a message, with what was read about its task when the message was written.
type Item struct {
	Alert       task.Alert
	Task        *task.Task // nil: the task was deleted, or not read
	Run         *task.Run  // the run that the alert, or its closing, names; nil: it is not known
	LastSuccess task.Time  // when the last run that succeeded ended
	Next        task.Time  // the next tick
	NextWords   string     // why there is none, such as "paused after failures"
}
