package httpaction

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/task"
)

// serveBody starts a server that answers with a body.
func serveBody(t testing.TB, handler http.HandlerFunc) string {
	t.Helper()

	s := httptest.NewServer(handler)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(s.Close)

	return s.URL
}

func TestExpectation_Status(t *testing.T) {
	for _, tt := range []struct {
		patterns []string
		code     int
		want     bool
	}{
		{nil, 200, true}, {nil, 204, true}, {nil, 302, false}, {nil, 404, false}, {nil, 500, false},
		{[]string{"200"}, 200, true}, {[]string{"200"}, 201, false}, {[]string{"2xx", "404"}, 404, true}, {[]string{"4xx"}, 200, false}, {[]string{"4xx"}, 499, true},
	} {
		if got := (&expectation{status: tt.patterns}).matchesStatus(tt.code); got != tt.want {
			t.Errorf("%v, %d: %v", tt.patterns, tt.code, got)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 26, 7, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		status int
		value  string
		wait   time.Duration
		asks   bool
	}{
		{503, "7", 7 * time.Second, true}, {429, "0", 0, true}, {429, "", 0, false}, {500, "7", 0, false}, {503, "soon", 0, false}, {503, "-7", 0, false},
		{503, "99999999999999", maxRetryAfter, true}, {503, "Thu, 26 Nov 2026 07:01:00 GMT", time.Minute, true}, {503, "Thu, 26 Nov 2020 07:01:00 GMT", 0, true},
		{503, "99999999999999999999999", 0, false},
	} {
		wait, asks := retryAfter(tt.status, http.Header{"Retry-After": {tt.value}}, now)
		if wait != tt.wait || asks != tt.asks {
			t.Errorf("%d, %q: %s, %v", tt.status, tt.value, wait, asks)
		}
	}
}

func TestRunAttempt_JudgesResponses(t *testing.T) {
	url := serveBody(t, func(w http.ResponseWriter, q *http.Request) {
		if status := q.URL.Query().Get("status"); status != "" {
			var code int
			fmt.Sscan(status, &code)
			w.WriteHeader(code)
		}
		fmt.Fprint(w, q.URL.Query().Get("body"))
	})

	tests := map[string]struct {
		h       task.HTTP
		query   string
		message string // "": succeeded
		results map[string]string
	}{
		"default":              {task.HTTP{}, "?body=x", "", nil},
		"not found":            {task.HTTP{}, "?status=404&body=x", "HTTP 404 Not Found", nil},
		"unknown status":       {task.HTTP{}, "?status=599", "HTTP 599", nil},
		"no content":           {task.HTTP{Expect: task.HTTPExpect{Status: []string{"204"}}}, "?status=204", "", nil},
		"body matches":         {task.HTTP{Expect: task.HTTPExpect{Body: `^\{"ok":\s*true`}}, `?body={"ok":true}`, "", nil},
		"body does not match":  {task.HTTP{Expect: task.HTTPExpect{Body: "done"}}, "?body=failed", "HTTP 200 OK, but the response does not match expect.body", nil},
		"results":              {task.HTTP{Results: map[string]string{"id": "/order/id", "n": "/n/1", "all": "/order"}}, `?body={"order":{"id":"o-7"},"n":[1,2.50]}`, "", map[string]string{"id": "o-7", "n": "2.50", "all": `{"id":"o-7"}`}},
		"result is missing":    {task.HTTP{Results: map[string]string{"id": "/order/id"}}, `?body={"order":{}}`, `HTTP 200 OK, but the response does not contain "/order/id" (results.id)`, nil},
		"not JSON":             {task.HTTP{Results: map[string]string{"id": "/id"}}, `?body=<html>`, "HTTP 200 OK, but the response is not valid JSON", nil},
		"results are too long": {task.HTTP{Results: map[string]string{"id": "/id"}}, `?body={"id":"` + strings.Repeat("x", task.MaxResultBytes) + `"}`, "HTTP 200 OK, but its results are larger than 4096 bytes", nil},
	}

	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.h.URL = url + "/" + strings.NewReplacer("{", "%7B", "}", "%7D", "<", "%3C", ">", "%3E", `"`, "%22").Replace(tt.query)
			res := run(newRunner(t, nil), tt.h)

			if tt.message == "" != (res.State == task.Succeeded) || res.Message != tt.message || tt.message != "" && res.Reason != task.ReasonAnswer {
				t.Errorf("%+v", res)
			}
			for name, want := range tt.results {
				if res.Status == nil || res.Status.Results[name] != want {
					t.Errorf("results %+v", res.Status)
				}
			}
		})
	}
}

