package httpaction

import (
	"container/list"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/policy"
)

const (
	maxTransports = 256
	// idleLimit is how long a connection waits for another request. Servers close idle connections after 2 to 60
	// seconds. A request that meets that moment is lost, and periodic requests meet it often.
	idleLimit      = time.Second
	maxIdlePerHost = 128
	maxIdle        = 512
	maxHeaderBytes = 64 << 10
	bufferBytes    = 4 << 10
	tlsSessions    = 64 // TLS sessions that each transport can resume
)

// tlsIdentity is what a request trusts, and the certificate that it presents, in PEM.
type tlsIdentity struct{ ca, cert string }

// transportKey is what decides whether two requests may share connections.
type transportKey struct {
	rules    string // the rules in JSON
	identity [sha256.Size]byte
}

// transports holds a transport for each TLS identity. All of them have the current rules: when those change, the
// transports with the old rules are dropped, so that no connection outlives the rules under which it was opened.
type transports struct {
	guard    *guard
	resolver *net.Resolver // nil: the host's

	mu      sync.Mutex
	current *policy.HTTP // the rules of the last request
	rules   string       // the same in JSON
	byKey   map[transportKey]*list.Element
	used    *list.List // *usedTransport, the last used first
}

// usedTransport is a transport in the list of those that were used last.
type usedTransport struct {
	key transportKey
	*http.Transport
}

// newTransports returns an empty set.
func newTransports(g *guard, resolver *net.Resolver) *transports {
	return &transports{guard: g, resolver: resolver, byKey: map[transportKey]*list.Element{}, used: list.New()}
}

// transportFor returns the transport of requests with these rules and this identity. An error means that the identity
// is not valid; it does not contain any of it.
func (t *transports) transportFor(rules *policy.HTTP, id tlsIdentity) (*http.Transport, error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.setRules(rules)
	key := transportKey{rules: t.rules}
	if id != (tlsIdentity{}) {
		key.identity = sha256.Sum256([]byte(id.ca + "\x00" + id.cert))
	}

	if e := t.byKey[key]; e != nil {
		t.used.MoveToFront(e)
		return e.Value.(*usedTransport).Transport, nil
	}

	cfg, err := id.config()
	if err != nil {
		return nil, err
	}

	new := newTransport(&dialer{guard: t.guard, rules: rules, resolver: t.resolver, tls: cfg})
	t.byKey[key] = t.used.PushFront(&usedTransport{key, new})
	for t.used.Len() > maxTransports {
		t.drop(t.used.Back())
	}

	return new, nil
}

// setRules drops all transports if the rules have changed. The caller holds mu.
func (t *transports) setRules(rules *policy.HTTP) {
	if rules == t.current && t.rules != "" {
		return
	}

	b, _ := json.Marshal(rules) // strings can always be encoded
	t.current = rules
	if string(b) == t.rules {
		return
	}

	t.rules = string(b)
	for t.used.Len() > 0 {
		t.drop(t.used.Back())
	}
}

// drop removes a transport. Requests in progress are not affected; their connections are closed when they have been idle.
// The caller holds mu.
func (t *transports) drop(e *list.Element) {
	old := t.used.Remove(e).(*usedTransport)
	delete(t.byKey, old.key)
	old.CloseIdleConnections()
}

// closeIdle closes all connections that no request uses.
func (t *transports) closeIdle() {
	t.mu.Lock()
	defer t.mu.Unlock()

	for e := t.used.Front(); e != nil; e = e.Next() {
		e.Value.(*usedTransport).CloseIdleConnections()
	}
}

// size returns the number of transports.
func (t *transports) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()

	return t.used.Len()
}

// newTransport returns a transport for HTTP/1.1. HTTP/2 would send requests again by itself after several errors. It
// ignores the proxy settings in the environment: a proxy would connect to addresses that the guard has not judged.
func newTransport(d *dialer) *http.Transport {
	var only http.Protocols
	only.SetHTTP1(true)

	return &http.Transport{
		Protocols: &only, DialContext: d.dialPlain, DialTLSContext: d.dialTLS,
		IdleConnTimeout: idleLimit, MaxIdleConns: maxIdle, MaxIdleConnsPerHost: maxIdlePerHost,
		MaxResponseHeaderBytes: maxHeaderBytes, WriteBufferSize: bufferBytes, ReadBufferSize: bufferBytes,
	}
}

// config returns the configuration of TLS.
func (id tlsIdentity) config() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, ClientSessionCache: tls.NewLRUClientSessionCache(tlsSessions)}

	if id.ca != "" {
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM([]byte(id.ca)) {
			return nil, errors.New("action.http.tls.ca contains no certificate in PEM")
		}
	}

	if id.cert != "" {
		pair, err := tls.X509KeyPair([]byte(id.cert), []byte(id.cert))
		if err != nil {
			return nil, errors.New("action.http.tls.cert does not contain a certificate and its key in PEM")
		}
		cfg.Certificates = []tls.Certificate{pair}
	}

	return cfg, nil
}
