package oidclogin

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
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
	// loginTimeout is how long a login on the web can take, from the first page to the answer of the provider.
	loginTimeout = 10 * time.Minute
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

// Kind says whose fault it is that a login did not succeed.
type Kind int

// The kinds of refusals.
const (
	// Refused means that the login is not valid: it was refused by the provider or by the person, took too long, or is not
	// what this cluster began.
	Refused Kind = iota
	// Away means that the provider does not answer, or not as a provider should.
	Away
	// Misconfigured means that the settings of the node and those of the provider do not fit together.
	Misconfigured
	// Unknown means that there is no such provider.
	Unknown
	// Busy means that too many logins are under way.
	Busy
)

// Refusal is why a login did not succeed, in words for the person who tries.
type Refusal struct {
	Kind  Kind
	Text  string
	Hint  string // what to do about it; may be ""
	cause error  // for the log
}

// Error implements error.
func (r *Refusal) Error() string { return r.Text }

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.cause }

const beginAgain = "begin the login again"

func refuse(format string, args ...any) *Refusal {
	return &Refusal{Kind: Refused, Text: fmt.Sprintf(format, args...), Hint: beginAgain}
}

func (p *provider) refuseLogin(format string, args ...any) *Refusal {
	return refuse("login with %s: %s", p.Display, fmt.Sprintf(format, args...))
}

func (p *provider) refuseMisconfigured(format string, args ...any) *Refusal {
	return &Refusal{
		Kind: Misconfigured, Text: fmt.Sprintf("login with %s: %s", p.Display, fmt.Sprintf(format, args...)),
		Hint: "ask an administrator of the cluster to compare the setting oidc with the provider",
	}
}

// refuseFailedRequest returns the refusal for a request to the provider that failed.
func (p *provider) refuseFailedRequest(err error) *Refusal {
	r := &Refusal{Kind: Away, Text: fmt.Sprintf("login with %s: the provider does not answer: %s", p.Display, shorten(err.Error())), Hint: "try again later, or use a token", cause: err}

	switch {
	case errors.Is(err, errBusy):
		r.Kind, r.Text, r.Hint = Busy, fmt.Sprintf("login with %s: too many logins are under way", p.Display), "try again in a moment"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		r.Text = fmt.Sprintf("login with %s: the provider does not answer in time", p.Display)
	}

	return r
}

// maxQuoted is how much of a provider's text is in a message.
const maxQuoted = 200

// shorten returns a provider's text in the form of messages: one line of limited length.
func shorten(s string) string {
	quoted := quote(s)

	// Only text in quotes needs its own quotes escaped.
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// quote is shorten in quotes.
func quote(s string) string {
	if len(s) > maxQuoted {
		s = strings.ToValidUTF8(s[:maxQuoted], "") + "…"
	}
	return strconv.Quote(s)
}

// KeyBytes is the length of the key that seals logins that are under way.
const KeyBytes = 32

// maxSealed is the maximum length of a sealed text that is opened. Cookies are limited to 4096 bytes by browsers.
const maxSealed = 8 << 10

// What a sealed text is for. A text for one purpose cannot be used for another.
const (
	purposeWeb    = "web"
	purposeDevice = "device"
)

// sealer encrypts and authenticates what travels with a login that is under way.
type sealer struct{ aead cipher.AEAD }

func newSealer(key [KeyBytes]byte) *sealer {
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic("oidclogin: " + err.Error()) // cannot happen: 32 bytes are a valid key
	}

	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic("oidclogin: " + err.Error()) // cannot happen: AES has blocks of 16 bytes
	}

	return &sealer{aead}
}

// bindingFor returns the additional data that binds a text to its purpose.
func bindingFor(purpose string) []byte { return []byte("carillon login 1\x00" + purpose) }

// seal returns v as a text that only nodes with the key can read and make.
func (s *sealer) seal(purpose string, v any) string {
	plain, err := json.Marshal(v)
	if err != nil {
		panic("oidclogin: " + err.Error()) // cannot happen: only strings and times are sealed
	}

	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, plain, bindingFor(purpose)))
}

var errNotSealed = errors.New("the text was not sealed with this cluster's key, or was changed")

// open decodes into v what seal has returned for the same purpose.
func (s *sealer) open(purpose, text string, v any) error {
	sealed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(text) > maxSealed {
		return errNotSealed
	}

	plain, err := s.aead.Open(nil, nil, sealed, bindingFor(purpose))
	if err != nil || json.Unmarshal(plain, v) != nil {
		return errNotSealed
	}

	return nil
}
