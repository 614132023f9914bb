package api_test

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/statement"
	"github.com/carillonhq/carillon/pkg/task"
)

// login sends a request with a token, from an address.
func (w *world) login(from, token string) response {
	w.t.Helper()
	return w.do(request{method: "GET", path: "/v1/nodes", header: map[string]string{"Authorization": "Bearer " + token, "X-Test-From": from}})
}

func TestLogins_AFloodOfUnknownTokensIsEndedAndLogged(t *testing.T) {
	w := newWorld(t)
	w.bind("user:bob", access.RoleViewer)
	late := w.token("user:bob") // not used before the flood

	if r := w.login("192.0.2.1", w.secret); r.status != 200 {
		t.Fatalf("a valid token: %d", r.status)
	}

	var secrets []string
	statuses := map[int]int{}
	for range 200 {
		unknown, _ := authority.NewSecret()
		secrets = append(secrets, strings.Split(unknown, "_")[2])
		r := w.login("192.0.2.1", unknown)
		statuses[r.status]++
		if r.status == 429 && (r.header.Get("Retry-After") == "" || r.Code != client.CodeRateLimited) {
			t.Fatalf("429 with code %s and %v", r.Code, r.header)
		}
	}

	if statuses[401] < 20 || statuses[429] < 50 || statuses[401]+statuses[429] != 200 {
		t.Errorf("200 unknown tokens: %v", statuses)
	}

	// A flood does not affect other addresses, and not a token that this node has seen, even from the same
	// address.
	if r := w.login("192.0.2.2", late); r.status != 200 {
		t.Errorf("a valid token from another address: %d", r.status)
	}

	if r := w.login("192.0.2.1", w.secret); r.status != 200 {
		t.Errorf("a known token from the same address: %d", r.status)
	}

	lines := w.log.FilterMessage("refused a login").All()
	if len(lines) == 0 || len(lines) > 10 {
		t.Errorf("%d lines of log for 200 refused requests", len(lines))
	}

	for _, l := range lines {
		fields := l.ContextMap()
		if fields["client"] != "192.0.2.1" || fmt.Sprint(fields["token"]) == "" || fmt.Sprint(fields["reason"]) == "" {
			t.Errorf("logged: %v", fields)
		}

		for _, s := range secrets {
			if strings.Contains(fmt.Sprint(fields), s) {
				t.Fatalf("the log has a secret: %v", fields)
			}
		}
	}

	metrics := w.do(request{method: "GET", path: "/metrics"}).body

	for _, want := range []string{
		fmt.Sprintf("carillon_api_logins_refused_total{code=\"401\"} %d", statuses[401]),
		fmt.Sprintf("carillon_api_logins_refused_total{code=\"429\"} %d", statuses[429]),
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

// The ids of tokens appear in logs. Somebody who knows one must not be able to have it looked up as often as
// they like, or to lock out its holder.
func TestLogins_AWrongSecretOfAKnownTokenIsLimitedToo(t *testing.T) {
	w := newWorld(t)
	if r := w.login("192.0.2.1", w.secret); r.status != 200 {
		t.Fatalf("a valid token: %d", r.status)
	}

	limited := false
	for range 100 {
		other, _ := authority.NewSecret()
		wrong := strings.Join(append(strings.Split(w.secret, "_")[:2], strings.Split(other, "_")[2]), "_")
		limited = limited || w.login("192.0.2.1", wrong).status == 429
	}

	if !limited {
		t.Error("100 wrong secrets were looked up")
	}

	if r := w.login("192.0.2.1", w.secret); r.status != 200 {
		t.Errorf("its holder: %d", r.status)
	}
}

func TestLogins_AreLoggedWithTheirReason(t *testing.T) {
	w := newWorld(t)
	nobody := w.token("user:nobody")
	unknown, _ := authority.NewSecret()
	for token, reason := range map[string]string{
		"":             "Authorization header",
		"nonsense":     "Authorization header",
		w.secret + "x": "Authorization header",
		nobody:         "may not read",
		unknown:        "not known",
	} {
		w.login("192.0.2."+fmt.Sprint(len(reason)+len(token)%100), token)
		message := "refused a login"
		if token == nobody { // a valid token, whose holder lacks a right
			message = "denied a request"
		}

		lines := w.log.FilterMessage(message).TakeAll()
		if len(lines) != 1 || !strings.Contains(fmt.Sprint(lines[0].ContextMap()["reason"]), reason) {
			t.Errorf("%d letters: logged %v, want the reason %q", len(token), lines, reason)
		}

		w.log.TakeAll()
	}
}

// A denied request is no refused login, on which people alert: everyday commands can ask for more than their caller may read.
// However many requests of a client are denied, they do not hide its refused logins.
func TestLogins_DeniedRequestsAreCountedApart(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	var recorded []task.AuditRecord
	w.refusedLogin = func(a task.AuditRecord) { mu.Lock(); defer mu.Unlock(); recorded = append(recorded, a) }
	w.url = w.serve("node-a")
	nobody := w.token("user:nobody")
	unknown, _ := authority.NewSecret()

	for range 50 {
		if r := w.login("192.0.2.1", nobody); r.status != 403 {
			t.Fatalf("a token without rights: %d", r.status)
		}
	}
	w.login("192.0.2.1", unknown)

	if n := w.log.FilterMessage("refused a login").Len(); n != 1 {
		t.Errorf("%d refused logins are logged, want 1", n)
	}
	if n := w.log.FilterMessage("denied a request").Len(); n == 0 || n > 10 {
		t.Errorf("%d lines of log for 50 denied requests", n)
	}

	mu.Lock()
	defer mu.Unlock()
	if len(recorded) != 1 || !strings.Contains(recorded[0].Reason, "not known") {
		t.Errorf("audit records of refused logins: %+v", recorded)
	}

	metrics := w.do(request{method: "GET", path: "/metrics"}).body
	for _, want := range []string{`carillon_api_logins_refused_total{code="401"} 1`, "carillon_api_requests_denied_total 50"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if strings.Contains(metrics, `carillon_api_logins_refused_total{code="403"}`) {
		t.Error("denied requests count as refused logins")
	}
}

// Anybody can send a statement that no node has signed: a flood of them must not fill the log.
func TestLogins_AFloodOfStatementsIsLoggedLikeOneOfTokens(t *testing.T) {
	w := newWorld(t)
	w.log.TakeAll()

	for range 200 {
		r := w.do(request{method: "GET", path: "/v1/nodes", header: map[string]string{statement.Header: "nonsense"}, noToken: true})
		wantStatus(t, "a statement that nobody has signed", r, 401, client.CodeUnauthorized)
	}

	lines := w.log.TakeAll()
	if len(lines) == 0 || len(lines) > 10 {
		t.Fatalf("%d lines of log for 200 refused requests", len(lines))
	}
	if reason := fmt.Sprint(lines[0].ContextMap()["reason"]); !strings.Contains(reason, "malformed") {
		t.Errorf("the reason is %q", reason)
	}
}

// The record of a refused login has the subject if the token is known, the address and the reason, and never the secret.
// It is not in etcd.
//
// Verifies: G35
func TestLogins_AreRecordedWithWhatIsKnown(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	var records []task.AuditRecord
	w.refusedLogin = func(a task.AuditRecord) { mu.Lock(); defer mu.Unlock(); records = append(records, a) }
	w.url = w.serve("node-a")

	expired := w.token("user:bob", until(w.clock.now().Add(-time.Minute)))
	elsewhere := w.token("service:ci", func(t *task.Token) { t.CIDRs = []string{"198.51.100.0/24"} })
	unknown, _ := authority.NewSecret()
	nobody := w.token("user:nobody")
	before := w.dump()

	for _, c := range []struct{ token, subject, id, reason string }{
		{expired, "user:bob", tokenID(expired), "expired"},
		{elsewhere, "service:ci", tokenID(elsewhere), "address"},
		{unknown, "", tokenID(unknown), "not known"},
		{"junk", "", "", "Authorization header"},
	} {
		if r := w.login("192.0.2.7", c.token); r.status != 401 {
			t.Fatalf("%s: %d", c.reason, r.status)
		}

		mu.Lock()
		a := records[len(records)-1]
		mu.Unlock()
		if a.Subject != c.subject || a.Token != c.id || a.Address != "192.0.2.7" || a.Node != "node-a" || a.Outcome != task.AuditRefused || a.Operation != "login" || !strings.Contains(a.Reason, c.reason) {
			t.Errorf("%s: %+v", c.reason, a)
		}
		if secret := strings.Split(c.token, "_"); len(secret) == 3 && strings.Contains(fmt.Sprint(a), secret[2]) {
			t.Errorf("%s: the record has the secret: %+v", c.reason, a)
		}
	}

	if r := w.login("192.0.2.7", nobody); r.status != 403 {
		t.Errorf("without the right: %d", r.status)
	}

	mu.Lock()
	defer mu.Unlock()
	if len(records) != 4 {
		t.Errorf("%d records of four refused logins", len(records))
	}
	if after := w.dump(); !maps.Equal(before, after) {
		t.Error("etcd has changed")
	}
}