func TestRunAttempt_ResultsOfEarlierAttemptsStay(t *testing.T) {
	url := serveBody(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"id":2}`) })
	a, _ := newAttempt(task.HTTP{URL: url, Results: map[string]string{"id": "/id"}})
	a.Results, a.Checkpoint = map[string]string{"id": "1", "old": "x"}, "c"

	res := newRunner(t, nil).RunAttempt(a, process.NewOrders())
	if res.Status == nil || res.Status.Results["id"] != "2" || res.Status.Results["old"] != "x" || res.Status.Checkpoint != "c" || a.Results["id"] != "1" {
		t.Errorf("%+v", res.Status)
	}
}

// gzipBomb returns n zero bytes, compressed.
func gzipBomb(n int64) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.CopyN(w, zeros{}, n)
	_ = w.Close()

	return b.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestRunAttempt_BoundsTheBody(t *testing.T) {
	bomb := gzipBomb(16 << 20)
	url := serveBody(t, func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/bomb":
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb)
		case "/exact":
			_, _ = w.Write(bytes.Repeat([]byte("x"), 1000))
		case "/json":
			fmt.Fprintf(w, `{"pad":"%s","id":7}`, strings.Repeat("x", 300<<10))
		}
	})
	r := newRunner(t, nil)

	tests := map[string]struct {
		h     task.HTTP
		bytes int64
		state task.State
	}{
		"bomb":                    {task.HTTP{URL: url + "/bomb"}, 1 << 20, task.Succeeded},
		"bomb that is judged":     {task.HTTP{URL: url + "/bomb", Expect: task.HTTPExpect{Body: "x"}}, 1 << 20, task.Failed},
		"limit":                   {task.HTTP{URL: url + "/exact", Limit: task.HTTPLimit{Body: 999}}, 999, task.Succeeded},
		"exactly the limit":       {task.HTTP{URL: url + "/exact", Limit: task.HTTPLimit{Body: 1000}, Expect: task.HTTPExpect{Body: "^x+$"}}, 1000, task.Succeeded},
		"more than memory":        {task.HTTP{URL: url + "/json", Results: map[string]string{"id": "/id"}, Expect: task.HTTPExpect{Body: `"id":7}$`}}, 300<<10 + 17, task.Succeeded},
		"more than memory, wrong": {task.HTTP{URL: url + "/json", Expect: task.HTTPExpect{Body: `"id":8`}}, 300<<10 + 17, task.Failed},
	}

	for name, tt := range tests {
		res := run(r, tt.h)
		if res.State != tt.state || res.OutputBytes != tt.bytes || res.State == task.Failed && res.Reason != task.ReasonAnswer {
			t.Errorf("%s: %+v", name, res)
		}
	}
}

// TestRunAttempt_MemoryIsBounded runs many attempts with the largest responses that have to be judged as a whole.
func TestRunAttempt_MemoryIsBounded(t *testing.T) {
	const attempts, size = 24, 8 << 20
	all := make(chan struct{}, attempts)
	release := make(chan struct{})
	url := serveBody(t, func(w http.ResponseWriter, _ *http.Request) {
		chunk := bytes.Repeat([]byte(" "), 64<<10)
		for range size / len(chunk) {
			_, _ = w.Write(chunk)
		}
		_ = http.NewResponseController(w).Flush()
		all <- struct{}{}
		<-release // all responses are in memory or in files now
		fmt.Fprint(w, `{"id":7}`)
	})
	r := newRunner(t, nil)

	results := make(chan process.Result, attempts)
	for range attempts {
		go func() {
			a, _ := newAttempt(task.HTTP{URL: url, Limit: task.HTTPLimit{Body: 16 << 20}, Results: map[string]string{"id": "/id"}})
			a.Timeout = task.Duration(5 * time.Minute) // judging is slow with the race detector on a busy machine
			results <- r.RunAttempt(a, process.NewOrders())
		}()
	}
	for range attempts {
		<-all
	}

	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > 64<<20 {
		t.Errorf("%d MiB in use for %d responses of %d MiB", m.HeapAlloc>>20, attempts, size>>20)
	}

	close(release)
	for range attempts {
		if res := <-results; res.State != task.Succeeded || res.Status.Results["id"] != "7" {
			t.Errorf("%s: %s, results %+v", res.State, res.Message, res.Status)
		}
	}
}

// spooledOutput returns what was stored for an attempt of newAttempt, and whether anything was.
func spooledOutput(t *testing.T, s *spool.Spool) (string, bool) {
	t.Helper()

	f, err := s.Open("default", "call", "20261126T070000.000Z-k3f9", 1)
	if err != nil {
		return "", false
	}
	defer f.Close()

	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}

	return string(b), true
}

func TestRunAttempt_StoresWhatIsAskedFor(t *testing.T) {
	long := strings.Repeat("0123456789", 1000)
	url := serveBody(t, func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/fail" {
			w.WriteHeader(500)
		}
		fmt.Fprint(w, long)
	})

	tests := map[string]struct {
		h         task.HTTP
		stored    bool
		truncated bool
	}{
		"success":                {task.HTTP{URL: url + "/ok"}, false, true},
		"success, keep":          {task.HTTP{URL: url + "/ok", Output: task.HTTPOutputKeep}, true, false},
		"success, judged":        {task.HTTP{URL: url + "/ok", Expect: task.HTTPExpect{Body: "789"}}, false, true},
		"success, judged, keep":  {task.HTTP{URL: url + "/ok", Expect: task.HTTPExpect{Body: "789"}, Output: task.HTTPOutputKeep}, true, false},
		"failure":                {task.HTTP{URL: url + "/fail"}, true, false},
		"failure after judgment": {task.HTTP{URL: url + "/ok", Expect: task.HTTPExpect{Body: "abc"}}, true, false},
	}

	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := spool.New(spool.Config{Dir: t.TempDir()})
			res := run(newRunner(t, func(c *Config) { c.Spool = s }), tt.h)

			got, stored := spooledOutput(t, s)
			if stored != tt.stored || stored && got != long || res.Truncated != tt.truncated || res.OutputBytes != int64(len(long)) || !strings.HasSuffix(long, string(res.Tail)) || len(res.Tail) != tailBytes {
				t.Errorf("stored: %v (%d bytes), %d bytes of tail, %+v", stored, len(got), len(res.Tail), res)
			}
			if s.Active("default", "call", "20261126T070000.000Z-k3f9", 1) {
				t.Error("the output is still active")
			}
		})
	}
}

func TestRunAttempt_StoresIncompleteResponses(t *testing.T) {
	p := newProbe(t)
	s := spool.New(spool.Config{Dir: t.TempDir()})

	res := run(newRunner(t, func(c *Config) { c.Spool = s }), task.HTTP{URL: p.url + "/mid-body", Output: task.HTTPOutputKeep})
	if got, _ := spooledOutput(t, s); res.Reason != task.ReasonUnanswered || got != "hel" || res.OutputBytes != 3 || string(res.Tail) != "hel" {
		t.Errorf("%q, %+v", got, res)
	}
}

func TestRunAttempt_TemporaryFilesAreGone(t *testing.T) {
	url := serveBody(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 200<<10)) })
	dir := t.TempDir()
	run(newRunner(t, func(c *Config) { c.Dir = dir }), task.HTTP{URL: url, Expect: task.HTTPExpect{Body: "x"}})

	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("%v, %v", files, err)
	}

	// A node that cannot keep the response does not know what it was.
	res := run(newRunner(t, func(c *Config) { c.Dir = dir + "/missing" }), task.HTTP{URL: url, Expect: task.HTTPExpect{Body: "x"}})
	if res.State != task.Failed || res.Reason != task.ReasonHost || res.Unsent {
		t.Errorf("%+v", res)
	}
}

func TestPointerTree(t *testing.T) {
	doc := `{"a":{"b":[10,{"c":"x"}],"":1,"m~n":2,"x/y":3},"n":null,"t":true,"d":1,"d":2,"e":"\u00e9\ud83d\ude00","big":1e400}`
	for pointer, want := range map[string]string{
		"/a/b/0": "10", "/a/b/1/c": "x", "/a/": "1", "/a/m~0n": "2", "/a/x~1y": "3", "/n": "null", "/t": "true", "/d": "2", "/e": "é😀", "/a/b/1": `{"c":"x"}`, "/big": "1e400",
		"/missing": "-", "/a/b/2": "-", "/a/b/-": "-", "/a/b/00": "-", "/t/x": "-", "/a/b/c": "-",
	} {
		tree, err := newPointerTree(map[string]string{"r": pointer, "other": "/a/b", "root": ""})
		if err != nil {
			t.Fatal(err)
		}

		found, err := tree.readValues(strings.NewReader(doc))
		got, ok := found["r"]
		if !ok {
			got = "-"
		}
		if err != nil || got != want || found["other"] != `[10,{"c":"x"}]` || found["root"] != doc {
			t.Errorf("%s: %q, want %q; %v, %v", pointer, got, want, found, err)
		}
	}

	tree, err := newPointerTree(map[string]string{"r": "/a"})
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range []string{"", "{", `{"a":1`, `{"a":1} x`, `{"a":1}{"a":2}`, `{"a":tru}`, `{"b":"` + "\x01" + `"}`, strings.Repeat("[", 100_000), `{"a":` + strings.Repeat("[", 100_000)} {
		if found, err := tree.readValues(strings.NewReader(doc)); err == nil {
			t.Errorf("%.20q: %v", doc, found)
		}
	}

	if _, err := newPointerTree(map[string]string{"r": "a"}); err == nil {
		t.Error("a pointer without a slash was accepted")
	}
}

// A value that is too large ends the reading, so that it takes no memory. Others may have any size.
func TestPointerTree_ReadsNoMoreThanAResultMayHave(t *testing.T) {
	const size = 4 << 20
	huge := strings.Repeat("x", size)

	for doc, pointers := range map[string]map[string]string{
		`{"a":"` + huge + `"}`:                     {"r": "/a"},
		`{"a":["` + huge + `",1]}`:                 {"r": "/a/1", "s": "/a"},
		`{"b":1,"a":{"c":{"d":"` + huge + `"}}}`:   {"r": ""},
		`{"a":` + strings.Repeat(" ", size) + `1}`: {"r": "/a", "s": ""},
	} {
		tree, err := newPointerTree(pointers)
		if err != nil {
			t.Fatal(err)
		}

		from := strings.NewReader(doc)
		if found, err := tree.readValues(from); err != errTooLarge || len(found) > 0 {
			t.Errorf("%.20s: %d values, %v", doc, len(found), err)
		}
		if read := len(doc) - from.Len(); read > 2*maxValueRead {
			t.Errorf("%.20s: %d bytes were read", doc, read)
		}
	}

	tree, err := newPointerTree(map[string]string{"r": "/z", "s": "/b/0"})
	if err != nil {
		t.Fatal(err)
	}
	for i, doc := range []string{`{"a":"` + huge + `","b":["s"],"z":"r"}`, `{"z":"r","a":"` + huge + `","b":["s","` + huge + `"]}`} {
		if found, err := tree.readValues(strings.NewReader(doc)); err != nil || found["r"] != "r" || found["s"] != "s" {
			t.Errorf("document %d: %v, %v", i, found, err)
		}
	}
}

func TestTailWriter(t *testing.T) {
	const text = "0123456789abcdefghij"
	for n := 1; n <= len(text); n++ {
		w := &tailWriter{most: 7}
		for rest := text; rest != ""; rest = rest[min(n, len(rest)):] {
			_, _ = w.Write([]byte(rest[:min(n, len(rest))]))
		}
		if string(w.last) != "defghij" {
			t.Errorf("in parts of %d: %q", n, w.last)
		}
	}
}

func TestFilterStandardLog(t *testing.T) {
	var b strings.Builder
	l := log.New(FilterStandardLog(&b), "", log.LstdFlags)
	l.Printf("Unsolicited response received on idle HTTP channel starting with %q; err=%v", "hush", nil)
	l.Print("something else")

	if strings.Contains(b.String(), "hush") || !strings.Contains(b.String(), "something else") {
		t.Errorf("%q", b.String())
	}
}

// A pattern can take minutes for a large response. The attempt ends at its timeout all the same, and when it is killed.
func TestRunAttempt_JudgingEndsWithTheAttempt(t *testing.T) {
	const size = 1 << 20
	url := serveBody(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, strings.Repeat("a", size))
	})

	slow := task.HTTP{Method: "POST", URL: url, Limit: task.HTTPLimit{Body: 2 * size}, Expect: task.HTTPExpect{Body: "(?:a?){900}b"}}

	t.Run("timeout", func(t *testing.T) {
		r := newRunner(t, nil)
		a, _ := newAttempt(slow)
		a.Timeout = task.Duration(300 * time.Millisecond)

		began := time.Now()
		got := r.RunAttempt(a, process.NewOrders())
		if got.State != task.Failed || got.Reason != task.ReasonAnswer || got.HTTPStatus != 200 || !strings.Contains(got.Message, "expect.body") || !strings.Contains(got.Message, "300ms") {
			t.Errorf("%s, %s, %q", got.State, got.Reason, got.Message)
		}
		if took := time.Since(began); took > 5*time.Second { // 15 seconds and more without the limit
			t.Errorf("the attempt took %s", took)
		}
	})

	t.Run("kill", func(t *testing.T) {
		r := newRunner(t, nil)
		a, _ := newAttempt(slow)
		a.Timeout = task.Duration(time.Hour)

		o := process.NewOrders()
		a.OnStarted = func(time.Time) {
			time.AfterFunc(300*time.Millisecond, func() { o.Kill(process.Kill{Cause: process.CauseCancel}) })
		}
		if got := r.RunAttempt(a, o); got.State != task.Cancelled {
			t.Errorf("%s, %s, %q", got.State, got.Reason, got.Message)
		}
	})
}

func TestRunAttempt_TemporaryFilesAreBounded(t *testing.T) {
	url := serveBody(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"id":7,"rest":%q}`, strings.Repeat("x", 4*memoryLimit))
	})
	r := newRunner(t, nil)
	h := task.HTTP{URL: url, Results: map[string]string{"id": "/id"}}

	// The files of other attempts take all of the space, and stay.
	_ = r.disk.Acquire(t.Context(), diskLimit)
	a, _ := newAttempt(h)
	a.Timeout = task.Duration(time.Second) // also limits how long the server may take to answer
	if got := r.RunAttempt(a, process.NewOrders()); got.State != task.Failed || got.Reason != task.ReasonHost || !strings.Contains(got.Message, "take 1Gi already") {
		t.Errorf("%s, %s, %q", got.State, got.Reason, got.Message)
	}

	// They end.
	url = serveBody(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"id":7,"rest":%q}`, strings.Repeat("x", 4*memoryLimit))
		time.AfterFunc(50*time.Millisecond, func() { r.disk.Release(diskLimit) })
	})
	h.URL = url
	if got := run(r, h); got.State != task.Succeeded {
		t.Errorf("%s, %s, %q", got.State, got.Reason, got.Message)
	}
	if !r.disk.TryAcquire(diskLimit) {
		t.Error("some space is still reserved")
	}
}
