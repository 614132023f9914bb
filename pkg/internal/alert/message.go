package alert

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// The limits of a message. A chat or a mail server that rejects a long text must not keep alerts from people.
const (
	MaxTitle = 130     // characters of ALERT_TITLE: a subject of a mail
	MaxText  = 1900    // bytes of ALERT_TEXT
	MaxJSON  = 8 << 10 // bytes of ALERT_JSON
	MaxNamed = 20      // alerts with their names; the others are counted
)

// The variables of a message. Each begins with task.AlertEnvPrefix.
const (
	VarTitle    = "ALERT_TITLE"
	VarText     = "ALERT_TEXT"
	VarJSON     = "ALERT_JSON"
	VarTask     = "ALERT_TASK"
	VarKind     = "ALERT_KIND"
	VarSince    = "ALERT_SINCE"
	VarURL      = "ALERT_URL"
	VarAction   = "ALERT_ACTION"
	VarKey      = "ALERT_KEY"
	VarSeverity = "ALERT_SEVERITY"
	VarEnds     = "ALERT_ENDS"
)

// variableNames are the names of all variables.
var variableNames = []string{VarTitle, VarText, VarJSON, VarTask, VarKind, VarSince, VarURL, VarAction, VarKey, VarSeverity, VarEnds}

// The values of ALERT_ACTION, as incident services name them.
const (
	ActionTrigger = "trigger"
	ActionResolve = "resolve"
)

// Message is a message to a receiver: what opened and closed since the last one that was delivered.
type Message struct {
	Now       time.Time
	Cluster   string        // the ID of the cluster
	PublicURL string        // of the Web UI; "" if it is not known
	Receiver  string        // NAMESPACE/NAME
	Repeat    time.Duration // after this time, what is open is sent again; 0: never
	Output    bool          // the receiver allows the output of runs
	Plain     bool          // only names and counts, because the last message failed
	Test      bool          // somebody tests the receiver

	Opened, Closed, Repeated []Item // all of them, the newest first; the texts contain the first ones
	Unnamed                  int    // alerts that closed and whose records are gone, so only their number is known
	Gone                     uint64 // the key of such an alert, if the message is about it alone

	Open          map[string]int // the alerts that are open and not silenced, by namespace, with those of this message (CountOf)
	Silenced      int            // the open alerts that are silenced
	SilencedBy    string         // who silenced them, if it was one person, and until when
	SilencedUntil time.Time
}

// Item is an alert in a message, with what was read about its task when the message was written. Only the items that Named returns
// need more than the alert.
type Item struct {
	Alert       task.Alert
	Task        *task.Task // nil: the task was deleted, or not read
	Run         *task.Run  // the run that the alert, or its closing, names; nil: it is not known
	LastSuccess task.Time  // when the last run that succeeded ended
	Next        task.Time  // the next tick
	NextWords   string     // why there is none, such as "paused after failures"
	AuditReads  bool       // the namespace audits reads of output, so messages contain none
}

// Split returns the messages of a group, one for each alert of m, in the order of the runs of sending. Those about an alert that is
// uncertain are plain, because its text may be what the receiver has rejected.
func (m *Message) Split(sending *task.AlertMessage, uncertain task.AlertKeys) []*Message {
	keyOf := func(items []Item, key uint64) []Item {
		i := slices.IndexFunc(items, func(item Item) bool { return KeyOf(m.Cluster, &item.Alert) == key })
		if i < 0 {
			return nil
		}
		return items[i : i+1 : i+1]
	}

	var list []*Message
	for _, key := range slices.Concat(sending.Closed, sending.Opened) {
		one := *m
		one.Opened, one.Closed, one.Repeated = keyOf(m.Opened, key), keyOf(m.Closed, key), keyOf(m.Repeated, key)
		one.Plain = hasKey(uncertain, key)
		if one.Unnamed = 0; len(one.Opened)+len(one.Closed)+len(one.Repeated) == 0 {
			one.Unnamed, one.Gone = 1, key
		}
		list = append(list, &one)
	}

	return list
}

// RepeatOf returns after what time a group sends again what is open, if so many alerts are: a message of a minute has only some of them.
func RepeatOf(repeat time.Duration, open int) time.Duration {
	if repeat == 0 {
		return 0
	}

	l := LimitsOf(task.GroupTask)
	return max(repeat, time.Duration(open/l.Runs+1)*at(l.Pace, len(l.Pace)))
}

// CountOf returns how many alerts a record stands for: 1, or the number that a record of kind more counts.
func CountOf(a *task.Alert) int {
	if a.Kind != task.AlertMore {
		return 1
	}

	sum := 0
	for _, n := range a.More {
		sum += n
	}

	return sum
}

