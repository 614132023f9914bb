package api

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/connlimit"
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
)

// logins limits how many wrong tokens each client may try, and counts and logs refused requests.
type logins struct {
	log     *zap.Logger
	refused *prometheus.CounterVec

	mu      sync.Mutex
	clients map[string]*loginClient
}

// loginClient is the state of a client that was refused recently.
type loginClient struct {
	attempts   bucket // wrong tokens that the client may still try
	lines      bucket // refusals that may still be logged
	suppressed int    // refusals since the last log line that were not logged
}

// bucket is a token bucket. It is full at first and refills with time.
type bucket struct {
	left float64
	at   time.Time // when left was last updated
}

// fill adds what has accumulated since the last call.
func (b *bucket) fill(now time.Time, perSecond, most float64) {
	b.left = min(most, b.left+now.Sub(b.at).Seconds()*perSecond)
	b.at = now
}

// takeToken removes one token. It returns false if none is left.
func (b *bucket) takeToken() bool {
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

func newLogins(log *zap.Logger) *logins {
	return &logins{
		log: log, clients: map[string]*loginClient{},
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carillon_api_logins_refused_total",
			Help: "Requests that were refused because of their token, by status: 401, 403, or 429 after too many failed attempts.",
		}, []string{"code"}),
	}
}

// clientState returns the state of a client, and creates it if necessary. The caller must hold mu.
func (l *logins) clientState(name string, now time.Time) *loginClient {
	c := l.clients[name]
	if c == nil {
		if len(l.clients) >= maxLoginClients {
			l.forgetHarmless(now)
		}
		c = &loginClient{attempts: bucket{loginBurst, now}, lines: bucket{logBurst, now}}
		l.clients[name] = c
	}

	c.attempts.fill(now, loginRate, loginBurst)
	c.lines.fill(now, 1/logPause.Seconds(), logBurst)

	return c
}

// forgetHarmless removes clients that have not been refused for a while. If none of them qualifies, it removes
// all, because memory must stay bounded even if an attacker uses many addresses.
func (l *logins) forgetHarmless(now time.Time) {
	for name, c := range l.clients {
		if now.Sub(c.attempts.at) > logPause*logBurst {
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
	return l.clientState(client, time.Now()).attempts.takeToken()
}

// reportRefusal counts and logs a request that was refused because of its token. It logs only the id of the token,
// which is not secret.
func (l *logins) reportRefusal(r *http.Request, f *httpapi.Failure) {
	code := "401"

	switch f.Status {
	case http.StatusUnauthorized:
	case http.StatusForbidden:
		code = "403"
	case http.StatusTooManyRequests:
		code = "429"
	default:
		return // not caused by the token
	}

	l.refused.WithLabelValues(code).Inc()

	l.mu.Lock()
	c := l.clientState(clientOf(r), time.Now())
	due, suppressed := c.lines.takeToken(), c.suppressed
	if due {
		c.suppressed = 0
	} else {
		c.suppressed++
	}
	l.mu.Unlock()

	if due {
		l.log.Warn("refused a login", zap.String("client", clientOf(r)), zap.String("address", r.RemoteAddr), zap.String("token", tokenIDOf(r)),
			zap.String("reason", f.Detail), zap.Int("suppressed", suppressed))
	}
}

// clientOf returns the name of the client that sent a request: see package connlimit.
func clientOf(r *http.Request) string {
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
	return httpapi.Fail(http.StatusTooManyRequests, client.CodeBusy, "too many requests with unknown tokens have come from this address").
		WithHint("try again in a second")
}
