package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/listcheck"
	"github.com/carillonhq/carillon/pkg/internal/test/mutant"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// deliveryDelays returns by how much deliveries were late: how long the first change that each of them does not contain
// had been written by then.
func (l *lister) deliveryDelays() (list []listcheck.Delay) {
	for _, d := range l.deliveries.all {
		if next, ok := l.times[d.revision+1]; ok && next.Before(d.at) {
			list = append(list, listcheck.Delay{At: d.at, By: d.at.Sub(next)})
		}
	}

	return list
}

// buildReport judges all lists, and those of the mutants.
func (l *lister) buildReport(seed uint64) ListReport {
	events := checkEvents(l.store.Events())
	h := listcheck.NewHistory(l.admin.Keys(), events, func(revision int64) time.Time { return l.times[revision] }, l.deliveryDelays())

	r := ListReport{Seed: seed, Caught: map[string]check.Violation{}, Counts: l.counts}
	for i := range l.lists {
		r.Violations = append(r.Violations, h.CheckList(&l.lists[i])...)
		l.countList(&l.lists[i])
	}
	for _, pages := range l.walks {
		r.Violations = append(r.Violations, h.CheckWalk(pages)...)
		l.counts["list of several pages"]++
	}

	for i, m := range mutant.Lists {
		for j := range l.broken[i] {
			if v := h.CheckList(&l.broken[i][j]); len(v) > 0 {
				r.Caught[m.Name] = v[0]
				break
			}
		}
	}

	l.addChanges(events)
	r.Story = strings.Join(l.story, "\n")

	return r
}

// addChanges adds to the story how the records changed by which lists are judged.
func (l *lister) addChanges(events []check.Event) {
	for _, ev := range events {
		k, ok := l.admin.Keys().ParseShard(ev.Key)
		_, isOwner := l.admin.Keys().ParseOwner(ev.Key)

		if isOwner || ok && (k.Kind == record.KindEntry || k.Kind == record.KindEnded || k.Kind == record.KindDead) {
			l.story = append(l.story, fmt.Sprintf("%s revision %d: %s, deleted %t: %.120s", l.times[ev.Revision].UTC().Format("15:04:05.000"), ev.Revision, ev.Key, ev.Deleted, ev.Value))
		}
	}

	slices.SortStableFunc(l.story, func(a, b string) int { return strings.Compare(a[:min(len(a), 12)], b[:min(len(b), 12)]) })
}

// countList counts what a list shows.
func (l *lister) countList(list *listcheck.List) {
	l.counts["list"]++

	switch {
	case len(list.Missing) > 0:
		l.counts["list with missing shards"]++
	case list.Collecting:
		l.counts["list while the past is read"]++
	default:
		l.counts["complete list"]++
		if list.Filter == listcheck.Failing {
			l.counts["complete list of failing tasks"]++
		}
	}
}
