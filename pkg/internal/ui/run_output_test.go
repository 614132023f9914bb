package ui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/test/apikit"
	"github.com/carillonhq/carillon/pkg/task"
)

// withOutput makes the API of a world answer requests for output with a function.
func (w *world) withOutput(serve func(q url.Values, piece func(client.LogPiece) bool) (complete bool)) {
	w.t.Helper()
	other := w.api
	w.api = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/logs") {
			other.ServeHTTP(rw, r)
			return
		}

		rw.Header().Set("Content-Type", httpapi.TypeLines)
		rw.WriteHeader(http.StatusOK)
		complete := serve(r.URL.Query(), func(p client.LogPiece) bool {
			b, err := json.Marshal(p)
			must(w.t, err)
			_, err = rw.Write(append(b, '\n'))
			return err == nil && r.Context().Err() == nil
		})
		if !complete {
			panic(http.ErrAbortHandler)
		}
	})
}

// outputs returns the messages with output that a tab has received.
func (t *tab) outputs() (list []outputMessage, ids []string) {
	t.w.t.Helper()
	for _, e := range t.all() {
		if e.name != outputEvent {
			continue
		}
		var m outputMessage
		must(t.w.t, json.Unmarshal([]byte(e.data), &m))
		list, ids = append(list, m), append(ids, e.id)
	}

	return list, ids
}

// all returns all events so far.
func (t *tab) all() []event {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]event(nil), t.events...)
}

// Lines reach the page as they are written. A line that is not complete is sent, and replaced when it is.
func TestRunOutput_IsSentAsItIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("prod", "web")
		run := w.trigger("prod", "web")
		at := task.At(time.Date(2026, 11, 20, 22, 5, 10, 123e6, time.UTC))
		asked := make(chan url.Values, 4)
		w.withOutput(func(q url.Values, piece func(client.LogPiece) bool) bool {
			asked <- q
			piece(client.LogPiece{From: 100, Time: at, Text: []byte("one\n")})
			piece(client.LogPiece{From: 104, Time: at, Stream: task.Stderr, Text: []byte("tw")})
			time.Sleep(time.Second)
			piece(client.LogPiece{From: 106, Time: at, Stream: task.Stderr, Text: []byte("o\x1b[31m\xff\n")})
			return true
		})

		s := w.as("user:ann").tab("/ui/runs/prod/" + run.ID)
		time.Sleep(3 * time.Second)
		synctest.Wait()

		if q := <-asked; q.Get("tail") != strconv.Itoa(outputTail) || q.Get("follow") != "true" {
			t.Errorf("asked for %v", q)
		}
		var lines []outputLine
		messages, ids := s.outputs()
		for _, m := range messages {
			lines = append(lines, m.Lines...)
		}
		for _, want := range []outputLine{
			{At: 100, Next: 104, Time: "22:05:10.123", Text: "one"},
			{At: 104, Next: 106, Time: "22:05:10.123", Err: true, Text: "tw", Open: true},
			{At: 104, Next: 114, Time: "22:05:10.123", Err: true, Text: "two\uFFFD"},
		} {
			found := false
			for _, l := range lines {
				found = found || l == want
			}
			if !found {
				t.Errorf("%+v is missing in %+v", want, lines)
			}
		}
		if n := len(messages); n == 0 || !messages[n-1].Ended || ids[n-1] != "0.114" {
			t.Errorf("the last of %d messages does not end the output at byte 114: %v", n, ids)
		}
	})
}

// withoutOutput makes the API of a world answer that no node has output.
func (w *world) withoutOutput(asked func()) {
	other := w.api
	w.api = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/logs") {
			other.ServeHTTP(rw, r)
			return
		}

		asked()
		rw.Header().Set("Content-Type", "application/problem+json")
		rw.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(rw, `{"status": 404, "title": "Not Found", "code": %q, "detail": "no node has it"}`, client.CodeNoLogs)
	})
}

