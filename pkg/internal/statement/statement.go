// Package statement signs and verifies the statements with which one node makes requests to another on behalf of a
// caller.
//
// A node that forwards a request must not pass on the caller's bearer token, because the other end of the
// connection could misuse it. Instead it sends a Statement, signed with its own Ed25519 key. The public key is in
// its node record. A statement names the caller, the request, the node that is asked, and the time.
//
// A Verifier accepts a statement only if it
//
//   - was signed by a node that the verifier knows, in the instance that it knows
//   - names the verifying node and its instance as the audience, so that a statement that was sent to another
//     node, or to an earlier process of this one, cannot be used
//   - is for exactly this method, this path with its query, and this body
//   - only reads, or cancels one attempt of the verifying node (CancelPath): a statement never authorizes a write to etcd
//   - is not older or newer than MaxAge by the verifier's clock
//   - was not accepted before
//
// It does not protect against a node whose key was stolen: such a node can name any caller in its statements, but
// only to read, and to cancel attempts while the verifying node itself finds that etcd is full (see package attempts). A node whose clock is wrong by more than MaxAge can neither send nor accept statements. The error
// contains the difference.
//
// The package is pure: it uses no clock, no network and no disk.
package statement

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Header carries a signed statement.
const Header = "X-Carillon-Statement"

// CancelPath is the only path to which a statement may authorize a POST. The query names the attempt.
const CancelPath = "/v1/attempts/cancel"

const (
	// MaxAge is how far the time of a statement may be from the verifier's clock.
	MaxAge = 30 * time.Second
	// maxHeader limits what is decoded before anything is verified.
	maxHeader = 8 << 10
	// maxNonces limits the memory for replay detection. Every stored nonce was signed by a known node, so only a
	// faulty node can exceed it.
	maxNonces = 100_000
	// signatureDomain separates these signatures from all others that a node's key may create.
	signatureDomain = "carillon statement 1\n"
)

// The reasons for which Verify rejects a statement.
var (
	ErrMalformed = errors.New("the statement is malformed")
	ErrIssuer    = errors.New("the statement is from a node that is not known")
	ErrSignature = errors.New("the signature of the statement is wrong")
	ErrAudience  = errors.New("the statement is for another node")
	ErrWrite     = errors.New("a statement cannot authorise a change")
	ErrRequest   = errors.New("the statement is for another request")
	ErrTime      = errors.New("the statement is not of this time")
	ErrReplay    = errors.New("the statement was used before")
	ErrBusy      = errors.New("too many statements within a minute")
)

// Caller is the user or program on whose behalf a node makes a request.
type Caller struct {
	Who         string `json:"who"`
	Token       string `json:"token,omitempty"`       // the id of its token, never its secret
	Address     string `json:"address,omitempty"`     // where its request came from
	Certificate string `json:"certificate,omitempty"` // the common name of its client certificate
}

// Statement is the content that a node signs.
type Statement struct {
	From         string `json:"from"` // the node that makes the request
	FromInstance string `json:"from_instance"`
	To           string `json:"to"` // the node that receives it
	ToInstance   string `json:"to_instance"`
	Caller       Caller `json:"caller"`
	Method       string `json:"method"`
	URI          string `json:"uri"`  // SHA-256 of the path with its query, as in the request line; hexadecimal
	Body         string `json:"body"` // SHA-256; hexadecimal
	Time         int64  `json:"time"` // milliseconds since 1970
	Nonce        string `json:"nonce"`
}

// Request is the part of an HTTP request that a statement covers.
type Request struct {
	Method, Path string // the path with its query
	Body         []byte
}

// Sign returns the value of the header. It sets the fields about the request, the time, and a random nonce. The header has a
// limited length, however long the query and the body are.
func (s Statement) Sign(key ed25519.PrivateKey, r Request, now time.Time) string {
	s.Method, s.URI, s.Body = r.Method, hash([]byte(r.Path)), hash(r.Body)
	s.Time, s.Nonce = now.UnixMilli(), rand.Text()

	payload, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("statement: encode: %v", err)) // cannot happen: it contains only strings and a number
	}

	signature := ed25519.Sign(key, signedBytes(payload))

	return strictEncoding.EncodeToString(payload) + "." + strictEncoding.EncodeToString(signature)
}

// strictEncoding rejects encodings that are not canonical, so that a statement has only one form.
var strictEncoding = base64.RawURLEncoding.Strict()

// signedBytes returns the bytes that are signed.
func signedBytes(payload []byte) []byte { return append([]byte(signatureDomain), payload...) }

