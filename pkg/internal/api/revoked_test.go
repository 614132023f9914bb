package api_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

// sendLate sends a request whose body follows only after the server has authenticated its caller, and after the node
// knows what meanwhile does. It returns the status and the body of the answer.
func (w *world) sendLate(token, method, path, body string, meanwhile func()) (int, string) {
	w.t.Helper()
	trace := &httptrace.ClientTrace{Got100Continue: meanwhile}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(w.t.Context(), trace), method, w.url+path, strings.NewReader(body))
	must(w.t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Expect", "100-continue")

	transport := &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: time.Minute}
	res, err := transport.RoundTrip(req)
	must(w.t, err)
	defer res.Body.Close()

	b, err := io.ReadAll(res.Body)
	must(w.t, err)

	return res.StatusCode, string(b)
}

// A caller whose token is deleted, expires or is disabled while the body of its request arrives cannot create a token
// that outlives it, although a token of one's own needs no right.
func TestAccess_ARevokedCallerCreatesNoToken(t *testing.T) {
	for what, revoke := range map[string]func(w *world, token string){
		"deleted": func(w *world, token string) {
			must(t, w.Client.Tokens.Delete(t.Context(), tokenID(token)))
		},
		"expired":  func(w *world, _ string) { w.clock.advance(time.Hour) },
		"disabled": func(w *world, _ string) { _, err := w.Client.Subjects.Disable(t.Context(), "user:eve"); must(t, err) },
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.bind("user:eve", "editor", "default")
			for name, scope := range map[string]*task.TokenScope{"without a scope": nil, "with a scope": {Role: access.RoleViewer, RoleUID: access.BuiltInUID}} {
				token := w.token("user:eve", until(w.clock.now().Add(time.Minute)), func(t *task.Token) { t.Scope = scope })

				// The scope lies where the subject has no rights yet, so nothing of it exceeds what the caller holds.
				body := fmt.Sprintf(`{"scope":{"role":"viewer","namespaces":["other"]},"reason":%q}`, name)
				status, answer := w.sendLate(token, "POST", "/v1/tokens", body, func() { revoke(w, token) })

				if status < http.StatusBadRequest {
					t.Errorf("%s: %d %s", name, status, answer)
				}
				if slices.ContainsFunc(w.keeper.View().Tokens(), func(t task.Token) bool { return t.Reason == name }) {
					t.Errorf("%s: there is a new token", name)
				}
			}
		})
	}
}

// A follower whose token is deleted learns the reason, and not first that its connection has broken off.
func TestFollow_EndsWithTheReasonOfARefusal(t *testing.T) {
	w := newWorld(t)
	w.beat = 20 * time.Millisecond
	w.url = w.serve("node-a")
	w.bind("user:vic", access.RoleViewer, "default")
	admin, token := w.Client, w.token("user:vic")
	w.secret = token

	var lost []error
	o := client.EventOptions{
		Namespace: "default", Lost: func(err error) { lost = append(lost, err) },
		Begun: func() { must(t, admin.Tokens.Delete(t.Context(), tokenID(token))) },
	}

	var last error
	for _, err := range w.client(w.url).Events.Follow(t.Context(), o) {
		last = err
	}

	wantError(t, last, nil, client.CodeUnauthorized)
	if len(lost) > 0 {
		t.Errorf("first it reports %q", lost)
	}
}
