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

// Bounds for callers who try tokens.
const (
	// unknownTokenAge is how long an id that was not found is taken to be unknown. A token
	// that is made right after somebody has tried its id is refused for as long.
	unknownTokenAge  = time.Second
	maxUnknownTokens = 4096
	// tokensPerRead is how many records are read from etcd at once.
	tokensPerRead = 64

	// A client may try loginBurst wrong tokens in a row, and then loginRate a second.
	loginBurst = 20
	loginRate  = 5
	// Of each client logBurst refusals are logged in a row, and then one in logPause.
	logBurst = 5
	logPause = 10 * time.Second
	// maxLoginClients is how many clients are known that were refused lately.
	maxLoginClients = 4096
)

// tokenReader reads records of tokens that no cache holds. However many callers ask,
// one read is under way at a time, and it reads what all of them wait for: unknown
// tokens cost etcd little, and a valid one waits for two reads at most.
type tokenReader struct {
	read func(ctx context.Context, ids []string) ([]store.FoundToken, error)

	mu      sync.Mutex
	queue   []string // ids to read, the oldest first
	waiting map[string][]chan<- store.FoundToken
	reading bool
	unknown map[string]time.Time // when an id was not found
}

func newTokenReader(read func(ctx context.Context, ids []string) ([]store.FoundToken, error)) *tokenReader {
	return &tokenReader{read: read, waiting: map[string][]chan<- store.FoundToken{}, unknown: map[string]time.Time{}}
}

// find returns the record of a token, task.ErrNotFound if there is none.
func (r *tokenReader) find(ctx context.Context, id string) (record.Token, error) {
	r.mu.Lock()
	if at, ok := r.unknown[id]; ok && time.Since(at) < unknownTokenAge {
		r.mu.Unlock()
		return record.Token{}, task.ErrNotFound
	}

	if r.waiting[id] == nil {
		r.queue = append(r.queue, id)
	}

	answer := make(chan store.FoundToken, 1)
	r.waiting[id] = append(r.waiting[id], answer)
	if !r.reading {
		r.reading = true
		// It reads for others, too, so it does not end with this caller.
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

// readQueue reads until nobody waits.
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
		// Whoever asks from here on waits for the next read: this one may be too early.
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
				w <- answer // each has room for one
			}
		}
	}
}

func (r *tokenReader) rememberUnknown(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if len(r.unknown) >= maxUnknownTokens {
		clear(r.unknown)
	}

	r.unknown[id] = time.Now()
}

// logins bounds what clients may try, and tells who was refused.
type logins struct {
	log     *zap.Logger
	refused *prometheus.CounterVec

	mu      sync.Mutex
	clients map[string]*loginClient
}

// loginClient is a client that was refused lately.
type loginClient struct {
	attempts   bucket
	lines      bucket
	suppressed int // refusals that were not logged since the last that was
}

// bucket is a token bucket: it is full at first, and fills again with time.
type bucket struct {
	left float64
	at   time.Time
}

// fill adds what has come since the last time.
func (b *bucket) fill(now time.Time, perSecond, most float64) {
	b.left = min(most, b.left+now.Sub(b.at).Seconds()*perSecond)
	b.at = now
}

// take takes one, if there is one.
func (b *bucket) take() bool {
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

// client returns the state of a client. The caller holds mu.
func (l *logins) client(name string, now time.Time) *loginClient {
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

// forgetHarmless forgets clients that have not been refused for a while; if all have,
// all of them: memory is bounded in any case.
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

// mayTry reports whether a client may have one more token looked up in etcd. It
// counts as a failure unless giveBack is called.
func (l *logins) mayTry(client string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.client(client, time.Now()).attempts.take()
}

// giveBack gives an attempt back: the token was a valid one, or could not be looked up.
func (l *logins) giveBack(client string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.client(client, time.Now()).attempts.left++
}

// report counts and logs that a request was refused for its token. Of the token it
// logs the id, which is not secret; never more.
func (l *logins) report(r *http.Request, f *httpapi.Failure) {
	code := "401"

	switch f.Status {
	case http.StatusUnauthorized:
	case http.StatusForbidden:
		code = "403"
	case http.StatusTooManyRequests:
		code = "429"
	default:
		return // it is not the token's fault
	}

	l.refused.WithLabelValues(code).Inc()

	l.mu.Lock()
	c := l.client(clientOf(r), time.Now())
	due, suppressed := c.lines.take(), c.suppressed
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

// clientOf names the client that a request is from: see connlimit.
func clientOf(r *http.Request) string {
	if name, ok := connlimit.ClientFrom(r.Context()); ok {
		return name
	}
	return connlimit.ClientOf(r.RemoteAddr)
}

// tokenIDOf is the id of the token that a request has, "" if it has none that could be one.
func tokenIDOf(r *http.Request) string {
	_, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	id, _, _ := parseToken(strings.TrimSpace(secret))
	return id
}

// errTooManyLogins is answered instead of a look into etcd.
func errTooManyLogins() error {
	return httpapi.Fail(http.StatusTooManyRequests, client.CodeBusy, "too many requests with unknown tokens have come from this address").
		WithHint("try again in a second")
}
