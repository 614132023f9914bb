package api

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/connlimit"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Limits for clients that send wrong tokens. They bound the load on etcd, the log volume and the memory.
const (
	// A client may try loginBurst wrong tokens in a row, and then loginRate per second.
	loginBurst = 20
	loginRate  = 5
	// For each client, logBurst refusals in a row are logged, and then one in logPause.
	logBurst = 5
	logPause = 10 * time.Second
	// maxLoginClients is the maximum number of recently refused clients in memory.
	maxLoginClients = 4096
	// recordsPerMinute is how many refused logins of all clients are recorded within recordWindow. Then one more record
	// says how many were left out.
	recordsPerMinute = 20
	recordWindow     = time.Minute
)

// operationLogin is the operation of the audit records of refused logins.
const operationLogin = "login"

// logins limits how many wrong tokens each client may try, and counts, logs and records refused logins. They must not
// cost etcd anything, so their audit records go only to record. Denied requests, whose caller is known but lacks a right, are
// counted and logged separately: ordinary pages and commands can request more than their caller may read.
type logins struct {
	log     *zap.Logger
	refused *prometheus.CounterVec
	denied  prometheus.Counter
	record  func(task.AuditRecord) // must not wait
	node    string                 // in the records
	now     func() time.Time       // their time

	mu      sync.Mutex
	clients map[string]*loginClient
	window  recordedWindow
}

// recordedWindow is the present window of recordWindow.
type recordedWindow struct {
	began    time.Time
	recorded int
	omitted  int // refused logins without a record
}

// loginClient is the state of a client that was refused recently.
type loginClient struct {
	used     time.Time
	attempts *rate.Limiter // wrong tokens that the client may still try
	logins   lineLimit     // of refused logins
	denials  lineLimit     // of denied requests, so that they do not hide refused logins
}

// lineLimit limits the log lines of one kind.
type lineLimit struct {
	lines      *rate.Limiter
	suppressed int // since the last log line
}

// note counts a line as logged or as suppressed. It returns how many were suppressed before a line that is logged.
func (l *lineLimit) note(isLogged bool) (suppressed int) {
	if !isLogged {
		l.suppressed++
		return 0
	}

	suppressed, l.suppressed = l.suppressed, 0

	return suppressed
}

func newLogins(node string, now func() time.Time, record func(task.AuditRecord), log *zap.Logger) *logins {
	return &logins{
		log: log, record: record, node: node, now: now, clients: map[string]*loginClient{},
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carillon_api_logins_refused_total",
			Help: "Refused logins, by status: 401 without a valid credential, 403 for a person of an identity provider who has no rights, 429 after too many failed attempts.",
		}, []string{"code"}),
		denied: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_api_requests_denied_total",
			Help: "Requests that were denied because their caller lacks a right.",
		}),
	}
}

// clientState returns the state of a client, and creates it if necessary. The caller must hold mu.
func (l *logins) clientState(name string, now time.Time) *loginClient {
	c := l.clients[name]
	if c == nil {
		if len(l.clients) >= maxLoginClients {
			l.forgetHarmless(now)
		}
		c = &loginClient{
			attempts: rate.NewLimiter(loginRate, loginBurst),
			logins:   lineLimit{lines: rate.NewLimiter(rate.Every(logPause), logBurst)},
			denials:  lineLimit{lines: rate.NewLimiter(rate.Every(logPause), logBurst)},
		}
		l.clients[name] = c
	}
	c.used = now

	return c
}

// forgetHarmless removes clients that have not been refused for a while. If none of them qualifies, it removes
// all, because memory must stay bounded even if an attacker uses many addresses.
func (l *logins) forgetHarmless(now time.Time) {
	for name, c := range l.clients {
		if now.Sub(c.used) > logPause*logBurst {
			delete(l.clients, name)
		}
	}

	if len(l.clients) >= maxLoginClients {
		clear(l.clients)
	}
}

// mayTry counts a wrong token of a client, and reports whether the client may try another one now.
func (l *logins) mayTry(client string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	now := time.Now()

	return l.clientState(client, now).attempts.AllowN(now, 1)
}

// reportRefusal counts and logs a request that was refused because of its credentials or rights, and records refused
// credentials. who is the caller as far as it is known. Of a token, only the id is logged and recorded, which is not secret.
func (l *logins) reportRefusal(r *http.Request, who httpapi.Caller, f *httpapi.Failure) {
	if f.Status == http.StatusForbidden {
		l.reportDenial(r, who, f)
		return
	}

	l.reportLogin(r, who, f)
}

