package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

const testUID = "k3f9aaaaaaaaaaaa"

// start is when the histories of the tests begin.
var start = time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)

// each returns a schedule that has a tick at each multiple of a period since start.
func each(period time.Duration) func(time.Time) (time.Time, bool) {
	base := start.Add(-1000 * period)

	return func(after time.Time) (time.Time, bool) {
		return base.Add((after.Sub(base)/period + 1) * period), true
	}
}

// scheduled returns the record of the tick at an offset from start.
func scheduled(offset time.Duration, state task.State) Record {
	r := Record{Run: task.Run{
		ID: task.RunID(start.Add(offset), testUID), UID: testUID, ScheduledTime: task.At(start.Add(offset)), Trigger: task.TriggerSchedule, State: state,
	}}

	switch state {
	case task.Succeeded:
		lateness := int64(5)
		r.Run.LatenessMS = &lateness
		r.Run.StartedAt, r.Run.EndedAt = task.At(start.Add(offset+5*time.Millisecond)), task.At(start.Add(offset+25*time.Millisecond))
		r.Run.Node, r.Run.Attempt = "n1", 1
	case task.Failed:
		code := 1
		r.Run.Reason, r.Run.ExitCode, r.Run.Node, r.Run.Attempt = task.ReasonExit, &code, "n1", 1
	case task.TimedOut:
		r.Run.Reason, r.Run.Node, r.Run.Attempt = task.ReasonTimeout, "n2", 2
	case task.Lost:
		r.Run.Reason, r.Run.Node, r.Run.Attempt = task.ReasonNodeLost, "n3", 1
	case task.Skipped:
		r.Run.Reason = task.ReasonOverlap
	case task.Missed:
		r.Run.Reason = task.ReasonNoOwner
	}

	return r
}

// withRange makes the record one of several ticks.
func (r Record) withRange(last time.Duration, count int64) Record {
	r.Run.Last, r.Run.Count = task.At(start.Add(last)), count

	return r
}

// requested makes the record that of a run which somebody requested.
func (r Record) requested(suffix string) Record {
	r.Run.Trigger = task.TriggerManual
	r.Run.ID += "-" + suffix

	return r
}

// seconds returns records of ticks at each second, without those that skip names.
func seconds(from, to int, skip map[int]bool) []Record {
	var records []Record
	for i := from; i <= to; i++ {
		if !skip[i] {
			records = append(records, scheduled(time.Duration(i)*time.Second, task.Succeeded))
		}
	}

	return records
}

// Verifies: G31
func TestFold_WritesWhatTheDocumentationShows(t *testing.T) {
	t.Parallel()

	at := func(n int) time.Duration { return time.Duration(n) * time.Second }
	exit2 := scheduled(at(11), task.Failed)
	*exit2.Run.ExitCode = 2
	signal := scheduled(at(12), task.Failed)
	signal.Run.Reason, signal.Run.Signal, signal.Run.ExitCode = task.ReasonSignal, "SIGKILL", nil
	response := scheduled(at(3600), task.Failed)
	response.Run.Reason, response.Run.HTTPStatus, response.Run.ExitCode = task.ReasonAnswer, 503, nil

	tests := []struct {
		name    string
		records []Record
		want    string // without uid and from
	}{
		{"successes are one span", seconds(0, 3, nil), `"ok":[[0,3,4,80,20,5]]`},
		{"a hole ends the span", seconds(0, 6, map[int]bool{3: true}), `"ok":[[0,2,3,60,20,5],[4,6,3,60,20,5]]`},
		{"a late tick closes the hole", append(seconds(0, 6, map[int]bool{3: true}), seconds(3, 3, nil)...), `"ok":[[0,6,7,140,20,5]]`},
		{"exceptions do not end a span", append(append(seconds(0, 2, nil), scheduled(at(3), task.TimedOut)), seconds(4, 6, nil)...),
			`"ok":[[0,6,6,120,20,5]],"not":[[3,1,"t","",2,"","n2"]]`},
		{"a range of ticks is one exception", append(append(seconds(0, 2, nil), scheduled(at(3), task.Missed).withRange(at(9), 7)), seconds(10, 10, nil)...),
			`"ok":[[0,10,4,80,20,5]],"not":[[3,7,"m","no_owner",0,"","",9]]`},
		{"an hour counts all but the first", []Record{scheduled(at(1), task.Failed), scheduled(at(10), task.Failed), exit2, signal, response},
			`"not":[[1,1,"f","exit 1",1,"","n1"],[3600,1,"f","HTTP 503",1,"","n1"]],"hours":[[0,3,{"f:exit 1":1,"f:exit 2":1,"f:signal SIGKILL":1},[10,1,1]]]`},
		{"requested runs are apart", []Record{scheduled(1500*time.Millisecond, task.Succeeded).requested("a7c2"), scheduled(at(2), task.Failed).requested("b7c2")},
			`"manual":[[1.5,1,"o","",1,"-a7c2","n1"],[2,1,"f","exit 1",1,"-b7c2","n1"]]`},
		{"a late result marks its run", []Record{scheduled(at(2), task.Lost), {Late: true, Run: scheduled(at(2), task.Succeeded).Run}, {Late: true, Run: scheduled(at(3), task.Failed).Run}},
			`"not":[[2,1,"l","",1,"","n3",0,"late"]]`},
		{"what cannot be read is counted", []Record{{Broken: true, Run: task.Run{ID: "20261121T000003.000Z-k3f9"}}, {Run: task.Run{}}}, `"unreadable":2,"gone":"2026-11-21T00:00:03.000Z"`},
	}

	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()

			chunks := Fold(testUID, nil, tc.records, each(time.Second))
			if len(chunks) != 1 {
				t.Fatalf("%d chunks, not 1", len(chunks))
			}

			got, err := json.Marshal(chunks[0])
			want := fmt.Sprintf(`{"uid":"%s","from":"2026-11-21T00:00:00.000Z",%s}`, testUID, tc.want)
			if err != nil || string(got) != want {
				t.Errorf("%v\n got %s\nwant %s", err, got, want)
			}
		})
	}
}

