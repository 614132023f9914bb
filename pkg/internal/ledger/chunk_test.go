package ledger

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// FuzzDecode shows that no value makes the package panic, that a chunk which is read whole is written as it was, and that
// its size is computed.
func FuzzDecode(f *testing.F) {
	records := seconds(0, 9, map[int]bool{5: true})
	for i := 10; i < 40; i++ {
		records = append(records, scheduled(time.Duration(i)*time.Second, failedStates[i%len(failedStates)]))
	}
	for i := range 10 {
		records = append(records, scheduled(time.Duration(i)*1500*time.Millisecond, task.Failed).requested("abcd"))
	}
	records = append(records, scheduled(time.Hour, task.Missed).withRange(2*time.Hour, 3601), Record{Broken: true})

	for _, c := range Fold(testUID, nil, records, each(time.Second)) {
		f.Add(mustMarshal(c))
	}

	f.Add([]byte(`{"uid":"<é>","from":"2026-11-21T00:30:00.000Z","ok":[[-0.001,5,2,0,0,0,7]],"not":[[9e9,2,"s","\"",-1,"?","",9.5e9,"late"]],"hours":[[-3,2,null,[]]],"manual_more":{"<":1},"later":1}`))
	f.Add([]byte(`{"uid":"k3f9aaaaaaaaaaaa","from":"9999-12-31T23:00:00.000Z","hours":[[0,3,{"s":3},[3599.999],-3599,0.001],[0,1,{},[0]]]}`))
	f.Add([]byte(`null`))

	f.Fuzz(func(t *testing.T, value []byte) {
		c, whole, err := Decode(value)
		if err != nil {
			return
		}

		// The fast decoder agrees with encoding/json.
		var slow Chunk
		if err := json.Unmarshal(value, &slow); err != nil || !reflect.DeepEqual(slow, c) {
			t.Fatalf("%+v is not %+v (%v)", c, slow, err)
		}

		if again := mustMarshal(c); whole != bytes.Equal(again, value) {
			t.Fatalf("whole is %v, but it is written as %s", whole, again)
		}

		// Nothing that was read makes what is written unreadable, or is counted twice or not at all.
		book := NewBook(c.UID, [][]byte{value, value})
		for _, l := range book.Lines {
			book.Find(l.First.Time)
		}

		before := c.count()
		chunks := Fold(c.UID, &c, []Record{scheduled(0, task.Succeeded), scheduled(time.Second, task.Failed), scheduled(2*time.Second, task.Failed)}, each(time.Second))
		var after int64
		for i := range chunks {
			after += chunks[i].count()
			if d, _, err := Decode(mustMarshal(chunks[i])); err != nil || d.count() != chunks[i].count() {
				t.Fatalf("what Fold has made of it is not read: %v", err)
			}
		}
		if after != before+3 {
			t.Fatalf("3 records make %d from %d", after, before)
		}
	})
}

// count returns how many ticks, requested runs and unreadable records a chunk counts.
func (c *Chunk) count() int64 {
	n := c.Unreadable + int64(len(c.Requested))
	for _, s := range c.Spans {
		n += s.Count
	}

	for _, e := range c.Exceptions {
		n += e.Count
	}

	for _, h := range c.Hours {
		n += h.Count
	}

	for _, more := range c.RequestedMore {
		n += more
	}

	return n
}

func TestChunk_IDSortsBehindThePreviousOne(t *testing.T) {
	t.Parallel()

	first := Fold(testUID, nil, []Record{scheduled(90*time.Second, task.Succeeded)}, each(time.Second))[0]
	unknown := Fold(testUID, nil, []Record{{Broken: true}}, nil)[0]

	tests := []struct {
		name     string
		chunk    Chunk
		previous string
		want     string
	}{
		{"the first", first, "", "20261121T000130.000Z"},
		{"a later one", first, "20261121T000129.999Z", "20261121T000130.000Z"},
		{"of the same time", first, "20261121T000130.000Z", "20261121T000130.001Z"},
		{"of an earlier tick", first, "20261121T235959.999Z", "20261122T000000.000Z"},
		{"behind an id of a person", first, "later", "later-20261121T000130.000Z"},
		{"behind one behind that", first, "later-20261121T000130.000Z", "later-20261121T000130.001Z"},
		{"behind the last id that is a time", first, "99991231T235959.999Z", "99991231T235959.999Z-20261121T000130.000Z"},
		{"behind one behind that", first, "99991231T235959.999Z-20261121T000130.000Z", "99991231T235959.999Z-20261121T000130.001Z"},
		{"without any time", unknown, "", "00010101T000000.000Z"},
		{"without any time behind another", unknown, "20261121T000130.000Z", "20261121T000130.001Z"},
	}

	for _, tc := range tests {
		if got := tc.chunk.ID(tc.previous); got != tc.want || got <= tc.previous {
			t.Errorf("%s: %s, not %s", tc.name, got, tc.want)
		}
	}
}

