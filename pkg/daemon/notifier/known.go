package notifier

import (
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// known has the records below alerts/ at one revision. Each version of a record is decoded once.
type known struct {
	keys    record.Keys
	cluster string // the ID of the cluster

	snapshot kv.Snapshot
	alerts   map[string]*knownAlert // by the key of their records
	sent     map[string]task.AlertsSent
	silences map[string]task.AlertSilence // by the key of their records
	rules    map[string]task.AlertRule    // by the key of their records
}

// heartbeat returns when a leader was last able to write, and the mod revision of its record; zero: there is none.
func (k *known) heartbeat() (at time.Time, mod int64) {
	e := k.snapshot.Get(k.keys.Heartbeat())
	if e == nil {
		return time.Time{}, 0
	}
	beat, err := record.Decode[record.Timestamp](e.Value)
	if err != nil {
		beat = record.Timestamp{} // it is replaced
	}

	return beat.At.Time, e.ModRevision
}

// knownAlert is an alert with its key, as receivers know it.
type knownAlert struct {
	task.Alert
	key    uint64
	former []*knownAlert // those of former tasks, whose record it has taken
}

func newKnownAlert(cluster string, a task.Alert) *knownAlert {
	known := &knownAlert{Alert: a, key: alert.KeyOf(cluster, &a)}
	for _, f := range alert.FormerOf(&a) {
		known.former = append(known.former, newKnownAlert(cluster, f))
	}

	return known
}

func newKnown(keys record.Keys, cluster string) *known {
	return &known{
		keys: keys, cluster: cluster,
		alerts: map[string]*knownAlert{}, sent: map[string]task.AlertsSent{}, silences: map[string]task.AlertSilence{}, rules: map[string]task.AlertRule{},
	}
}

// update decodes what has changed since the last update. A record that cannot be read stays as it was.
func (k *known) update(s kv.Snapshot) (unreadable int) {
	for _, c := range s.ChangesSince(k.snapshot) {
		if c.KV == nil {
			delete(k.alerts, c.Key)
			delete(k.silences, c.Key)
			delete(k.rules, c.Key)
			if receiver, ok := k.keys.ParseSentTo(c.Key); ok {
				delete(k.sent, receiver)
			}
			continue
		}

		if a, _, ok, err := record.DecodeAlert(k.keys, c.KV); ok {
			if err != nil {
				unreadable++
				continue
			}
			k.alerts[c.Key] = newKnownAlert(k.cluster, a)
		} else if sent, ok := record.DecodeSent(k.keys, c.KV); ok {
			k.sent[sent.Receiver] = sent
		} else if silence, ok := record.DecodeSilence(k.keys, c.KV); ok {
			k.silences[c.Key] = silence
		} else if rule, ok := record.DecodeAlertRule(k.keys, c.KV); ok {
			k.rules[c.Key] = rule
		}
	}
	k.snapshot = s

	return unreadable
}

// receiversOf returns the receivers of an alert.
func receiversOf(a *task.Alert) []string {
	if a.Kind == task.AlertMore {
		return []string{a.Receiver}
	}
	return a.Notify
}

// byReceiver returns the alerts of each receiver, with those of former tasks. What the shards of a namespace count for a receiver is
// one alert.
func (k *known) byReceiver() map[string][]*knownAlert {
	lists := map[string][]*knownAlert{}
	counted := map[uint64]*knownAlert{}
	for _, a := range k.alerts {
		if a.Kind == task.AlertMore {
			if sum := counted[a.key]; sum != nil {
				sum.Alert = alert.AddMore(sum.Alert, a.Alert)
				continue
			}
			sum := *a
			a, counted[a.key] = &sum, &sum
		}

		for _, name := range receiversOf(&a.Alert) {
			lists[name] = append(append(lists[name], a), a.former...)
		}
	}

	return lists
}

// ruleOf returns the rule that expects what an alert is about, or nil.
func (k *known) ruleOf(a *task.Alert) *task.AlertRule {
	if a.Rule == "" {
		return nil
	}
	if rule, ok := k.rules[k.keys.AlertRule(a.Namespace, a.Rule)]; ok {
		return &rule
	}

	return nil
}

// silencedNamespaces returns the namespaces that have silences.
func (k *known) silencedNamespaces() []string {
	var names []string
	for _, s := range k.silences {
		names = append(names, s.Namespace)
	}
	slices.Sort(names)

	return slices.Compact(names)
}

// clusterAlert returns the alert about a problem of the cluster; false if there is none.
func (k *known) clusterAlert(code string) (task.Alert, bool) {
	if a := k.alerts[k.keys.ClusterAlert(code)]; a != nil {
		return a.Alert, true
	}
	return task.Alert{}, false
}
