package guardian

import (
	"encoding/json"
	"time"

	"github.com/carillonhq/carillon/executor/proctree"
)

// The protocol between the daemon and its guardian. The daemon writes one JSON object per line
// to the guardian's standard input: first a Hello, then messages. The guardian answers "ready"
// once, on its standard output. If the input ends without a bye, the daemon is dead.

// Hello is the first line that the daemon sends.
type Hello struct {
	Instance string          `json:"instance"`
	Dir      string          `json:"dir"`              // the data directory
	Workdirs string          `json:"rooms,omitempty"`  // passed to workdir.RemoveAbandoned when no process is left
	PID      int             `json:"pid,omitempty"`    // the daemon; 0: the guardian does not kill it
	Etcd     json.RawMessage `json:"etcd,omitempty"`   // how to connect to etcd; only package daemon interprets it
	Groups   []string        `json:"groups,omitempty"` // the control groups of the instance: cgroup.Groups.Roots
}

// readyAnswer is the line that the guardian writes when it holds its lock.
const readyAnswer = "ready"

// Message is a change to the attempts and sessions that the guardian watches. One of its
// fields is set.
type Message struct {
	Attempt *Attempt `json:"ward,omitempty"`    // a new attempt, or more about a known one
	End     uint64   `json:"end,omitempty"`     // the attempt with this number has ended
	Session *Session `json:"session,omitempty"` // a session was renewed
	Remote  *Remote  `json:"remote,omitempty"`  // a session has HTTP attempts, or has none any more
	All     bool     `json:"all,omitempty"`     // a new guardian has received all attempts
	Bye     bool     `json:"bye,omitempty"`     // the daemon stops in an orderly way
}

// Attempt is an attempt that the guardian watches. The guardian receives it before the fork,
// so no process exists that it does not know.
type Attempt struct {
	ID uint64 `json:"id"`
	proctree.Mark
	Pid     int           `json:"pid,omitempty"`     // and process group; 0 if the process may not exist yet
	From    time.Duration `json:"from,omitempty"`    // with To, the interval of CLOCK_BOOTTIME in which the process was created; see proctree.Birth
	To      time.Duration `json:"to,omitempty"`      // zero while Pid is 0
	Session int           `json:"session,omitempty"` // the session whose renewals keep it alive
	Silence time.Duration `json:"silence,omitempty"` // how long it may live after the last renewal of its session
	Group   string        `json:"group,omitempty"`   // the directory of its control group
}

// Session is the time at which a session was last renewed, on CLOCK_BOOTTIME. Without another renewal,
// each of its attempts may live for its Silence from then on. If the program file was replaced, a
// daemon of an earlier version starts this version as its guardian. Such a daemon sends in the same field
// the time until which all attempts may live, and no Silence, so the sum is the same.
type Session struct {
	ID      int           `json:"id"`
	Renewed time.Duration `json:"until"`
}

// watchList is the set of attempts and sessions that a guardian knows. The daemon keeps one,
// too, to send it to the next guardian.
type watchList struct {
	attempts map[uint64]Attempt
	sessions map[int]time.Duration // when each session was last renewed
	remotes  map[int]time.Duration // for how long after that a session with HTTP attempts may be silent
}

// Remote says that HTTP attempts of a session are in progress. They are in the daemon itself, so the guardian kills
// the daemon when the session was last renewed more than Silence ago. A Silence of 0 means that none is left.
type Remote struct {
	Session int           `json:"session"`
	Silence time.Duration `json:"silence,omitempty"`
}

// newWatchList returns an empty watch list.
func newWatchList() watchList {
	return watchList{attempts: map[uint64]Attempt{}, sessions: map[int]time.Duration{}, remotes: map[int]time.Duration{}}
}

// applyMessage changes the watch list as the message says.
func (w watchList) applyMessage(x Message) {
	if x.Attempt != nil {
		w.attempts[x.Attempt.ID] = *x.Attempt
	}

	delete(w.attempts, x.End)

	if x.Session != nil {
		// Sessions are numerous only if a node rejoins often. Drop unused ones when a new one arrives.
		if _, known := w.sessions[x.Session.ID]; !known {
			w.dropUnusedSessions()
		}
		w.sessions[x.Session.ID] = x.Session.Renewed
	}

	if x.Remote != nil {
		w.remotes[x.Remote.Session] = x.Remote.Silence
		if x.Remote.Silence == 0 {
			delete(w.remotes, x.Remote.Session)
		}
	}
}

// dropUnusedSessions drops sessions to which no attempt belongs.
func (w watchList) dropUnusedSessions() {
	used := map[int]bool{}
	for _, a := range w.attempts {
		used[a.Session] = true
	}

	for id := range w.remotes {
		used[id] = true
	}

	for id := range w.sessions {
		if !used[id] {
			delete(w.sessions, id)
		}
	}
}

// catchUpMessages returns the messages that bring a new guardian up to date.
func (w watchList) catchUpMessages() []Message {
	var all []Message
	for id, renewed := range w.sessions {
		all = append(all, Message{Session: &Session{ID: id, Renewed: renewed}})
	}

	for _, a := range w.attempts {
		all = append(all, Message{Attempt: &a})
	}

	for id, silence := range w.remotes {
		all = append(all, Message{Remote: &Remote{Session: id, Silence: silence}})
	}

	return all
}

// killSet returns the set of the processes of all attempts that match, and the number of these
// attempts.
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

// deadline returns the time on CLOCK_BOOTTIME after which the attempt may soon be declared lost. It is false if the
// session of the attempt is unknown.
func (w watchList) deadline(a Attempt) (time.Duration, bool) {
	renewed, ok := w.sessions[a.Session]
	return renewed + a.Silence, ok
}

// isOverdue reports whether the attempt's session was last renewed more than its Silence ago. It
// is false if the session is unknown.
func (w watchList) isOverdue(a Attempt, now time.Duration) bool {
	deadline, ok := w.deadline(a)
	return ok && now > deadline
}

// overdueRemote reports whether HTTP attempts are in progress that may soon be declared lost, so that the daemon must not
// continue.
func (w watchList) overdueRemote(now time.Duration) bool {
	for id, silence := range w.remotes {
		if renewed, ok := w.sessions[id]; ok && now > renewed+silence {
			return true
		}
	}

	return false
}