// TestDecode_RefusesWhatNoRecordsCanGive shows that figures which cannot be true, and values that are too large to be read
// for every question, make a chunk unreadable. Otherwise they would be told as facts.
func TestDecode_RefusesWhatNoRecordsCanGive(t *testing.T) {
	t.Parallel()

	const begin = `{"uid":"k3f9aaaaaaaaaaaa","from":"2026-11-21T00:00:00.000Z"`

	tests := []struct {
		name, value string
		readable    bool
	}{
		{"a usual chunk", begin + `,"ok":[[0,9,10,5,1,1]],"not":[[20,2,"s","overlap",0,"","",21]],"hours":[[1,2,{"f":1,"t":1},[5,6]]]}`, true},
		{"nothing but unreadable records", `{"uid":"k3f9aaaaaaaaaaaa","from":"0001-01-01T00:00:00.000Z","unreadable":5}`, true},
		{"offsets from no time", `{"uid":"k3f9aaaaaaaaaaaa","from":"0001-01-01T00:00:00.000Z","ok":[[0,9,10,5,1,1]]}`, false},
		{"a year without ticks", `{"uid":"k3f9aaaaaaaaaaaa","from":"9999-12-31T23:00:00.000Z","ok":[[0,9,10,5,1,1]]}`, false},
		{"a year before all ticks", `{"uid":"k3f9aaaaaaaaaaaa","from":"0000-01-01T00:00:00.000Z","unreadable":5}`, false},
		{"no whole hour", `{"uid":"k3f9aaaaaaaaaaaa","from":"2026-11-21T00:00:01.000Z","unreadable":5}`, false},
		{"a negative duration", begin + `,"ok":[[0,9,10,5,-1,1]]}`, false},
		{"a negative lateness", begin + `,"ok":[[0,9,10,5,1,-1]]}`, false},
		{"a duration of centuries", begin + `,"ok":[[0,9,10,5,10000000001,1]]}`, false},
		{"a negative attempt", begin + `,"not":[[20,1,"f","exit 1",-1,"","dev"]]}`, false},
		{"a range with more ticks than milliseconds", begin + `,"not":[[20,1002,"s","overlap",0,"","",21]]}`, false},
		{"fewer causes than ticks", begin + `,"hours":[[1,3,{"f":1,"t":1},[5,6],7,8]]}`, false},
		{"a negative cause", begin + `,"hours":[[1,2,{"f":3,"t":-1},[5,6]]]}`, false},
		{"a negative number of requested runs", begin + `,"manual_more":{"o":-1}}`, false},
		{"a negative number of records", begin + `,"unreadable":-1}`, false},
		{"a large chunk", begin + `,"ok":[` + strings.Repeat(`[0,9,10,5,1,1],`, 1100) + `[0,9,10,5,1,1]]}`, false},
	}

	for _, tc := range tests {
		if _, _, err := Decode([]byte(tc.value)); (err == nil) != tc.readable {
			t.Errorf("%s: %v", tc.name, err)
		}

		// The same holds for a value that another program has formatted.
		if _, _, err := Decode([]byte(" " + tc.value)); (err == nil) != tc.readable {
			t.Errorf("%s, with a space: %v", tc.name, err)
		}
	}
}

func TestChunk_LastTickIsTheLatestOneItKnows(t *testing.T) {
	t.Parallel()

	hour := func(from, to int) (records []Record) {
		for i := from; i <= to; i++ {
			records = append(records, scheduled(time.Duration(i)*time.Second, task.Failed))
		}

		return records
	}

	tests := []struct {
		name    string
		records []Record
		want    time.Duration
	}{
		{"a span", seconds(5, 9, nil), 9 * time.Second},
		{"an exception", []Record{scheduled(7*time.Second, task.Failed)}, 7 * time.Second},
		{"a range", []Record{scheduled(7*time.Second, task.Missed).withRange(20*time.Second, 14)}, 20 * time.Second},
		{"an hour that names all", hour(1, 9), 9 * time.Second},
		{"an hour that hides some", hour(1, 30), 30 * time.Second},
		{"a requested run", []Record{scheduled(7*time.Second, task.Failed).requested("abcd")}, 7 * time.Second},
		{"an unreadable record", []Record{{Broken: true, Run: task.Run{ID: task.RunID(start.Add(time.Hour+time.Minute), testUID)}}}, time.Hour},
	}

	for _, tc := range tests {
		if got := Fold(testUID, nil, tc.records, each(time.Second))[0]; !got.LastTick().Equal(start.Add(tc.want)) {
			t.Errorf("%s: %v, not %v", tc.name, got.LastTick(), start.Add(tc.want))
		}
	}
}