// The response to a request that succeeded is only in the record of its run. The page gets what the record has, and says
// whether that is all.
func TestRunOutput_OfRecord(t *testing.T) {
	for name, c := range map[string]struct {
		bytes int64
		first outputLine
		kept  string
	}{
		"all of it": {10, outputLine{At: 0, Next: 6, Text: "first"}, ""},
		"its end":   {1010, outputLine{At: 1000, Next: 1006, Text: "first"}, "This is the end of the response."},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.create("prod", "web")
			run := w.deadRun("prod", "web", func(r *task.Run) {
				r.State, r.Reason, r.ExitCode, r.HTTPStatus = task.Succeeded, "", nil, http.StatusOK
				r.OutputTail, r.OutputBytes = "first\nlast", c.bytes
			})
			w.withoutOutput(func() {})

			s := w.as("user:ann").tab("/ui/runs/prod/" + run)
			time.Sleep(3 * time.Second)
			synctest.Wait()

			messages, _ := s.outputs()
			if len(messages) != 1 {
				t.Fatalf("%s: messages %+v", name, messages)
			}
			m := messages[0]
			if !m.Ended || len(m.Lines) != 2 || m.Lines[0] != c.first || m.Kept == nil || !strings.HasPrefix(*m.Kept, c.kept) || (*m.Kept == "") != (c.kept == "") {
				t.Errorf("%s: %+v", name, m)
			}
		})
	}
}

// The page of a run that waits gets its output when it has started.
func TestRunOutput_OfRunThatStartsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("prod", "web")
		run := w.trigger("prod", "web")
		asks := 0
		w.withoutOutput(func() { asks++ })

		s := w.as("user:ann").tab("/ui/runs/prod/" + run.ID)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		messages, _ := s.outputs()
		if len(messages) != 1 || messages[0].Problem != "The run has not started yet." || asks != 1 {
			t.Fatalf("after %d requests: %+v", asks, messages)
		}

		run.State, run.Node, run.StartedAt, run.EndedAt = task.Failed, "node-a", run.CreatedAt, run.CreatedAt
		run.OutputTail, run.OutputBytes = "oh", 2
		keys, ref := w.Store.Keys(), apikit.Ref("prod", "web")
		w.put(keys.Ended(ref, run.ID), run)
		_, err := w.Etcd.Delete(t.Context(), keys.Queued(ref, run.ID))
		must(t, err)
		time.Sleep(runPoll + time.Second)
		synctest.Wait()
		if messages, _ = s.outputs(); len(messages) != 2 || len(messages[1].Lines) != 1 || messages[1].Lines[0].Text != "oh" {
			t.Errorf("it gets %+v", messages)
		}
	})
}

// A page that connects again gets what comes after the output that it has. If the stream was cut off, the output goes on where
// it has ended.
func TestRunOutput_GoesOnAfterInterruption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("prod", "web")
		run := w.trigger("prod", "web")
		asked := make(chan string, 8)
		w.withOutput(func(q url.Values, piece func(client.LogPiece) bool) bool {
			from := q.Get("from")
			asked <- from
			at, _ := strconv.ParseInt(from, 10, 64)
			piece(client.LogPiece{From: at, Text: []byte("line\n")})
			return at > 100 // the first stream is cut off
		})

		s := w.as("user:ann").tabWith("/ui/runs/prod/"+run.ID, header("Last-Event-ID", "0.100"))
		time.Sleep(5 * time.Second)
		synctest.Wait()

		if first, second := <-asked, <-asked; first != "100" || second != "105" {
			t.Errorf("asked for the output from %s and then from %s", first, second)
		}
		if _, ids := s.outputs(); len(ids) == 0 || ids[len(ids)-1] != "0.110" {
			t.Errorf("the ids are %v", ids)
		}
	})
}

// A run that writes without end costs a page a limited rate of bytes, and the page skips to the newest lines.
func TestRunOutput_OfFloodIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create("prod", "web")
		run := w.trigger("prod", "web")
		var opened, written atomic.Int64
		began := time.Now()
		w.withOutput(func(q url.Values, piece func(client.LogPiece) bool) bool {
			opened.Add(1)
			text := []byte(strings.Repeat("x", 99) + "\n")
			// The run writes 100 MB a second.
			for at := time.Since(began).Milliseconds() * 100_000; piece(client.LogPiece{From: at, Text: text}); at += 100 {
				written.Add(100)
			}
			return false
		})

		s := w.as("user:ann").tab("/ui/runs/prod/" + run.ID)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		s.close()
		synctest.Wait()

		sent, last := 0, int64(0)
		messages, _ := s.outputs()
		for _, m := range messages {
			for _, l := range m.Lines {
				sent += len(l.Text)
				if l.At < last {
					t.Fatalf("the line at %d follows that at %d", l.At, last)
				}
				last = l.At
			}
		}
		if most := int(30*time.Second/outputEvery+1) * (outputBatch + maxShownLine); sent > most || sent < most/4 {
			t.Errorf("%d bytes were sent in 30 seconds, want at most %d", sent, most)
		}
		if written.Load() > int64(3*sent) || opened.Load() < 3 || last < 1_000_000_000 {
			t.Errorf("%d bytes were read in %d streams, up to byte %d", written.Load(), opened.Load(), last)
		}
	})
}

