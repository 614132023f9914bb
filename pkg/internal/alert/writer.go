package alert

import (
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// writer writes the variables of a message.
type writer struct {
	m       *Message
	named   []*Item // what the texts name
	changes map[*Item]change
	single  *Item  // the alert of a message about one; nil: it is about several, or none
	title   string // ALERT_TITLE
}

// change is what a message says about an alert.
type change int

const (
	isOpened change = iota
	isClosed
	isRepeated
)

func newWriter(m *Message) *writer {
	w := &writer{m: m, named: m.Named(), changes: map[*Item]change{}}
	for i := range m.Closed {
		w.changes[&m.Closed[i]] = isClosed
	}
	for i := range m.Repeated {
		w.changes[&m.Repeated[i]] = isRepeated
	}

	if !m.Test && len(w.named) == 1 && len(m.Opened)+len(m.Closed)+len(m.Repeated)+m.Unnamed == 1 {
		w.single = w.named[0]
	}
	w.title = w.writeTitle()

	return w
}

// action returns whether the incident of the key is open. That of a test is, because a test tries what an alert would do.
func (w *writer) action() string {
	open := w.m.Test || w.m.Gone == 0 && (len(w.m.Opened) > 0 || len(w.m.Repeated) > 0 || len(w.m.Open) > 0)
	if w.single != nil {
		open = w.changes[w.single] != isClosed
	}

	if open {
		return ActionTrigger
	}
	return ActionResolve
}

// repeatsToEnd is after how many times of repetition an alert ends for a service that is not told again. Messages may come late, or fail
// for a while.
const repeatsToEnd = 4

// testEnds is after what time a test ends.
const testEnds = 5 * time.Minute

// ends returns when what is open ends, unless it is sent again, and the time of the message if nothing is open. It is zero if nothing is
// sent again.
func (w *writer) ends() task.Time {
	switch {
	case w.action() == ActionResolve:
		return task.At(w.m.Now)
	case w.m.Test:
		return task.At(w.m.Now.Add(testEnds))
	case w.m.Repeat == 0:
		return task.Time{}
	}

	return task.At(w.m.Now.Add(repeatsToEnd * w.m.Repeat))
}

// key returns the key of the only alert, or one of the receiver. A test has another one, so that it belongs to no incident.
func (w *writer) key() string {
	if w.single != nil {
		return FormatKey(KeyOf(w.m.Cluster, &w.single.Alert))
	}
	if w.m.Gone != 0 {
		return FormatKey(w.m.Gone)
	}

	about := task.Alert{Receiver: w.m.Receiver}
	if w.m.Test {
		about.Code = "test"
	}

	return FormatKey(KeyOf(w.m.Cluster, &about))
}

// url returns the page of the Web UI about an alert, or that of all alerts for several. It is empty if nobody has set the public URL.
func (w *writer) url(item *Item) string {
	base := strings.TrimRight(short(w.m.PublicURL), "/")
	switch {
	case base == "":
		return ""
	case item == nil:
		return base + "/ui/alerts"
	case item.Alert.Kind == task.AlertCluster:
		return base + "/ui/health"
	case item.Alert.Kind == task.AlertMore:
		return base + "/ui/alerts?ns=" + short(item.Alert.Namespace)
	}

	return base + "/ui/tasks/" + nameOf(&item.Alert)
}

// mayShowOutput reports whether the message may contain the output of the run of an item. Those who read the messages of a
// receiver may not be allowed to read the output of another namespace, and no audit record would name them.
func (w *writer) mayShowOutput(item *Item) bool {
	if w.m.Plain || !w.m.Output || item.AuditReads || w.changes[item] == isClosed || item.Run == nil {
		return false
	}

	namespace, _, _ := strings.Cut(w.m.Receiver, "/")
	mayLeave := item.Task != nil && item.Task.Alerts != nil && item.Task.Alerts.Output

	return namespace == item.Alert.Namespace || mayLeave
}