// reportDenial counts and logs a request whose caller lacks a right.
func (l *logins) reportDenial(r *http.Request, who httpapi.Caller, f *httpapi.Failure) {
	l.denied.Inc()

	l.mu.Lock()
	now := time.Now()
	c := l.clientState(clientOf(r), now)
	due := c.denials.lines.AllowN(now, 1)
	suppressed := c.denials.note(due)
	l.mu.Unlock()

	if due {
		l.log.Info("denied a request", l.fieldsOf(r, who, f, suppressed)...)
	}
}

// reportLogin counts, logs and records a refused login: of a request without a valid credential, or of a person with an
// identity provider, also if this person only lacks rights.
func (l *logins) reportLogin(r *http.Request, who httpapi.Caller, f *httpapi.Failure) {
	switch f.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
	default:
		return // not caused by the caller
	}

	l.refused.WithLabelValues(strconv.Itoa(f.Status)).Inc()

	now := time.Now()
	l.mu.Lock()
	c := l.clientState(clientOf(r), now)
	due := l.takeRecord(c.logins.lines.AllowN(now, 1), now)
	suppressed := c.logins.note(due)
	l.mu.Unlock()

	if !due {
		return
	}

	l.log.Warn("refused a login", l.fieldsOf(r, who, f, suppressed)...)

	a := l.newRecord(f.Detail)
	a.Subject, a.Token, a.Certificate, a.Address = who.Who, cmp.Or(who.Token, tokenIDOf(r)), who.Certificate, addressOf(r)
	l.record(a)
}

// fieldsOf returns the fields of a log line about a refused request.
func (l *logins) fieldsOf(r *http.Request, who httpapi.Caller, f *httpapi.Failure, suppressed int) []zap.Field {
	return []zap.Field{
		zap.String("subject", who.Who), zap.String("client", clientOf(r)), zap.String("address", r.RemoteAddr),
		zap.String("token", cmp.Or(who.Token, tokenIDOf(r))), zap.String("reason", f.Detail), zap.Int("suppressed", suppressed),
	}
}

// takeRecord reports whether a refused login may be recorded now. due is whether its client has not been refused too often.
// The caller must hold mu. At the end of a window in which some were left out, one record says how many.
func (l *logins) takeRecord(due bool, now time.Time) bool {
	w := &l.window
	if now.Sub(w.began) >= recordWindow {
		w.began, w.recorded = now, 0
	}

	if due && w.recorded < recordsPerMinute {
		w.recorded++
		return true
	}

	if w.omitted++; w.omitted == 1 {
		time.AfterFunc(w.began.Add(recordWindow).Sub(now), l.recordOmitted)
	}

	return false
}

// recordOmitted records how many refused logins have no record.
func (l *logins) recordOmitted() {
	l.mu.Lock()
	n := l.window.omitted
	l.window.omitted = 0
	l.mu.Unlock()

	if n == 0 {
		return
	}

	l.log.Warn("refused logins were left out", zap.Int("logins", n))
	l.record(l.newRecord(fmt.Sprintf("%d refused logins were left out", n)))
}

// newRecord returns the audit record of a refused login.
func (l *logins) newRecord(reason string) task.AuditRecord {
	now := l.now()
	return task.AuditRecord{
		ID: record.NewAuditID(now), Time: task.At(now), Node: l.node, Operation: operationLogin, Outcome: task.AuditRefused, Reason: reason,
	}
}

// clientOf returns the name of the client that sent a request: see package connlimit. The address of the request comes
// first, because behind a trusted proxy it is not that of the connection. Over the unix socket there is none.
func clientOf(r *http.Request) string {
	if addressOf(r) != "" {
		return connlimit.ClientOf(r.RemoteAddr)
	}
	if name, ok := connlimit.ClientFrom(r.Context()); ok {
		return name
	}
	return connlimit.ClientOf(r.RemoteAddr)
}

// tokenIDOf returns the id of a request's token, or "" if the request has nothing that could be a token.
func tokenIDOf(r *http.Request) string {
	_, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	id, _, _ := authority.ParseSecret(strings.TrimSpace(secret))
	return id
}

// errTooManyLogins is the answer to a client that has tried too many wrong tokens.
func errTooManyLogins() error {
	return httpapi.Fail(http.StatusTooManyRequests, client.CodeRateLimited, "too many requests with unknown tokens have come from this address").
		WithHint("try again in a second")
}
