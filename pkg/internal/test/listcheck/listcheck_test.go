package listcheck_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/listcheck"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

var epoch = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// second returns a time of the story. Revision n is written at second n.
func second(s float64) time.Time { return epoch.Add(time.Duration(s * float64(time.Second))) }

// story is the history of four tasks: a of shard 0, b of shard 1, c of shard 1, which exists only from second 5 to 7, and
// f of shard 2, which fails at 12, and succeeds at 14. The dismissal of its failure begins at 16. It fails again from 18 until
// that failure is dismissed at 20. b is paused from second 9 to 11.
func story(t *testing.T) *listcheck.History {
	t.Helper()
	keys, err := record.NewKeys(record.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}

	ref := func(name string, shard int) record.Ref { return record.Ref{Namespace: "ns", Name: name, Shard: shard} }
	entry := func(paused bool) []byte { return []byte(record.Encode(task.Entry{UID: "uid0", Paused: paused})) }
	run := func(s task.State) []byte {
		return record.EncodeEnded(task.Run{UID: "uid0", State: s, EndedAt: task.At(epoch), StartedAt: task.At(epoch), ScheduledTime: task.At(epoch)})
	}
	id := func(n string) string { return "20261120T12000" + n + "000Z-uid0" }
	f := ref("f", 2)

	var events []check.Event
	add := func(rev int64, key string, value []byte) {
		events = append(events, check.Event{Revision: rev, Key: key, Value: value, Deleted: value == nil, ModRevision: rev, CreateRevision: rev})
	}

	add(1, keys.Entry(ref("a", 0)), entry(false))
	add(2, keys.Entry(ref("b", 1)), entry(false))
	add(3, keys.Entry(f), entry(false))
	add(5, keys.Entry(ref("c", 1)), entry(false))
	add(7, keys.Entry(ref("c", 1)), nil)
	add(9, keys.Entry(ref("b", 1)), entry(true))
	add(11, keys.Entry(ref("b", 1)), entry(false))
	add(12, keys.DeadRun(f, id("1")), run(task.Failed))
	add(14, keys.Ended(f, id("2")), run(task.Succeeded))
	add(16, keys.DeadRun(f, id("1")), run(task.Failed))
	events[len(events)-1].CreateRevision = 12
	add(18, keys.DeadRun(f, id("3")), run(task.Failed))
	add(20, keys.DeadRun(f, id("3")), nil)

	delays := []listcheck.Delay{{At: second(30), By: 22 * time.Second}}

	return listcheck.NewHistory(keys, events, func(rev int64) time.Time { return second(float64(rev)) }, delays)
}

