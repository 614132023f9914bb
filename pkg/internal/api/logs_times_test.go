package api_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// timedOutput is output with times.
type timedOutput struct {
	*liveOutput
	marks []task.Mark
}

func (t *timedOutput) Times(_, _, _ string, _ int, from int64) ([]task.Mark, error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	list := t.marks
	for len(list) > 1 && list[1].From <= from {
		list = list[1:]
	}

	return list[:min(2, len(list))], nil // as if there were many
}

func (t *timedOutput) add(l *liveOutput, key, text string, from int64, at time.Time, stream string, active bool) {
	t.mu.Lock()
	t.marks = append(t.marks, task.Mark{From: from, At: at, Stream: stream})
	t.mu.Unlock()

	l.write(key, text, active)
}

func pieces(t *testing.T, s *client.LogStream, n int) (list []client.LogPiece) {
	t.Helper()

	for n < 0 || len(list) < n {
		p, err := s.Next()
		if errors.Is(err, io.EOF) && n < 0 {
			return list
		}

		must(t, err)
		p.Text = []byte(string(p.Text))
		list = append(list, p)
	}

	return list
}

// Times and streams of lines are included in existing and in new output, also from the middle, from the node
// itself and through another one. The bytes are unchanged.
func TestLogs_WithTheTimesOfTheirLines(t *testing.T) {
	w, l, run, where := startLiveRun(t)
	m := &timedOutput{liveOutput: l}
	w.logs = m
	w.url = w.serve("node-a")
	w.present("node-a", w.url)
	where["its node"] = w.client(w.url)
	w.ended("a", run, task.Running, func(r *task.Run) { r.Node = "node-a" })
	key, t0 := "a/"+run+"/1", time.UnixMilli(1_800_000_000_000).UTC()
	m.add(l, key, "one\ntw", 0, t0, task.Stdout, true)
	m.add(l, key, "err \xff\n", 6, t0.Add(time.Second), task.Stderr, true)
	m.add(l, key, "o\n\n", 12, t0.Add(2*time.Second), task.Stdout, true)
	want := []client.LogPiece{
		{From: 0, Time: task.At(t0), Stream: task.Stdout, Text: []byte("one\n")},
		{From: 4, Time: task.At(t0), Stream: task.Stdout, Text: []byte("tw")},
		{From: 6, Time: task.At(t0.Add(time.Second)), Stream: task.Stderr, Text: []byte("err \xff\n")},
		{From: 12, Time: task.At(t0.Add(2 * time.Second)), Stream: task.Stdout, Text: []byte("o\n")},
		{From: 14, Time: task.At(t0.Add(2 * time.Second)), Stream: task.Stdout, Text: []byte("\n")},
		{From: 15, Time: task.At(t0.Add(3 * time.Second)), Stream: task.Stdout, Text: []byte("end")},
	}
	same := func(what string, got, want []client.LogPiece) {
		t.Helper()

		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i].From != want[i].From || !got[i].Time.Equal(want[i].Time.Time) || got[i].Stream != want[i].Stream ||
				string(got[i].Text) != string(want[i].Text) {
				t.Fatalf("%s: piece %d:\n%+v\nwant\n%+v", what, i, got, want)
			}
		}
	}

	var streams []*client.LogStream
	for at, c := range where {
		s, err := c.Logs.Open(t.Context(), "default", "a", run, client.LogOptions{Times: true})
		must(t, err)
		same(at, pieces(t, s, -1), want[:5])
		must(t, s.Close())
		s, err = c.Logs.Open(t.Context(), "default", "a", run, client.LogOptions{Times: true, From: 6})
		must(t, err)
		same(at+", from the middle", pieces(t, s, -1), want[2:5])
		must(t, s.Close())
		s, err = c.Logs.Open(t.Context(), "default", "a", run, client.LogOptions{Times: true, From: 600})
		must(t, err)
		same(at+", from beyond", pieces(t, s, -1), nil)
		must(t, s.Close())
		s, err = c.Logs.Follow(t.Context(), "default", "a", run, client.LogOptions{Times: true})
		must(t, err)
		same(at+", followed", pieces(t, s, 5), want[:5])
		streams = append(streams, s)
	}

	m.add(l, key, "end", 15, t0.Add(3*time.Second), task.Stdout, false)

	for _, s := range streams {
		same("at the end", pieces(t, s, -1), want[5:])
		must(t, s.Close())
	}

	path := "/v1/namespaces/default/tasks/a/runs/" + run + "/logs?times=true"
	r := w.do(request{method: "GET", path: path, header: map[string]string{"Range": "bytes=0-1"}})
	if r.status != http.StatusUnprocessableEntity || r.Field != "Range" {
		t.Errorf("with a range: %d %s", r.status, r.body)
	}

	r = w.do(request{method: "GET", path: path})
	if !strings.Contains(r.body, `{"from":6,"time":"2027-01-15T08:00:01.000Z","stream":"stderr","base64":"ZXJyIP8="}`+"\n") ||
		!strings.Contains(r.body, `"text":"tw","unended":true}`) || r.header.Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("as it goes over the wire: %s", r.body)
	}
}

// However many marks there are, each byte is returned with its own.
func TestLogs_WithManyTimesInALine(t *testing.T) {
	w, l, run, _ := startLiveRun(t)
	m := &timedOutput{liveOutput: l}
	w.logs = m
	c := w.client(w.serve("node-a"))
	w.ended("a", run, task.Succeeded, nil)
	t0 := time.UnixMilli(1_800_000_000_000).UTC()

	for i := range 50 {
		m.add(l, "a/"+run+"/1", "xy", int64(2*i), t0, []string{task.Stdout, task.Stderr}[i/2%2], false)
	}

	s, err := c.Logs.Open(t.Context(), "default", "a", run, client.LogOptions{Times: true})
	must(t, err)
	defer s.Close()

	list := pieces(t, s, -1)
	if len(list) != 25 {
		t.Fatalf("%d pieces of 25: %+v", len(list), list)
	}

	for i, p := range list {
		if p.Stream != m.marks[2*i].Stream || p.From != int64(4*i) || string(p.Text) != "xyxy" {
			t.Errorf("piece %d: %+v", i, p)
		}
	}
}

// A server without support for times is asked for the output only.
func TestLogs_WithTimesOfAServerThatKnowsNone(t *testing.T) {
	s := old(t)
	c, err := client.New(client.Config{Server: s, Token: "x"})
	must(t, err)

	for _, follow := range []bool{false, true} {
		read := c.Logs.Open
		if follow {
			read = c.Logs.Follow
		}

		b, err := read(t.Context(), "default", "a", id(1, "aaaa"), client.LogOptions{Times: true, From: 4})
		must(t, err)

		got := pieces(t, b, -1)
		if len(got) != 1 || string(got[0].Text) != "two\n" || got[0].From != 4 || !got[0].Time.IsZero() {
			t.Errorf("follow %v: %+v", follow, got)
		}

		must(t, b.Close())
	}
}

// old is a server of a version without times.
func old(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("times") {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = io.WriteString(w, `{"status":422,"code":"unknown_field","field":"times","message":"is not a parameter of this route"}`)

			return
		}

		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set(client.LogsFromHeader, "4")
		_, _ = io.WriteString(w, "two\n")
	}))

	t.Cleanup(s.Close)

	return s.URL
}
