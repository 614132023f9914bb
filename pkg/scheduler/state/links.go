package state

import (
	"cmp"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// Links are the records of a shard that connect tasks with those that run after them. The maps are nil until the shard has such
// records. Their keys are namespace/name.
type Links struct {
	subscribers map[string]map[string]int64 // of a source, by the name of the dependent: the mod revision
	cursors     map[string]Cursor           // of a source
	triggers    map[string][]*Trigger       // of a dependent, in the order in which they were created
	waiting     int                         // how many triggers there are
}

// Cursor is the cursor of a source.
type Cursor struct {
	record.Cursor       // the zero value if the record cannot be read
	Mod           int64 // mod revision
}

// Trigger is an ended run of a source that waits for its outcome in the task that runs after it.
type Trigger struct {
	record.Pending
	Key string
	Err error // why the record cannot be read
}

// IsSource reports whether tasks run after a task.
func (l *Links) IsSource(task string) bool { return len(l.subscribers[task]) > 0 }

// Sources returns the names of the tasks after which others run, in order.
func (l *Links) Sources() []string {
	names := make([]string, 0, len(l.subscribers))
	for name := range l.subscribers {
		names = append(names, name)
	}

	slices.Sort(names)

	return names
}

// SentTo returns the position up to which nothing is owed to the subscribers of a source, as far as it is known.
func (l *Links) SentTo(task string) record.Cursor {
	oldest := int64(0)
	for _, mod := range l.subscribers[task] {
		if oldest == 0 || mod < oldest {
			oldest = mod
		}
	}

	position := record.Cursor{Create: oldest}
	if c := l.cursors[task].Cursor; position.Compare(c) < 0 {
		position = c
	}

	return position
}

// Triggers returns the triggers of a task, in the order in which they were created. The caller must not change the slice.
func (l *Links) Triggers(task string) []*Trigger { return l.triggers[task] }

// Waiting returns how many triggers wait.
func (l *Links) Waiting() int { return l.waiting }

// WithTriggers returns the names of the tasks that have triggers, in order.
func (l *Links) WithTriggers() []string {
	if len(l.triggers) == 0 {
		return nil
	}

	names := make([]string, 0, len(l.triggers))
	for name := range l.triggers {
		names = append(names, name)
	}

	slices.Sort(names)

	return names
}

// ApplySubscriber applies the current version of a subscriber, or its deletion.
func (l *Links) ApplySubscriber(ev *store.ShardEvent) {
	of := l.subscribers[ev.Task]

	if ev.Deleted {
		if mod, ok := of[ev.Peer]; ok && (ev.Mod == 0 || ev.Mod >= mod) {
			if delete(of, ev.Peer); len(of) == 0 {
				delete(l.subscribers, ev.Task)
			}
		}

		return
	}

	if l.subscribers == nil {
		l.subscribers = map[string]map[string]int64{}
	}
	if of == nil {
		of = map[string]int64{}
		l.subscribers[strings.Clone(ev.Task)] = of
	}

	of[strings.Clone(ev.Peer)] = max(of[ev.Peer], ev.Mod)
}

// ApplyCursor applies the current version of a cursor, or its deletion.
func (l *Links) ApplyCursor(ev *store.ShardEvent) {
	known := l.cursors[ev.Task]
	if ev.Mod != 0 && ev.Mod < known.Mod {
		return
	}

	if ev.Deleted {
		delete(l.cursors, ev.Task)
		return
	}

	if l.cursors == nil {
		l.cursors = map[string]Cursor{}
	}

	c := Cursor{Mod: ev.Mod}
	if position, err := record.DecodeCursor(ev.Value); err == nil {
		c.Cursor = position
	}
	l.cursors[strings.Clone(ev.Task)] = c
}

// ApplyTrigger applies the current version of a trigger, or its deletion. It returns the trigger if it is new or has changed, and
// nil otherwise.
func (l *Links) ApplyTrigger(ev *store.ShardEvent) *Trigger {
	i := l.find(ev)

	if ev.Deleted {
		if i >= 0 && (ev.Mod == 0 || ev.Mod >= l.triggers[ev.Task][i].Mod) {
			l.removeAt(ev.Task, i)
		}
		return nil
	}

	if i >= 0 {
		if l.triggers[ev.Task][i].Mod >= ev.Mod {
			return nil
		}
		l.removeAt(ev.Task, i)
	}

	p, err := record.DecodePending(ev.ShardKey, ev.KeyValue())
	t := &Trigger{Pending: p, Key: ev.Key, Err: err}

	if l.triggers == nil {
		l.triggers = map[string][]*Trigger{}
	}

	name := strings.Clone(ev.Task)
	at, _ := slices.BinarySearchFunc(l.triggers[name], t, func(a, b *Trigger) int {
		return cmp.Or(cmp.Compare(a.Create, b.Create), strings.Compare(a.Key, b.Key))
	})
	l.triggers[name] = slices.Insert(l.triggers[name], at, t)
	l.waiting++

	return t
}

// RemoveTrigger removes a trigger that has got its outcome.
func (l *Links) RemoveTrigger(task string, t *Trigger) {
	if i := slices.Index(l.triggers[task], t); i >= 0 {
		l.removeAt(task, i)
	}
}

// find returns the index of the trigger of an event, or -1.
func (l *Links) find(ev *store.ShardEvent) int {
	return slices.IndexFunc(l.triggers[ev.Task], func(t *Trigger) bool { return t.Source == ev.Peer && t.Run == ev.Run })
}

// removeAt removes a trigger of a task.
func (l *Links) removeAt(task string, i int) {
	l.waiting--
	if l.triggers[task] = slices.Delete(l.triggers[task], i, i+1); len(l.triggers[task]) == 0 {
		delete(l.triggers, task)
	}
}

// lacks reports whether a record does not exist in l, or only in an older version.
func (l *Links) lacks(ev *store.ShardEvent) bool {
	switch ev.Kind {
	case record.KindSubscriber:
		return l.subscribers[ev.Task][ev.Peer] < ev.Mod
	case record.KindSent:
		return l.cursors[ev.Task].Mod < ev.Mod
	case record.KindTrigger:
		i := l.find(ev)
		return i < 0 || l.triggers[ev.Task][i].Mod < ev.Mod
	}

	return false
}

// has reports whether a record exists in l, in any version.
func (l *Links) has(ev *store.ShardEvent) bool {
	switch ev.Kind {
	case record.KindSubscriber:
		return l.subscribers[ev.Task][ev.Peer] != 0
	case record.KindSent:
		return l.cursors[ev.Task].Mod != 0
	case record.KindTrigger:
		return l.find(ev) >= 0
	}

	return false
}

// eachRecord calls f with the key and the mod revision of each record.
func (l *Links) eachRecord(keys record.Keys, shard int, f func(key string, mod int64)) {
	for source, of := range l.subscribers {
		for dependent, mod := range of {
			f(keys.Subscriber(refOf(source, shard), dependent), mod)
		}
	}

	for source, c := range l.cursors {
		f(keys.Sent(refOf(source, shard)), c.Mod)
	}

	for _, list := range l.triggers {
		for _, t := range list {
			f(t.Key, t.Mod)
		}
	}
}

// refOf returns the Ref of a task from its full name.
func refOf(name string, shard int) record.Ref {
	namespace, name, _ := strings.Cut(name, "/")
	return record.Ref{Namespace: namespace, Name: name, Shard: shard}
}