// AddMore returns what two shards count for a receiver as one alert, which is open if one of them is.
func AddMore(a, b task.Alert) task.Alert {
	switch {
	case a.IsOpen() && !b.IsOpen(), !a.IsOpen() && !b.IsOpen() && a.Closed.At.After(b.Closed.At.Time):
		return a
	case !a.IsOpen():
		return b
	}

	// The sum is as old as the older one: its receiver gets it no later, and it counts as delivered no earlier.
	if b.OpenedAt.Before(a.OpenedAt.Time) {
		a, b = b, a
	}
	more := map[task.AlertKind]int{}
	for _, counts := range []map[task.AlertKind]int{a.More, b.More} {
		for kind, n := range counts {
			more[kind] += n
		}
	}
	a.More = more
	if b.Acknowledged == nil {
		a.Acknowledged = nil
	}

	return a
}

// Named returns the alerts that the texts name, at most MaxNamed: those that opened, then those that closed, then those that are
// repeated. Of each, the newest come first, and namespaces take turns, so that one of them cannot displace the others. The
// texts count the rest.
func (m *Message) Named() []*Item {
	var named []*Item
	for _, list := range [][]Item{m.Opened, m.Closed, m.Repeated} {
		named = append(named, takeTurns(list, MaxNamed-len(named))...)
	}

	return named
}

// takeTurns returns up to most items of a list, one of each namespace in turn. The order within a namespace stays.
func takeTurns(list []Item, most int) []*Item {
	var order []string
	queues := map[string][]*Item{}
	for i := range list {
		ns := list[i].Alert.Namespace
		if queues[ns] == nil {
			order = append(order, ns)
		}
		if len(queues[ns]) < most {
			queues[ns] = append(queues[ns], &list[i])
		}
	}

	var taken []*Item
	for len(taken) < most && len(order) > 0 {
		var left []string
		for _, ns := range order {
			if len(taken) == most {
				break
			}
			taken = append(taken, queues[ns][0])
			if queues[ns] = queues[ns][1:]; len(queues[ns]) > 0 {
				left = append(left, ns)
			}
		}
		order = left
	}

	return taken
}

// Variables returns all variables of the message. Those that do not apply to it are empty. They are valid UTF-8 without characters
// that change the direction of a text or that nobody sees. Only the text contains line breaks, so the others are safe in headers.
func (m *Message) Variables() map[string]string {
	w := newWriter(m)
	v := map[string]string{
		VarTitle: w.title, VarText: w.text(), VarJSON: w.json(), VarTask: "", VarKind: "", VarSince: "",
		VarURL: w.url(w.single), VarAction: w.action(), VarKey: w.key(), VarSeverity: m.severity(), VarEnds: timeText(w.ends()),
	}

	if w.single != nil {
		a := &w.single.Alert
		v[VarTask], v[VarKind] = nameOf(a), string(a.Kind)
		v[VarSince] = timeText(a.Since)
	}

	return v
}

// timeText returns a time as variables contain it; "" for none.
func timeText(t task.Time) string {
	text, err := t.MarshalText()
	if err != nil || t.IsZero() {
		return ""
	}

	return string(text)
}

// Env returns the variables that the run of a receiver gets: all that its accept.env names, because a template that names a
// variable that the run does not have makes its request fail.
func (m *Message) Env(accept []string) map[string]string {
	variables := m.Variables()
	env := make(map[string]string, len(accept))
	for _, name := range accept {
		env[name] = variables[name]
	}

	return env
}

// severity returns the highest severity of the alerts that the message opens or repeats or, if there are none, of those that it
// closes.
func (m *Message) severity() string {
	list := slices.Concat(m.Opened, m.Repeated)
	if len(list) == 0 {
		list = m.Closed
	}

	all := task.AlertSeverities()
	highest := len(all)
	for i := range list {
		highest = min(highest, slices.Index(all, list[i].Alert.Severity()))
	}
	if highest == len(all) {
		return task.DefaultAlertSeverity
	}

	return all[highest]
}

// countByNamespace returns how many alerts of some items there are in each namespace.
func countByNamespace(lists ...[]Item) map[string]int {
	counts := map[string]int{}
	for _, list := range lists {
		for i := range list {
			counts[list[i].Alert.Namespace] += CountOf(&list[i].Alert)
		}
	}

	return counts
}

// without returns the counts that are left when others are taken away.
func without(counts, others map[string]int) map[string]int {
	left := map[string]int{}
	for ns, n := range counts {
		if n -= others[ns]; n > 0 {
			left[ns] = n
		}
	}

	return left
}

// largestFirst returns the namespaces of counts, those with the most alerts first.
func largestFirst(counts map[string]int) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b))
	})
}
