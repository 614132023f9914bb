package outputmail

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// window is the time for which the limits apply. It begins with a mail.
	window = time.Minute
	// perTask is how many mails about one task are sent in a window, and perNode how many in all. The latter include the
	// mails that count those above perTask, and one more mail counts those above perNode.
	perTask = 6
	perNode = 60
	// maxRecipients is how many recipients the mail has that counts those above perNode.
	maxRecipients = 50
)

// limits decides which ends are mailed, and counts the others. The zero value is ready to use.
type limits struct {
	ends   time.Time // of the current window; zero: there is none
	used   int       // mails of the window, sent or reserved for counts
	tasks  map[taskKey]*taskWindow
	others counted // those above perNode

	done []*counted // the counts of windows that have ended
}

type taskKey struct{ namespace, name string }

// taskWindow is what a window knows of a task.
type taskWindow struct {
	sent  int
	count *counted // nil: none, otherwise a mail is reserved for it
}

// counted is a number of ends that were not mailed, in one window.
type counted struct {
	runs     int
	from, to time.Time // the first and the last of them
	mail     []string  // the recipients

	// Of a single task; empty for those above perNode.
	namespace, task string
	process         *task.Process
	sender          string // output.mail_from
}

// add reports whether an end is to be mailed. Otherwise it is counted.
func (l *limits) add(now time.Time, e *End) bool {
	l.roll(now)
	if l.ends.IsZero() {
		l.ends, l.tasks = now.Add(window), map[taskKey]*taskWindow{}
	}

	key := taskKey{e.Attempt.Namespace, e.Attempt.Task}
	t := l.tasks[key]

	switch full := l.used >= perNode; {
	case !full && t == nil:
		l.tasks[key] = &taskWindow{sent: 1}
	case !full && t.sent < perTask && t.count == nil:
		t.sent++
	case t != nil && t.count != nil:
		t.count.add(now, e)
		return false
	case !full:
		t.count = &counted{namespace: key.namespace, task: key.name}
		t.count.add(now, e)
		l.used++

		return false
	default:
		l.others.add(now, e)
		return false
	}

	l.used++

	return true
}

// add counts an end. The process and the sender are those of the last one.
func (c *counted) add(now time.Time, e *End) {
	if c.runs++; c.runs == 1 {
		c.from = now
	}
	c.to = now

	if c.task != "" {
		c.mail, c.process, c.sender = e.Attempt.Output.Mail, e.Attempt.Action.Process, e.Attempt.Output.MailFrom
		return
	}

	for _, address := range e.Attempt.Output.Mail {
		if len(c.mail) < maxRecipients && !slices.Contains(c.mail, address) {
			c.mail = append(c.mail, address)
		}
	}
}

// roll ends the current window if its time is over.
func (l *limits) roll(now time.Time) {
	if l.ends.IsZero() || now.Before(l.ends) {
		return
	}

	for _, t := range l.tasks {
		if t.count != nil {
			l.done = append(l.done, t.count)
		}
	}
	if l.others.runs > 0 {
		l.done = append(l.done, new(l.others))
	}

	*l = limits{done: l.done}
}

// takeDone returns the counts of windows that have ended, and when the current window ends; zero: there is none.
func (l *limits) takeDone(now time.Time) (done []*counted, next time.Time) {
	l.roll(now)
	done, l.done = l.done, nil

	return done, l.ends
}
