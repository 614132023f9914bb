package api

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/connlimit"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Limits for clients that send wrong tokens. They bound the load on etcd, the log volume and the memory.
const (
	// unknownTokenAge is how long an id that was not found is assumed to be unknown. A token that is created
	// directly after somebody has tried its id is therefore refused for up to this time.
	unknownTokenAge = time.Second
	// maxUnknownTokens is the maximum number of unknown ids in memory.
	maxUnknownTokens = 4096
	// tokensPerRead is the maximum number of records that one read fetches from etcd.
	tokensPerRead = 64

	// A client may try loginBurst wrong tokens in a row, and then loginRate per second.
	loginBurst = 20
	loginRate  = 5
	// For each client, logBurst refusals in a row are logged, and then one in logPause.
	logBurst = 5
	logPause = 10 * time.Second
	// maxLoginClients is the maximum number of recently refused clients in memory.
	maxLoginClients = 4096
)

// tokenReader reads the records of tokens that are not in the cache. At most one read is in progress at a time,
// and it fetches everything that callers wait for. So unknown tokens cost etcd little, and a valid token waits
// for two reads at most unless more than tokensPerRead ids are queued before it.
type tokenReader struct {
	read func(ctx context.Context, ids []string) ([]store.FoundToken, error)

	mu    sync.Mutex
	queue []string // ids to read, the oldest first
	// waiting holds the channels of callers by id. Each has a buffer of one, so a caller that has gone blocks
	// nobody.
	waiting map[string][]chan<- store.FoundToken
	reading bool                 // a goroutine runs readQueue
	unknown map[string]time.Time // when an id was last not found
}

// newTokenReader returns a reader that reads tokens with read.
func newTokenReader(read func(ctx context.Context, ids []string) ([]store.FoundToken, error)) *tokenReader {
	return &tokenReader{read: read, waiting: map[string][]chan<- store.FoundToken{}, unknown: map[string]time.Time{}}
}

// findToken returns the record of a token. It returns task.ErrNotFound if there is none, and task.ErrUnavailable if
// ctx ends first.
func (r *tokenReader) findToken(ctx context.Context, id string) (record.Token, error) {
	r.mu.Lock()
	if at, ok := r.unknown[id]; ok && time.Since(at) < unknownTokenAge {
		r.mu.Unlock()
		return record.Token{}, task.ErrNotFound
	}

	// A second caller with the same id waits for the same read.
	if r.waiting[id] == nil {
		r.queue = append(r.queue, id)
	}

	answer := make(chan store.FoundToken, 1)
	r.waiting[id] = append(r.waiting[id], answer)
	if !r.reading {
		r.reading = true
		// This goroutine also reads for other callers, so it must not end with this caller's context.
		go r.readQueue(context.WithoutCancel(ctx))
	}
	r.mu.Unlock()

	select {
	case found := <-answer:
		return found.Token, found.Err
	case <-ctx.Done():
		return record.Token{}, errors.Join(task.ErrUnavailable, ctx.Err())
	}
}

// readQueue reads until the queue is empty, and then ends.
func (r *tokenReader) readQueue(ctx context.Context) {
	for {
		r.mu.Lock()
		ids := r.queue[:min(len(r.queue), tokensPerRead)]
		if len(ids) == 0 {
			r.queue, r.reading = nil, false
			r.mu.Unlock()
			return
		}

		r.queue = r.queue[len(ids):]
		// Callers that arrive from here on wait for the next read, because this one may miss a token that was
		// created in between.
		waiting := make([][]chan<- store.FoundToken, len(ids))
		for i, id := range ids {
			waiting[i] = r.waiting[id]
			delete(r.waiting, id)
		}
		r.mu.Unlock()

		readCtx, cancel := context.WithTimeout(ctx, httpapi.RequestTimeout)
		found, err := r.read(readCtx, ids)
		cancel()

		for i := range ids {
			answer := store.FoundToken{Err: err}
			if err == nil {
				answer = found[i]
			}

			if errors.Is(answer.Err, task.ErrNotFound) {
				r.rememberUnknown(ids[i])
			}

			for _, w := range waiting[i] {
				w <- answer // never blocks: each channel has a buffer of one
			}
		}
	}
}

// rememberUnknown records that an id was not found. A full map is emptied, which only costs reads.
func (r *tokenReader) rememberUnknown(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if len(r.unknown) >= maxUnknownTokens {
		clear(r.unknown)
	}

	r.unknown[id] = time.Now()
}

// logins limits how many wrong tokens each client may try, and counts and logs refused requests.
type logins struct {
	log     *zap.Logger
	refused *prometheus.CounterVec

	mu      sync.Mutex
	clients map[string]*loginClient
}

// loginClient is the state of a client that was refused recently.
type loginClient struct {
	attempts   bucket // token lookups that the client may still cause
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

// newLogins returns counters without any refused clients.
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

// mayTry reports whether a client may cause one more lookup in etcd. The lookup counts as a failed login unless
// giveBack is called.
func (l *logins) mayTry(client string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clientState(client, time.Now()).attempts.takeToken()
}

// giveBack returns an attempt to the client's budget, because the token was valid or could not be looked up.
func (l *logins) giveBack(client string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clientState(client, time.Now()).attempts.left++
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
	id, _, _ := parseToken(strings.TrimSpace(secret))
	return id
}

// errTooManyLogins is the answer to a client that may not cause another lookup in etcd.
func errTooManyLogins() error {
	return httpapi.Fail(http.StatusTooManyRequests, client.CodeBusy, "too many requests with unknown tokens have come from this address").
		WithHint("try again in a second")
}