// Verifies: G30
func TestCheckList(t *testing.T) {
	t.Parallel()
	h := story(t)

	list := func(asOf, shown float64, count int, names ...string) listcheck.List {
		for i := range names {
			names[i] = "ns/" + names[i]
		}
		return listcheck.List{Asker: "ann", Filter: listcheck.All, ByName: true, Asked: second(asOf), AsOf: second(asOf), Shown: second(shown), Count: count, Names: names}
	}
	with := func(l listcheck.List, change func(l *listcheck.List)) listcheck.List {
		change(&l)
		return l
	}
	missing := func(shards ...int) func(*listcheck.List) { return func(l *listcheck.List) { l.Missing = shards } }
	of := func(f listcheck.Filter) func(*listcheck.List) { return func(l *listcheck.List) { l.Filter = f } }

	for name, c := range map[string]struct {
		list listcheck.List
		want string // a part of the only violation; "": none
	}{
		"all tasks":                             {list(8, 8.5, 3, "a", "b", "f"), ""},
		"a task that exists only in the window": {list(4, 8, 4, "a", "b", "c", "f"), ""},
		"the same, left out":                    {list(4, 8, 3, "a", "b", "f"), ""},
		"a task that is gone":                   {list(8, 8.5, 3, "a", "b", "c", "f"), "it contains ns/c, which did not belong there"},
		"a task that never existed":             {list(8, 8.5, 3, "a", "b", "f", "g"), "it contains ns/g, which never existed"},
		"a missing task":                        {list(8, 8.5, 3, "a", "f"), "ns/b of shard 1 is not on it"},
		"too small a count":                     {list(8, 8.5, 2, "a", "b", "f"), "it counts 2 tasks without the shards [], want 3 to 3"},
		"too large a count":                     {list(4, 8, 5, "a", "b", "f"), "it counts 5 tasks without the shards [], want 3 to 4"},
		"a missing shard":                       {with(list(8, 8.5, 2, "a", "f"), missing(1)), ""},
		"a row of a missing shard":              {with(list(8, 8.5, 2, "a", "b", "f"), missing(1)), "although it says that shard 1 is missing"},
		"a count with a missing shard":          {with(list(8, 8.5, 3, "a", "f"), missing(1)), "it counts 3 tasks without the shards [1], want 2 to 2"},
		"a task twice":                          {list(8, 8.5, 3, "a", "a", "b", "f"), "it contains ns/a twice"},
		"not sorted":                            {list(8, 8.5, 3, "b", "a", "f"), "it is not sorted by name"},
		"sorted by something else":              {with(list(8, 8.5, 3, "b", "a", "f"), func(l *listcheck.List) { l.ByName = false }), ""},
		"a first page":                          {with(list(8, 8.5, 3, "a", "b"), func(l *listcheck.List) { l.More = true }), ""},
		"a first page with a gap":               {with(list(8, 8.5, 3, "a", "f"), func(l *listcheck.List) { l.More = true }), "ns/b of shard 1 is not on it"},
		"a second page":                         {with(list(8, 8.5, 3, "b", "f"), func(l *listcheck.List) { l.After = "ns/a" }), ""},
		"a second page that begins too late":    {with(list(8, 8.5, 3, "f"), func(l *listcheck.List) { l.After = "ns/a" }), "ns/b of shard 1 is not on it"},
		"a second page that begins too early":   {with(list(8, 8.5, 3, "a", "b", "f"), func(l *listcheck.List) { l.After = "ns/a" }), "on an earlier page"},

		"paused":                      {with(list(9.5, 10, 1, "b"), of(listcheck.Paused)), ""},
		"paused, left out":            {with(list(9.5, 10, 0), of(listcheck.Paused)), "it counts 0 tasks"},
		"resumed":                     {with(list(11.5, 12, 1, "b"), of(listcheck.Paused)), "ns/b, which did not belong there"},
		"resumed, but as of before":   {with(list(10.5, 12, 1, "b"), of(listcheck.Paused)), ""},
		"paused, though not known":    {with(list(8, 10, 0), of(listcheck.Paused)), ""},
		"failing":                     {with(list(12.5, 13, 1, "f"), of(listcheck.Failing)), ""},
		"failing, left out":           {with(list(12.5, 13, 0), of(listcheck.Failing)), "it counts 0 tasks"},
		"failing, not collected":      {with(list(12.5, 13, 0), func(l *listcheck.List) { l.Filter, l.Collecting = listcheck.Failing, true }), ""},
		"recovered":                   {with(list(14.5, 15, 1, "f"), of(listcheck.Failing)), "ns/f, which did not belong there"},
		"an old failure is dismissed": {with(list(16.5, 17, 0), of(listcheck.Failing)), ""},
		"the same, as if it were new": {with(list(16.5, 17, 1, "f"), of(listcheck.Failing)), "ns/f, which did not belong there"},
		"failing again":               {with(list(18.5, 19, 0), of(listcheck.Failing)), "it counts 0 tasks"},
		"a late delivery, within":     {with(list(29.5, 31, 1, "b"), of(listcheck.Paused)), ""},
		"a late delivery, afterwards": {with(list(30.5, 31, 1, "b"), of(listcheck.Paused)), "ns/b, which did not belong there"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			// A list that lacks a task or has one too many may have the wrong count besides.
			all := h.CheckList(&c.list)
			matches := slices.ContainsFunc(all, func(v check.Violation) bool { return strings.Contains(v.Message, c.want) })
			if c.want == "" && len(all) > 0 || c.want != "" && !matches {
				t.Errorf("got %v, want %q", all, c.want)
			}
		})
	}
}

// Verifies: G30
func TestCheckWalk(t *testing.T) {
	t.Parallel()
	h := story(t)

	page := func(asOf float64, names ...string) listcheck.List {
		for i := range names {
			names[i] = "ns/" + names[i]
		}
		return listcheck.List{Asker: "ann", Filter: listcheck.All, ByName: true, Asked: second(asOf), AsOf: second(asOf), Shown: second(asOf), Names: names}
	}

	for name, c := range map[string]struct {
		pages []listcheck.List
		want  string
	}{
		"each task once":                    {[]listcheck.List{page(4, "a", "b"), page(8, "f")}, ""},
		"with one that comes and goes":      {[]listcheck.List{page(4, "a", "b"), page(6, "c", "f")}, ""},
		"a task on two pages":               {[]listcheck.List{page(4, "a", "b"), page(8, "b", "f")}, "ns/b is on two pages"},
		"a task on none":                    {[]listcheck.List{page(4, "a"), page(8, "f")}, "ns/b is on none of them"},
		"a shard that is missing on a page": {[]listcheck.List{page(4, "a"), {Filter: listcheck.All, Shown: second(8), AsOf: second(8), Names: []string{"ns/f"}, Missing: []int{1}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			all := h.CheckWalk(c.pages)
			if c.want == "" && len(all) > 0 || c.want != "" && (len(all) != 1 || !strings.Contains(all[0].Message, c.want)) {
				t.Errorf("got %v, want %q", all, c.want)
			}
		})
	}
}