// Somebody without rights cannot open the output of a run, and a user with the right cancels the run on its page.
func TestRun_IsShownAndCancelled(t *testing.T) {
	w := newWorld(t)
	w.create("prod", "web")
	run := w.trigger("prod", "web")
	ann := w.as("user:ann")

	page := ann.page("/ui/runs/prod/" + run.ID)
	want(t, page, run.ID, "the owner of its shard has not picked it up yet", `id="output"`, "carillon run get "+run.ID+" -n prod", "Cancel the run")
	if a := w.as("user:bob").get("/ui/runs/prod/" + run.ID + "/output"); a.StatusCode != http.StatusNotFound {
		t.Errorf("the raw output for somebody without rights: %d", a.StatusCode)
	}

	a := ann.do(http.MethodPost, "/ui/runs/prod/"+run.ID+"/cancel", url.Values{"at": {"/ui/runs/prod/" + run.ID}})
	if a.StatusCode != http.StatusSeeOther {
		t.Fatalf("cancel: %d %s", a.StatusCode, a.body)
	}
	want(t, ann.page("/ui/runs/prod/"+run.ID), "cancelled", "a user cancelled it")
}

func TestShownText_HasNothingThatMovesText(t *testing.T) {
	for raw, want := range map[string]string{
		"plain\ttext": "plain\ttext", "\x1b[1;31mred\x1b[0m": "red", "\x1b]0;title\x07": "␛]0;title␇", "a\rb\r": "a␍b", "\xff\x00é": "\uFFFD␀é",
		"\u202eevil": "\uFFFDevil", "<b>&amp;": "<b>&amp;",
	} {
		if got := shownText([]byte(raw)); got != want {
			t.Errorf("%q is shown as %q, want %q", raw, got, want)
		}
	}
}

// A very long line is cut between two characters, and the page knows how much is missing.
func TestOutputFeed_CutsLongLines(t *testing.T) {
	f := &outputFeed{zone: time.UTC}
	long := "x" + strings.Repeat("é", 5000)
	for i := 0; i < len(long); i += 999 {
		f.addPiece(client.LogPiece{From: int64(i), Text: []byte(long[i:min(i+999, len(long))])})
	}
	f.addPiece(client.LogPiece{From: int64(len(long)), Text: []byte("\nshort\n")})

	if len(f.lines) != 2 {
		t.Fatalf("lines: %+v", f.lines)
	}
	l := f.lines[0]
	if int64(len(l.Text))+l.Cut != int64(len(long)) || !strings.HasPrefix(long, l.Text) || len(l.Text) > maxShownLine || f.lines[1].Text != "short" || l.Next != int64(len(long)+1) {
		t.Errorf("cut to %d bytes and %d, then %+v", len(l.Text), l.Cut, f.lines[1])
	}
	if got := fmt.Sprint(parseOutputID(outputID(2, 77))); got != "2 77 true" {
		t.Errorf("the id: %s", got)
	}
}

// A node stores only the beginning of long output. The page then also gets the end, and how much is missing before it.
func TestRunOutput_EndsWithTheLastLines(t *testing.T) {
	const marker = "\n[carillon: output beyond 100 bytes is not kept]\n"
	for name, c := range map[string]struct {
		bytes int64
		lines []outputLine
		lost  int64
	}{
		"far beyond":   {1010, []outputLine{{At: 1000, Next: 1006, Text: "first"}, {At: 1006, Next: 1010, Text: "last"}}, 900},
		"a bit beyond": {106, []outputLine{{At: 100, Next: 102, Text: "t"}, {At: 102, Next: 106, Text: "last"}}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.create("prod", "web")
			run := w.deadRun("prod", "web", func(r *task.Run) {
				r.OutputTail, r.OutputBytes, r.Truncated = "first\nlast", c.bytes, true
			})
			w.withOutput(func(_ url.Values, piece func(client.LogPiece) bool) bool {
				piece(client.LogPiece{From: 0, Text: []byte(strings.Repeat("x", 100))})
				piece(client.LogPiece{From: 100, Text: []byte(marker)})
				return true
			})

			s := w.as("user:ann").tab("/ui/runs/prod/" + run)
			time.Sleep(3 * time.Second)
			synctest.Wait()

			messages, _ := s.outputs()
			if len(messages) == 0 {
				t.Fatalf("%s: no messages", name)
			}
			if m := messages[len(messages)-1]; !m.Last || m.Lost != c.lost || !slices.Equal(m.Lines, c.lines) {
				t.Errorf("%s: %+v", name, m)
			}
		})
	}
}
