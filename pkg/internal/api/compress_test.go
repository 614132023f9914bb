package api_test

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
)

// fetch sends a request with headers, and returns the answer as it crosses the network.
func (w *world) fetch(method, path, body string, header map[string]string) (*http.Response, []byte) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body))
	must(w.t, err)
	req.Header.Set("Authorization", "Bearer "+w.secret)
	for name, value := range header {
		req.Header.Set(name, value)
	}

	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(req)
	must(w.t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	must(w.t, err)

	return res, b
}

func TestCompression_OfListsIfTheClientAcceptsIt(t *testing.T) {
	w := newWorld(t)
	for i := range 30 {
		w.create(fmt.Sprintf("task-%d", i), "@daily")
	}

	res, plain := w.fetch("GET", "/v1/tasks", "", nil)
	if res.Header.Get("Content-Encoding") != "" || !strings.Contains(strings.Join(res.Header.Values("Vary"), ","), "Accept-Encoding") {
		t.Errorf("without Accept-Encoding: %v", res.Header)
	}

	res, packed := w.fetch("GET", "/v1/tasks", "", map[string]string{"Accept-Encoding": "gzip, br"})
	if res.Header.Get("Content-Encoding") != "gzip" || res.Header.Get("Content-Type") != "application/json" || len(packed)*3 > len(plain) {
		t.Fatalf("%d bytes instead of %d: %v", len(packed), len(plain), res.Header)
	}

	r, err := gzip.NewReader(strings.NewReader(string(packed)))
	must(t, err)
	var list client.QueryList[client.Task]
	must(t, json.NewDecoder(r).Decode(&list))
	if len(list.Items) != 30 {
		t.Errorf("it has %d tasks", len(list.Items))
	}
}

// The size of a compressed answer can betray what it contains, a stream must arrive at once, and a small answer is one packet.
func TestCompression_OfNothingElse(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")

	for what, c := range map[string]struct{ method, path string }{
		"a small answer": {"GET", "/v1/version"},
		"a login link":   {"POST", "/v1/login-links"},
		"secrets":        {"GET", "/v1/secrets"},
		"an error":       {"GET", "/v1/namespaces/default/tasks/" + strings.Repeat("b", 3000)},
		"HEAD":           {"HEAD", "/v1/tasks"},
	} {
		res, _ := w.fetch(c.method, c.path, "", map[string]string{"Accept-Encoding": "gzip"})
		if res.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s: %v", what, res.Header)
		}
	}
}

func TestRevalidation_AnswersNotModified(t *testing.T) {
	w := newWorld(t)
	w.bind("user:eve", "viewer", "default")

	for _, path := range []string{"/v1/namespaces/default", "/v1/roles/viewer", "/openapi.json", "/openapi.yaml"} {
		res, body := w.fetch("GET", path, "", nil)
		tag := res.Header.Get("ETag")
		if path == "/v1/roles/viewer" { // it has no record, and so no revision
			if tag != "" {
				t.Errorf("%s has the tag %s", path, tag)
			}
			continue
		}
		if tag == "" || len(body) == 0 {
			t.Fatalf("%s: %d, tag %q", path, res.StatusCode, tag)
		}

		packed := httpapi.GzipETag(tag)
		for match, want := range map[string]string{tag: tag, "W/" + tag: tag, `"x", ` + tag: tag, "*": tag, packed: packed, "W/" + packed: packed, `"x"`: "", "x": ""} {
			res, body := w.fetch("GET", path, "", map[string]string{"If-None-Match": match, "Accept-Encoding": "gzip"})
			is304 := res.StatusCode == http.StatusNotModified
			if is304 != (want != "") || is304 != (len(body) == 0) || is304 && res.Header.Get("ETag") != want || res.Header.Get("Vary") == "" {
				t.Errorf("%s with %s: %d with %d bytes and %v, want the tag %q", path, match, res.StatusCode, len(body), res.Header, want)
			}
		}
	}

	// The answer of a task has its state, which changes without a new revision.
	w.create("a", "@daily")
	res, _ := w.fetch("GET", "/v1/namespaces/default/tasks/a", "", nil)
	res, _ = w.fetch("GET", "/v1/namespaces/default/tasks/a", "", map[string]string{"If-None-Match": res.Header.Get("ETag")})
	if res.StatusCode != http.StatusOK {
		t.Errorf("a task: %d", res.StatusCode)
	}

	if httpapi.MatchETag(&http.Request{Header: http.Header{"If-None-Match": {"*"}}}, "") != "" {
		t.Error("an answer without a tag is never the same")
	}
}

