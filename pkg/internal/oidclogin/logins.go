package oidclogin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// requestTimeout limits a request to a provider.
	requestTimeout = 10 * time.Second
	// maxRequests is how many requests to providers can be under way.
	maxRequests = 16
	// maxAnswer is how many bytes of a provider's answer are read.
	maxAnswer = 1 << 20
	// loginWithin is how long a login on the web can take, from the first page to the answer of the provider.
	loginWithin = 10 * time.Minute
	// maxFinished is how many finished logins a node remembers. An answer of the provider is accepted once; the provider also
	// accepts each code once only.
	maxFinished = 4096
)

// Config is what Logins need.
type Config struct {
	Providers []Provider // as ValidateProviders has completed them
	// Key returns the key that seals logins which are under way. All nodes that serve the API need the same one. It is called
	// when somebody wants to sign in, until it has succeeded once.
	Key func(ctx context.Context) ([KeyBytes]byte, error)
	// Now is the wall clock; nil means time.Now.
	Now func() time.Time
	// Transport sends requests to providers; nil means http.DefaultTransport.
	Transport http.RoundTripper
	Logger    *zap.Logger // nil: none
}

// Logins begin and finish logins with the providers of a node. They are safe for concurrent use. A nil *Logins has no
// providers.
type Logins struct {
	providers []*provider // in the order of the setting
	readKey   func(ctx context.Context) ([KeyBytes]byte, error)
	now       func() time.Time
	log       *zap.Logger

	sealing chan struct{} // has one value while somebody reads or changes sealer: a mutex would not end with a context
	sealer  *sealer       // nil until the key is known

	mu       sync.Mutex
	finished map[string]time.Time // by state: when the login would have ended anyway
}

// New returns the logins of a node. It performs no I/O: providers are contacted, and the key is read, when somebody wants to
// sign in.
func New(cfg Config) *Logins {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Transport == nil {
		cfg.Transport = http.DefaultTransport
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}

	client := &http.Client{
		Transport:     &limitedTransport{next: cfg.Transport, slots: make(chan struct{}, maxRequests)},
		Timeout:       requestTimeout,
		CheckRedirect: checkRedirect,
	}

	log := cfg.Logger.Named("oidc")
	l := &Logins{readKey: cfg.Key, now: cfg.Now, log: log, sealing: make(chan struct{}, 1), finished: map[string]time.Time{}}
	for _, p := range cfg.Providers {
		l.providers = append(l.providers, &provider{Provider: p, http: client, now: cfg.Now, log: log, discovering: make(chan struct{}, 1)})
	}

	return l
}

// Status is a provider as the login page shows it.
type Status struct {
	Name    string
	Display string
	Device  bool   // the provider supports the device flow
	Problem string // why nobody can sign in with it now; "" if nothing is known to be wrong
}

// Providers returns the providers in the order of the setting. It asks those that are not known yet, all at the same time.
func (l *Logins) Providers(ctx context.Context) []Status {
	if l == nil {
		return nil
	}

	list := make([]Status, len(l.providers))
	asked := callgroup.New()
	for i, p := range l.providers {
		asked.Go(func() error {
			list[i] = Status{Name: p.Name, Display: p.Display}
			m, err := p.discoverMetadata(ctx)
			if err != nil {
				list[i].Problem = err.Error()
				return nil
			}
			list[i].Device = m.device.url != ""

			return nil
		})
	}

	_ = asked.Wait()

	return list
}

// findProvider returns the provider with a name.
func (l *Logins) findProvider(name string) (*provider, error) {
	var list []*provider
	if l != nil {
		list = l.providers
	}

	i := slices.IndexFunc(list, func(p *provider) bool { return p.Name == name })
	if i >= 0 {
		return list[i], nil
	}

	r := &Refusal{Kind: Unknown, Text: fmt.Sprintf("there is no login provider %s", task.Quote(name)), Hint: "this cluster has no login providers; use a token"}
	if len(list) > 0 {
		var names []string
		for _, p := range list {
			names = append(names, p.Name)
		}
		r.Hint = "the providers of this cluster are: " + strings.Join(names, ", ")
	}

	return nil, r
}

// sealerOf returns the sealer of the cluster, whose key it reads if that is unknown.
func (l *Logins) sealerOf(ctx context.Context) (*sealer, error) {
	refuse := func(err error) error {
		return &Refusal{Kind: Busy, Text: "this node cannot begin or finish logins now: it cannot read the key that protects them", Hint: "try again in a moment, or use a token", cause: err}
	}

	select {
	case l.sealing <- struct{}{}:
		defer func() { <-l.sealing }()
	case <-ctx.Done():
		return nil, refuse(ctx.Err())
	}

	if l.sealer != nil {
		return l.sealer, nil
	}

	key, err := l.readKey(ctx)
	if err != nil {
		l.log.Warn("cannot read the key that seals logins", zap.Error(err))
		return nil, refuse(err)
	}

	l.sealer = newSealer(key)

	return l.sealer, nil
}

// finishOnce reports whether a login is finished for the first time on this node, and remembers it.
func (l *Logins) finishOnce(state string, ends time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	if _, ok := l.finished[state]; ok {
		return false
	}

	if len(l.finished) >= maxFinished {
		now := l.now()
		for other, ends := range l.finished {
			if !now.Before(ends) {
				delete(l.finished, other)
			}
		}
	}
	if len(l.finished) >= maxFinished {
		clear(l.finished) // the providers still accept each code once only
	}

	l.finished[state] = ends

	return true
}

// errBusy means that maxRequests requests to providers are under way.
var errBusy = errors.New("too many requests to login providers are under way")

// limitedTransport limits the number of requests and the size of their answers.
type limitedTransport struct {
	next  http.RoundTripper
	slots chan struct{}
}

// RoundTrip implements http.RoundTripper.
func (t *limitedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case t.slots <- struct{}{}:
	default:
		return nil, errBusy
	}

	free := sync.OnceFunc(func() { <-t.slots })
	res, err := t.next.RoundTrip(r)
	if err != nil {
		free()
		return nil, err
	}

	res.Body = &limitedBody{Reader: io.LimitReader(res.Body, maxAnswer), body: res.Body, free: free}

	return res, nil
}

// limitedBody is the body of an answer. Closing it makes room for another request.
type limitedBody struct {
	io.Reader
	body io.Closer
	free func()
}

// Close implements io.Closer.
func (b *limitedBody) Close() error {
	b.free()
	return b.body.Close()
}

// checkRedirect follows redirects of reads to URLs that checkURL accepts. What is posted contains secrets, so it goes
// nowhere else.
func checkRedirect(r *http.Request, via []*http.Request) error {
	if via[0].Method != http.MethodGet || len(via) > 3 {
		return errors.New("the provider redirects the request")
	}
	return checkURL(r.URL.String())
}
