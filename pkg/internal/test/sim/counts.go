package sim

import (
	"errors"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/daemon"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Hard lists the paths that a batch of simulations must reach, or it tests too little. They are counters of the
// nodes, and what links, attempts and the history show.
var Hard = []string{
	"carillon_commits_total fenced",
	"carillon_commits_total conflict",
	"carillon_commits_settled_total ours",
	"carillon_commits_settled_total not_ours",
	"commit unknown, applied by then: true",
	"commit unknown, applied by then: false",
	"watch compacted",
	"carillon_attempts_adopted_total",
	"carillon_attempts_total process lost",
	"attempt after the first",
	"run ended as lost",
	"catch-up run",
	"tick missed: came_to_light_late",
	"tick skipped: overlap",
	"tick skipped: frozen",
	"tick skipped: shadow",
	"tick missed: no_owner",
	"tick missed: start_deadline",
	"run replaced",
	"run waits for max_active",
	"range of skipped ticks grows",
	"dead run",
	"dead run again",
	"task paused by its failures",
	"task with all its runs",
	"run with parts",
	"task deleted by its ttl",
	"drain node",
	"blink node",
	"write delivered late",
	"write delivered twice",
	"write delivered after a hold",
	"API answers unknown_outcome",
	"record folded",
	"alert opens",
	"alert closes as succeeded",
	"why: from the ledger as succeeded",
	"trigger sent",
	"trigger's run succeeded",
	"trigger's run skipped",
	"workflow succeeded",
	"workflow failed",
	"step skipped",
	"map of several items",
}

func isNotFound(err error) bool { return errors.Is(err, task.ErrNotFound) }

// hasCode reports whether an API has answered with a code.
func hasCode(err error, code string) bool {
	var problem *client.Error
	return errors.As(err, &problem) && problem.Code == code
}

// addCounts adds a daemon's counters when it has ended.
func (n *node) addCounts(d *daemon.Node) {
	families, err := d.Metrics().Gather()
	if err != nil {
		n.logLine("> the metrics of %s: %v", n.name, err)
	}

	n.mu.Lock()
	defer n.mu.Unlock()

	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetCounter() == nil || !strings.HasPrefix(f.GetName(), "carillon_") {
				continue
			}

			// A counter is named by its metric and its label values, as in Hard.
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}

			n.counts[name] += int(m.GetCounter().GetValue())
		}
	}
}

// countHistory adds what the history shows. mu is held.
func (w *world) countHistory(s check.Summary) {
	w.counts["late result"] += int(s.Late)
	w.counts["record folded"] += int(s.Folded)
	w.counts["record trimmed without a fold"] += int(s.Unfolded)
	for state, n := range s.Ended {
		w.counts["run ended as "+string(state)] += int(n)
	}

	for reason, n := range s.Skipped {
		w.counts["tick skipped: "+reason] += int(n)
	}

	for reason, n := range s.Missed {
		w.counts["tick missed: "+reason] += int(n)
	}

	w.countRecords()
	w.probes.mu.Lock()
	defer w.probes.mu.Unlock()

	for _, p := range w.probes.runs {
		if p.Trigger == task.TriggerCatchUp {
			w.counts["catch-up run"]++
		}

		if p.Attempt > 1 {
			w.counts["attempt after the first"]++
		}
	}
}

// countRecords adds what single records show. mu is held.
func (w *world) countRecords() {
	keys := w.admin.Keys()

	for _, e := range checkEvents(w.store.Events()) {
		w.countAlert(keys, e)
		k, inShard := keys.ParseShard(e.Key)
		text := string(e.Value)
		if inShard {
			w.countFlow(k, text, e.Deleted, !e.Deleted && e.CreateRevision == e.ModRevision)
			w.countLink(k, text, e.Deleted, !e.Deleted && e.CreateRevision == e.ModRevision)
		}

		has := func(field string) bool { return strings.Contains(text, field) }
		for what, is := range map[string]bool{
			"run replaced":                 k.Kind == record.KindEnded && has(`"reason":"replaced"`),
			"run waits for max_active":     k.Kind == record.KindQueued && has(`"reason":"max_active"`),
			"range of skipped ticks grows": k.Kind == record.KindEnded && has(`"state":"skipped"`) && e.CreateRevision != e.ModRevision,
			"dead run":                     k.Kind == record.KindDead && !e.Deleted,
			"dead run again":               k.Kind == record.KindQueued && has(`"retry_of":`),
			"task paused by its failures":  k.Kind == record.KindEntry && has(`"by":{"subject":"`+task.PausedByFailures+`"`),
			"run waits for its target":     k.Kind == record.KindQueued && has(`"unsent":{`) && has(`"reason":"target_down"`),
			"tick waits for a target":      k.Kind == record.KindQueued && has(`"reason":"target_down"`) && !has(`"unsent":{`),
			"run paused":                   strings.HasPrefix(e.Key, keys.Runs()) && has(`"state":"paused"`),
			"run resumed":                  strings.HasPrefix(e.Key, keys.Runs()) && has(`"state":"running"`) && has(`"paused_ms":`),
			"run ended after a pause":      k.Kind == record.KindEnded && has(`"paused_ms":`),
			"run for a boot":               k.Kind == record.KindQueued && has(`"boot_id":`),
			"run with parts":               k.Kind == record.KindEnded && has(`"fan_out":`),
			"run with parts cancelled":     k.Kind == record.KindEnded && has(`"fan_out":`) && has(`"reason":"cancelled_by_user","trigger"`),
			"run with parts failed":        k.Kind == record.KindEnded && has(`"reason":"parts"`),
			"part lost":                    k.Kind == record.KindPart && has(`"state":"lost"`),
			"part tried again":             k.Kind == record.KindQueued && has(`"trigger":"part"`) && has(`"reason":"retry"`),
			"task with all its runs":       k.Kind == record.KindEntry && isUsedUp(e.Value),
			"task deleted by its ttl":      strings.HasPrefix(e.Key, keys.Tombstones()) && has(`"deleted_by":{"subject":"`+task.PausedByFailures+`"`),
		} {
			if is && (inShard || !e.Deleted) {
				w.counts[what]++
			}
		}
	}
}

// countAlert adds what a record below alerts/ shows. mu is held.
func (w *world) countAlert(keys record.Keys, e check.Event) {
	text := string(e.Value)

	if _, ok := keys.ParseSentTo(e.Key); ok && strings.Contains(text, `"sending":`) {
		w.counts["message to a receiver"]++
	}

	about, _, ok := keys.ParseAlert(e.Key)
	if !ok || e.Deleted {
		return
	}

	if a, _ := record.Decode[task.Alert](e.Value); a.IsOpen() {
		w.counts["alert opens"]++
		w.counts["alert "+string(about.Kind)+" opens"]++
	} else {
		w.counts["alert closes as "+string(a.Closed.Why)]++
	}
}

// isUsedUp reports whether an entry has used all its runs.
func isUsedUp(value []byte) bool {
	e, err := record.DecodeEntry(value)
	return err == nil && e.MaxRuns > 0 && e.Own != nil && e.Own.Runs >= e.MaxRuns
}