// The OpenAPI document is the largest answer without a token, and the same for all callers: it is compressed once.
func TestCompression_OfTheOpenAPIDocumentCostsNothing(t *testing.T) {
	w := newWorld(t)
	answers := func(encoding string) (length int, packed bool) {
		res, b := w.fetch("GET", "/openapi.json", "", map[string]string{"Accept-Encoding": encoding})
		if res.ContentLength != int64(len(b)) {
			t.Errorf("with %q, the length is %d of %d bytes", encoding, res.ContentLength, len(b))
		}
		return len(b), res.Header.Get("Content-Encoding") == "gzip"
	}

	plain, _ := answers("")
	for encoding, want := range map[string]bool{"gzip": true, "br, gzip;q=0.5": true, "gzip, deflate, br": true, "gzip;q=0": false, "identity": false, "br": false} {
		length, packed := answers(encoding)
		if packed != want || packed != (length*4 < plain) {
			t.Errorf("with %q: %d bytes of %d, compressed: %v", encoding, length, plain, packed)
		}
	}
}

// A strong ETag stands for the bytes of an answer (RFC 9110, 8.8.3.3), so the compressed answer has another one than the plain one.
// Callers may send either, because many do not know that their library has decompressed the answer.
func TestCompression_GivesAnswersAnotherETag(t *testing.T) {
	w := newWorld(t)
	w.create("a", "@daily")
	wantStatus(t, "a description", w.do(request{method: "PATCH", path: "/v1/namespaces/default/tasks/a", body: `{"description":"` + strings.Repeat("long ", 500) + `"}`}), http.StatusOK, "")

	for _, path := range []string{"/v1/namespaces/default/tasks/a", "/openapi.json", "/openapi.yaml"} {
		plain, text := w.fetch("GET", path, "", nil)
		packed, bytes := w.fetch("GET", path, "", map[string]string{"Accept-Encoding": "gzip"})
		if packed.Header.Get("Content-Encoding") != "gzip" || packed.Header.Get("ETag") != httpapi.GzipETag(plain.Header.Get("ETag")) {
			t.Errorf("%s: the plain answer has %v, the compressed one %v", path, plain.Header, packed.Header)
		}

		r, err := gzip.NewReader(strings.NewReader(string(bytes)))
		must(t, err)
		unpacked, err := io.ReadAll(r)
		must(t, err)
		if string(unpacked) != string(text) {
			t.Errorf("%s: the compressed answer is another one", path)
		}
	}

	const path = "/v1/namespaces/default/tasks/a"
	for i, encoding := range []string{"", "gzip"} {
		res, _ := w.fetch("GET", path, "", map[string]string{"Accept-Encoding": encoding})
		change := w.do(request{method: "PATCH", path: path, body: fmt.Sprintf(`{"timeout":"%dm"}`, i+1), header: map[string]string{"If-Match": res.Header.Get("ETag")}})
		wantStatus(t, "If-Match: "+res.Header.Get("ETag"), change, http.StatusOK, "")
		again := w.do(request{method: "PATCH", path: path, body: `{"timeout":"9m"}`, header: map[string]string{"If-Match": res.Header.Get("ETag")}})
		wantStatus(t, "If-Match with a former ETag", again, http.StatusPreconditionFailed, client.CodeStale)
	}
}