// A range of ends of another task that started no run counts all of them, whether it has an entry of its own or not.
//
// Verifies: G31
func TestFold_CountsRangesOfTriggers(t *testing.T) {
	t.Parallel()

	skipped := func(at time.Duration, count int64) Record {
		r := scheduled(at, task.Skipped).withRange(at+time.Duration(count-1)*time.Millisecond, count)
		r.Run.Trigger, r.Run.Reason = task.TriggerAfter, task.ReasonOverlap
		r.Run.ID += "-abcdefgh"

		return r
	}

	var records []Record
	for i := range maxRequested + 1 {
		records = append(records, skipped(time.Duration(i)*time.Minute, 100))
	}

	c := Fold(testUID, nil, records, nil)[0]
	value, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if c, _, err = Decode(value); err != nil {
		t.Fatal(err)
	}

	named := int64(0)
	for _, e := range c.Requested {
		named += e.Count
	}
	if more := c.RequestedMore["s:overlap"]; named != 100*maxRequested || more != 100 || len(c.Exceptions)+len(c.Hours) != 0 {
		t.Errorf("%d ends have entries and %d are counted in %s", named, more, value)
	}
	if last := start.Add(maxRequested*time.Minute - time.Minute + 99*time.Millisecond); !c.LastTick().Equal(last) {
		t.Errorf("the chunk ends at %s, want %s", c.LastTick(), last)
	}
}

// The line of an hour knows of no tick before those that it does not name.
//
// Verifies: G31
func TestFold_EndsSpansAtHolesBeforeTheTicksOfAnHour(t *testing.T) {
	t.Parallel()
	at := func(second int, state task.State) Record { return scheduled(time.Duration(second)*time.Second, state) }
	records := []Record{
		at(20, task.Skipped).withRange(29*time.Second, 10), at(30, task.Skipped).withRange(39*time.Second, 10), at(40, task.Skipped).withRange(49*time.Second, 10),
		at(8, task.Succeeded), at(10, task.Succeeded),
	}

	if got := Fold(testUID, nil, records, each(time.Second))[0]; len(got.Hours) != 1 || len(got.Spans) != 2 {
		t.Errorf("a tick is missing between two spans, and the chunk is %+v", got)
	}
}

// Verifies: G31
func TestFold_EndsSpansSoThatTheirTicksCanBeCounted(t *testing.T) {
	t.Parallel()

	tests := []struct {
		period time.Duration
		ticks  int
		want   []int64 // ticks of the spans
	}{
		{time.Minute, 3000, []int64{1440, 1440, 120}},
		{time.Hour, 70, []int64{32, 32, 6}},
		{24 * time.Hour, 20, []int64{8, 8, 4}},
		{7 * 24 * time.Hour, 5, []int64{2, 2, 1}},
		{30 * 24 * time.Hour, 3, []int64{1, 1, 1}},
	}

	for _, tc := range tests {
		var records []Record
		for i := range tc.ticks {
			records = append(records, scheduled(time.Duration(i)*tc.period, task.Succeeded))
		}

		for _, order := range []string{"in order", "backwards"} {
			var got []int64
			for _, s := range Fold(testUID, nil, records, each(tc.period))[0].Spans {
				got = append(got, s.Count)
			}

			if order == "backwards" {
				slices.Reverse(got)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("every %v, %s: spans of %v ticks, not %v", tc.period, order, got, tc.want)
			}

			slices.Reverse(records)
		}
	}
}

// Verifies: G31
func TestFold_CountsMarksOfLateResultsToTheSizeOfAChunk(t *testing.T) {
	t.Parallel()

	var records []Record
	for i := range 100 {
		run := scheduled(time.Duration(2*i)*time.Hour, task.Lost)
		late := run
		late.Late = true
		records = append(records, run, late, scheduled(time.Duration(2*i+1)*time.Hour, task.Succeeded))
	}

	whole := Fold(testUID, nil, records, each(time.Hour))

	var parts []Chunk
	for i, r := range records {
		if r.Late {
			continue // it is folded with its run
		}

		fold := records[i : i+1]
		if r.Run.State == task.Lost {
			fold = records[i : i+2]
		}

		var newest *Chunk
		if n := len(parts); n > 0 {
			newest, parts = &parts[n-1], parts[:n-1]
		}
		parts = append(parts, Fold(testUID, newest, fold, each(time.Hour))...)
	}

	if string(mustMarshal(parts)) != string(mustMarshal(whole)) {
		t.Errorf("a fold for each run gives\n%s\nand one for all\n%s", mustMarshal(parts), mustMarshal(whole))
	}
}
