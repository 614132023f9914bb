package ui

import (
	"net/http"
	"testing"
)

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
