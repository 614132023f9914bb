package docsite

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
)

// ask sends a request to a handler at /docs.
func ask(h http.Handler, method, target string, header ...string) *http.Response {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)

	return w.Result()
}

func TestHandler_ServesTheSite(t *testing.T) {
	h := NewHandler("/docs", fstest.MapFS{"README.md": {Data: []byte("# Start\n\ntext")}}, "1.2.3")

	for target, want := range map[string]string{
		"/docs/": "text/html; charset=utf-8", "/docs/index.html": "text/html; charset=utf-8", "/docs/search.js": "text/javascript; charset=utf-8",
		"/docs/static/docs.css": "text/css; charset=utf-8", "/docs/static/icon.svg": "image/svg+xml",
	} {
		if r := ask(h, http.MethodGet, target); r.StatusCode != http.StatusOK || r.Header.Get("Content-Type") != want {
			t.Errorf("%s: %d %s", target, r.StatusCode, r.Header.Get("Content-Type"))
		}
	}

	for target, want := range map[string]int{
		"/docs": http.StatusSeeOther, "/docs/README.md": http.StatusNotFound, "/docs/../docs/index.html": http.StatusNotFound, "/docs/static": http.StatusNotFound, "/docs//": http.StatusNotFound,
	} {
		if r := ask(h, http.MethodGet, target); r.StatusCode != want {
			t.Errorf("%s: %d, want %d", target, r.StatusCode, want)
		}
	}
	if r := ask(h, http.MethodPost, "/docs/"); r.StatusCode != http.StatusMethodNotAllowed || r.Header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: %d", r.StatusCode)
	}

	for p, want := range map[string]bool{"/docs": true, "/docs/x": true, "/docsx": false, "/": false} {
		if h.Serves(p) != want {
			t.Errorf("Serves(%q) is %v", p, !want)
		}
	}
}

func TestHandler_CompressesAndRevalidates(t *testing.T) {
	h := NewHandler("/docs", fstest.MapFS{"README.md": {Data: []byte("# Start\n\ntext of the page")}}, "1.2.3")

	plain := ask(h, http.MethodGet, "/docs/")
	text, err := io.ReadAll(plain.Body)
	if err != nil || !strings.Contains(string(text), "text of the page") {
		t.Fatalf("%v: %s", err, text)
	}

	zipped := ask(h, http.MethodGet, "/docs/", "Accept-Encoding", "gzip, br")
	z, err := gzip.NewReader(zipped.Body)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := io.ReadAll(z); err != nil || string(again) != string(text) {
		t.Errorf("compressed: %v, %s", err, again)
	}
	if plain.Header.Get("ETag") == zipped.Header.Get("ETag") {
		t.Errorf("both forms have the ETag %s", plain.Header.Get("ETag"))
	}

	if r := ask(h, http.MethodGet, "/docs/", "Accept-Encoding", "gzip", "If-None-Match", zipped.Header.Get("ETag")); r.StatusCode != http.StatusNotModified {
		t.Errorf("%d, want 304", r.StatusCode)
	}
	weak := `"older", W/` + zipped.Header.Get("ETag") // a proxy made it weak
	if r := ask(h, http.MethodGet, "/docs/", "Accept-Encoding", "gzip", "If-None-Match", weak); r.StatusCode != http.StatusNotModified {
		t.Errorf("%s: %d, want 304", weak, r.StatusCode)
	}
	if r := ask(h, http.MethodGet, "/docs/", "Accept-Encoding", "gzip", "Range", "bytes=0-9"); r.StatusCode != http.StatusPartialContent || r.ContentLength != 10 {
		t.Errorf("10 bytes: %d, %d bytes", r.StatusCode, r.ContentLength)
	}
	if r := ask(h, http.MethodHead, "/docs/"); r.ContentLength != int64(len(text)) {
		t.Errorf("HEAD: %d bytes, want %d", r.ContentLength, len(text))
	}
	if r := ask(h, http.MethodGet, "/docs/", "Accept-Encoding", "gzip", "If-None-Match", `"older"`); r.StatusCode != http.StatusOK {
		t.Errorf("%d, want 200", r.StatusCode)
	}
}

func TestHandler_SaysWhyItCannotRender(t *testing.T) {
	r := ask(NewHandler("/docs", fstest.MapFS{}, ""), http.MethodGet, "/docs/")
	if b, _ := io.ReadAll(r.Body); r.StatusCode != http.StatusInternalServerError || !strings.Contains(string(b), "there is no README.md") {
		t.Errorf("%d: %s", r.StatusCode, b)
	}
}
