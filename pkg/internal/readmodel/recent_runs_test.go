package readmodel

import (
	"fmt"
	"testing"
)

// recentOf asks for the newest runs of an index.
func recentOf(x *Index, q Query) RecentRuns {
	scan := NewScan(&q, "a")
	scan.Add(ShardAnswer{}, x)

	return *scan.Answer().Recent
}

func TestIndex_RemembersTheNewestRuns(t *testing.T) {
	var x Index
	x.NoteLoad("0010")
	for i := range 400 {
		p := RunPlace{fmt.Sprintf("ns%d/a", i%2), fmt.Sprintf("%04d", i)}
		x.AddRun(p)
		x.AddRun(p)
	}

	// Older runs may be missing, so the answer says from where on it is complete.
	r := recentOf(&x, Query{Runs: &RunsRange{Limit: 1000}})
	if len(r.Runs) != maxRecentRuns || r.Runs[0].Run != "0399" || r.After != fmt.Sprintf("%04d", 399-maxRecentRuns) {
		t.Errorf("%d runs after %s, the first is %v", len(r.Runs), r.After, r.Runs[0])
	}
	if x.AddRun(RunPlace{"ns0/a", "0001"}); len(recentOf(&x, Query{Runs: &RunsRange{Limit: 1000}}).Runs) != maxRecentRuns {
		t.Error("an old run was added")
	}

	x.RemoveRun(RunPlace{"ns1/a", "0399"})
	x.RemoveRun(RunPlace{"ns1/a", "0001"})
	r = recentOf(&x, Query{Runs: &RunsRange{Limit: 2, Before: "0398"}, Filter: Filter{Within: []string{"ns0"}}})
	if fmt.Sprint(r) != "{[{ns0/a 0396} {ns0/a 0394}] 0392}" {
		t.Errorf("of a namespace, before a run: %v", r)
	}

	if x.NoteLoad("0500"); len(recentOf(&x, Query{Runs: &RunsRange{Limit: 1000}}).Runs) != 0 {
		t.Error("runs that may not be all are listed")
	}
}

func TestIndex_RunsAtTheSameTimeAreRememberedTogether(t *testing.T) {
	var x Index
	for i := range maxRecentRuns + 1 {
		x.AddRun(RunPlace{fmt.Sprintf("ns/t%03d", i), "0001"})
	}
	x.AddRun(RunPlace{"ns/a", "0002"})

	r := recentOf(&x, Query{Runs: &RunsRange{Limit: 10}})
	if fmt.Sprint(r) != "{[{ns/a 0002}] 0001}" {
		t.Errorf("%v", r)
	}
}
