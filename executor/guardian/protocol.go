package guardian

import (
	"encoding/json"
	"time"

	"github.com/carillonhq/carillon/executor/proctree"
)

// What the daemon and its guardian say to each other. The daemon writes one JSON
// object a line to the guardian's standard input: first a Hello, then messages. The
// guardian answers "ready" once, on its standard output. The end of the input
// without a bye means that the daemon is dead.

// Hello is what a guardian needs to know first.
type Hello struct {
	Instance string          `json:"instance"`
	Dir      string          `json:"dir"`              // the data directory
	Workdirs string          `json:"rooms,omitempty"`  // for workdir.RemoveAbandoned, when no process is left
	Etcd     json.RawMessage `json:"etcd,omitempty"`   // how to reach etcd; package daemon's own affair
	Groups   []string        `json:"groups,omitempty"` // the control groups of the instance: cgroup.Groups.Roots
}

// readyAnswer is what the guardian says when it holds its lock.
const readyAnswer = "ready"

// Message is a change of what the guardian watches; one of its fields is set.
type Message struct {
	Attempt *Attempt `json:"ward,omitempty"` // new, or known better
	End     uint64   `json:"end,omitempty"`  // the attempt with this number has ended
	Session *Session `json:"session,omitempty"`
	All     bool     `json:"all,omitempty"` // a new guardian knows all by now
	Bye     bool     `json:"bye,omitempty"` // the daemon ends, of its own will
}

// Attempt is an attempt under the guardian's eyes: from before the fork, so that
// no process exists that it does not know of.
type Attempt struct {
	ID uint64 `json:"id"`
	proctree.Mark
	Pid     int           `json:"pid,omitempty"` // and process group; 0: perhaps not yet started
	From    time.Duration `json:"from,omitempty"`
	To      time.Duration `json:"to,omitempty"`
	Session int           `json:"session,omitempty"`
	Silence time.Duration `json:"silence,omitempty"` // how long it may live when its session is silent
	Group   string        `json:"group,omitempty"`   // the directory of its control group
}

// Session says when a session was last renewed, on CLOCK_BOOTTIME: if nothing more is
// heard, each of its attempts may live for its Silence from then on. A daemon of a former
// version, which starts this version as its guardian when its file was replaced, says in
// the same field until when all of them may live, and no Silence: the sum is the same.
type Session struct {
	ID      int           `json:"id"`
	Renewed time.Duration `json:"until"`
}

// watchList is what a guardian has been told. Both sides keep it: the daemon to tell
// the next guardian.
type watchList struct {
	attempts map[uint64]Attempt
	sessions map[int]time.Duration // when they were renewed
}

func newWatchList() watchList {
	return watchList{attempts: map[uint64]Attempt{}, sessions: map[int]time.Duration{}}
}

func (w watchList) apply(x Message) {
	if x.Attempt != nil {
		w.attempts[x.Attempt.ID] = *x.Attempt
	}

	delete(w.attempts, x.End)

	if x.Session != nil {
		if _, known := w.sessions[x.Session.ID]; !known {
			w.dropUnusedSessions()
		}
		w.sessions[x.Session.ID] = x.Session.Renewed
	}
}

// dropUnusedSessions drops sessions that no attempt belongs to.
func (w watchList) dropUnusedSessions() {
	used := map[int]bool{}
	for _, a := range w.attempts {
		used[a.Session] = true
	}

	for id := range w.sessions {
		if !used[id] {
			delete(w.sessions, id)
		}
	}
}

// messages is all that a new guardian is to be told.
func (w watchList) messages() []Message {
	var all []Message
	for id, renewed := range w.sessions {
		all = append(all, Message{Session: &Session{ID: id, Renewed: renewed}})
	}

	for _, a := range w.attempts {
		all = append(all, Message{Attempt: &a})
	}

	return all
}

// killSet is the set of the processes of all attempts that match.
func (w watchList) killSet(match func(Attempt) bool) (h proctree.KillSet, n int) {
	for _, a := range w.attempts {
		if !match(a) {
			continue
		}

		n++
		h.AddMark(a.Mark)

		if a.Pid > 0 {
			h.AddGroup(a.Pid, proctree.Birth{From: a.From, To: a.To})
		}

		if a.Group != "" {
			h.AddCgroup(a.Group)
		}
	}

	return h, n
}

// overdue reports whether an attempt has outlived its session's silence.
func (w watchList) overdue(a Attempt, now time.Duration) bool {
	renewed, ok := w.sessions[a.Session]
	return ok && now > renewed+a.Silence
}