// hash returns the hash of a part of a request.
func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Issuer is what a verifier knows about a node.
type Issuer struct {
	Instance string
	Key      ed25519.PublicKey
}

// Verifier verifies the statements that are sent to one node. It is safe for concurrent use.
type Verifier struct {
	node, instance string

	mu     sync.Mutex
	nonces map[string]time.Time // by issuer and nonce: until when a statement with it would be accepted
	pruned time.Time            // when expired nonces were last removed
}

// NewVerifier returns the verifier for an instance of a node.
func NewVerifier(node, instance string) *Verifier {
	return &Verifier{node: node, instance: instance, nonces: map[string]time.Time{}}
}

// Verify returns the statement in a header if it authorizes the request now. known returns the node that claims to
// have signed it.
func (v *Verifier) Verify(header string, r Request, known func(node string) (Issuer, bool), now time.Time) (Statement, error) {
	s, payload, signature, err := parseHeader(header)
	if err != nil {
		return Statement{}, err
	}

	// Until the signature is verified, nothing in the statement can be trusted.
	issuer, ok := known(s.From)
	if !ok || len(issuer.Key) != ed25519.PublicKeySize || issuer.Instance != s.FromInstance {
		return Statement{}, fmt.Errorf("%w: %.64q, instance %.64q", ErrIssuer, s.From, s.FromInstance)
	}
	if !ed25519.Verify(issuer.Key, signedBytes(payload), signature) {
		return Statement{}, ErrSignature
	}

	// The statement is authentic. It must also authorize exactly this request.
	if s.To != v.node || s.ToInstance != v.instance {
		return Statement{}, fmt.Errorf("%w: it is for %.64q, instance %.64q", ErrAudience, s.To, s.ToInstance)
	}
	if !mayRequest(s.Method, r.Path) {
		return Statement{}, fmt.Errorf("%w: %.16q", ErrWrite, s.Method)
	}
	if s.Method != r.Method || s.URI != hash([]byte(r.Path)) || s.Body != hash(r.Body) {
		return Statement{}, ErrRequest
	}

	at := time.UnixMilli(s.Time)
	if off := now.Sub(at); off > MaxAge || off < -MaxAge {
		return Statement{}, fmt.Errorf("%w: the clocks of node %s and of node %s differ by %s, or it was under way for so long",
			ErrTime, s.From, v.node, off.Abs().Round(time.Second))
	}

	// The nonce is checked last, so that only statements that are otherwise valid use memory.
	if err := v.useNonce(s.From+" "+s.Nonce, at.Add(MaxAge), now); err != nil {
		return Statement{}, err
	}

	return s, nil
}

// mayRequest reports whether a statement may authorize a method and a path at all. What it authorizes never writes to
// etcd: a cancel makes the verifying node end an attempt, and the node then records the end by its own rights.
func mayRequest(method, path string) bool {
	switch method {
	case http.MethodGet, http.MethodHead:
		return true
	case http.MethodPost:
		path, _, _ = strings.Cut(path, "?")
		return path == CancelPath
	}

	return false
}

// parseHeader decodes a header without verifying anything.
func parseHeader(header string) (s Statement, payload, signature []byte, err error) {
	first, second, ok := strings.Cut(header, ".")
	if !ok || len(header) > maxHeader {
		return s, nil, nil, ErrMalformed
	}
	if payload, err = strictEncoding.DecodeString(first); err != nil {
		return s, nil, nil, ErrMalformed
	}
	if signature, err = strictEncoding.DecodeString(second); err != nil {
		return s, nil, nil, ErrMalformed
	}

	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields() // an unknown field may restrict what is allowed

	if err := d.Decode(&s); err != nil || d.More() || s.From == "" || s.Nonce == "" || len(s.Nonce) > 64 {
		return s, nil, nil, ErrMalformed
	}

	return s, payload, signature, nil
}

// useNonce rejects a nonce that was used before. It stores a new one for as long as a statement with it would be
// accepted.
func (v *Verifier) useNonce(nonce string, until, now time.Time) error {
	v.mu.Lock()
	defer v.mu.Unlock()

	if now.Sub(v.pruned).Abs() > MaxAge || len(v.nonces) >= maxNonces {
		for n, end := range v.nonces {
			if now.After(end) {
				delete(v.nonces, n)
			}
		}

		v.pruned = now
	}

	if _, used := v.nonces[nonce]; used {
		return ErrReplay
	}
	if len(v.nonces) >= maxNonces {
		return ErrBusy // removing a nonce early would allow its replay
	}

	v.nonces[nonce] = until

	return nil
}
