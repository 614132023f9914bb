package ui

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// While the board cannot be read, viewers with the same rights do not wait for each other's attempts in turn, and a viewer
// who leaves does not keep the others waiting.
func TestShared_FailuresAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		inner := w.api
		var reads atomic.Int32
		w.api = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/board" {
				reads.Add(1)
				time.Sleep(2 * time.Second)
				rw.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			inner.ServeHTTP(rw, r)
		})

		ann := w.as("user:ann")
		began := time.Now()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { ann.page("/ui/tasks") })
		}
		all.Wait()

		if took := time.Since(began); took > 10*time.Second || reads.Load() > 4 {
			t.Errorf("20 pages at the same time took %s and read the board %d times", took, reads.Load())
		}
	})
}

// An answer without a body arrives, even if the handler has returned before anybody waits for it.
func TestTransport_ReturnsAnswersWithoutBody(t *testing.T) {
	client := &http.Client{Transport: &transport{api: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })}}

	for range 2000 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, "http://node-a/v1/x", http.NoBody)
		must(t, err)
		res, err := client.Do(r)
		must(t, err)
		res.Body.Close()
		if res.StatusCode != http.StatusNoContent {
			t.Fatalf("got %d", res.StatusCode)
		}
	}
}
