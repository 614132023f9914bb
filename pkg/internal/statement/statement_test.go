package statement

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func keyOf(node string) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed([]byte(fmt.Sprintf("%-32s", node)))
}

func publicOf(node string) ed25519.PublicKey { return keyOf(node).Public().(ed25519.PublicKey) }

// known knows the nodes n1 and n2, in the instances i1 and i2.
func known(node string) (Issuer, bool) {
	switch node {
	case "n1", "n2":
		return Issuer{Instance: "i" + node[1:], Key: publicOf(node)}, true
	case "old":
		return Issuer{Instance: "i1"}, true // a version without a key
	}

	return Issuer{}, false
}

// Verifies: G37
func TestVerify_AcceptsOnlyWhatWasSignedForThisRequest(t *testing.T) {
	ask := Request{Method: http.MethodGet, Path: "/v1/tasks:ask?question=%7B%7D"}
	for _, c := range []struct {
		name string
		// what the issuer signs, with which key, for which request, and when
		edit   func(*Statement)
		key    string
		signed Request
		at     time.Duration
		// the request that arrives, if it is not the one that was signed
		arrives Request
		header  func(string) string
		want    error
	}{
		{name: "good"},
		{name: "good, HEAD", signed: Request{Method: http.MethodHead, Path: "/v1/version"}},
		{name: "good, with a body", signed: Request{Method: http.MethodGet, Path: "/v1/x", Body: []byte("{}")}},
		{name: "good, with a long query", signed: Request{Method: http.MethodGet, Path: "/v1/x?q=" + strings.Repeat("a,", 30<<10)}},
		{name: "other end of a long query", signed: Request{Method: http.MethodGet, Path: "/v1/x?q=" + strings.Repeat("a,", 30<<10)},
			arrives: Request{Method: http.MethodGet, Path: "/v1/x?q=" + strings.Repeat("a,", 30<<10) + "b"}, want: ErrRequest},
		{name: "a cancel, used for another path", signed: Request{Method: http.MethodPost, Path: CancelPath}, arrives: Request{Method: http.MethodPost, Path: "/v1/x"}, want: ErrWrite},
		{name: "clock 30 s behind", at: -MaxAge},
		{name: "clock 30 s ahead", at: MaxAge},

		{name: "wrong key", key: "n2", want: ErrSignature},
		{name: "unknown issuer", edit: func(s *Statement) { s.From = "n9" }, want: ErrIssuer},
		{name: "issuer without a key", edit: func(s *Statement) { s.From = "old" }, want: ErrIssuer},
		{name: "former instance of the issuer", edit: func(s *Statement) { s.FromInstance = "i0" }, want: ErrIssuer},
		{name: "another node's name", edit: func(s *Statement) { s.From, s.FromInstance = "n2", "i2" }, want: ErrSignature},
		{name: "wrong audience", edit: func(s *Statement) { s.To = "n3" }, want: ErrAudience},
		{name: "former instance of the audience", edit: func(s *Statement) { s.ToInstance = "i0" }, want: ErrAudience},
		{name: "other path", arrives: Request{Method: http.MethodGet, Path: "/v1/tasks"}, want: ErrRequest},
		{name: "other query", arrives: Request{Method: http.MethodGet, Path: "/v1/tasks:ask"}, want: ErrRequest},
		{name: "other method", arrives: Request{Method: http.MethodPost, Path: ask.Path}, want: ErrRequest},
		{name: "other method that reads", arrives: Request{Method: http.MethodHead, Path: ask.Path}, want: ErrRequest},
		{name: "other body", arrives: Request{Method: http.MethodGet, Path: ask.Path, Body: []byte("x")}, want: ErrRequest},
		{name: "POST", signed: Request{Method: http.MethodPost, Path: "/v1/x"}, want: ErrWrite},
		{name: "good, a cancel", signed: Request{Method: http.MethodPost, Path: CancelPath + "?run=a%2Fb%2Fc&token=7"}},
		{name: "a cancel of another attempt", signed: Request{Method: http.MethodPost, Path: CancelPath + "?run=a%2Fb%2Fc&token=7"},
			arrives: Request{Method: http.MethodPost, Path: CancelPath + "?run=a%2Fb%2Fc&token=8"}, want: ErrRequest},
		{name: "POST below the path of cancels", signed: Request{Method: http.MethodPost, Path: CancelPath + "/x"}, want: ErrWrite},
		{name: "POST to a path that begins like it", signed: Request{Method: http.MethodPost, Path: "/v1/attempts/cancelled"}, want: ErrWrite},
		{name: "POST to another path, with it in the query", signed: Request{Method: http.MethodPost, Path: "/v1/x?" + CancelPath}, want: ErrWrite},
		{name: "DELETE of the path of cancels", signed: Request{Method: http.MethodDelete, Path: CancelPath}, want: ErrWrite},
		{name: "PUT", signed: Request{Method: http.MethodPut, Path: "/v1/x"}, want: ErrWrite},
		{name: "PATCH", signed: Request{Method: http.MethodPatch, Path: "/v1/x"}, want: ErrWrite},
		{name: "DELETE", signed: Request{Method: http.MethodDelete, Path: "/v1/x"}, want: ErrWrite},
		{name: "stale", at: -MaxAge - time.Millisecond, want: ErrTime},
		{name: "from the future", at: MaxAge + time.Millisecond, want: ErrTime},
		{name: "empty header", header: func(string) string { return "" }, want: ErrMalformed},
		{name: "no signature", header: func(h string) string { return strings.Split(h, ".")[0] }, want: ErrMalformed},
		{name: "empty signature", header: func(h string) string { return strings.Split(h, ".")[0] + "." }, want: ErrSignature},
		{name: "no base64", header: func(h string) string { return "!" + h }, want: ErrMalformed},
		{name: "too long", header: func(h string) string { return strings.Repeat("A", maxHeader) + h }, want: ErrMalformed},
		{name: "changed after it was signed", header: func(h string) string {
			payload, signature, _ := strings.Cut(h, ".")
			b, _ := strictEncoding.DecodeString(payload)
			return strictEncoding.EncodeToString([]byte(strings.Replace(string(b), "ann", "eve", 1))) + "." + signature
		}, want: ErrSignature},
		{name: "field that is not known", header: func(string) string {
			b := []byte(`{"from":"n1","nonce":"x","only_for":"y"}`)
			return strictEncoding.EncodeToString(b) + "." + strictEncoding.EncodeToString(ed25519.Sign(keyOf("n1"), signedBytes(b)))
		}, want: ErrMalformed},
		{name: "signature without its domain", header: func(h string) string {
			payload, _, _ := strings.Cut(h, ".")
			b, _ := strictEncoding.DecodeString(payload)
			return payload + "." + strictEncoding.EncodeToString(ed25519.Sign(keyOf("n1"), b))
		}, want: ErrSignature},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := Statement{From: "n1", FromInstance: "i1", To: "n2", ToInstance: "i2", Caller: Caller{Who: "ann", Token: "abc"}}

			if c.edit != nil {
				c.edit(&s)
			}

			if c.key == "" {
				c.key = "n1"
			}

			if c.signed.Method == "" {
				c.signed = ask
			}

			if c.arrives.Method == "" {
				c.arrives = c.signed
			}

			header := s.Sign(keyOf(c.key), c.signed, now.Add(c.at))
			if c.header != nil {
				header = c.header(header)
			}

			v := NewVerifier("n2", "i2")
			got, err := v.Verify(header, c.arrives, known, now)
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}

			if err != nil && len(v.nonces) > 0 {
				t.Error("a refused statement takes memory")
			}

			if err == nil && (got.Caller != s.Caller || got.From != "n1") {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// Verifies: G37
func TestVerify_AcceptsAStatementOnce(t *testing.T) {
	v := NewVerifier("n2", "i2")
	ask := Request{Method: http.MethodGet, Path: "/v1/tasks:ask"}
	s := Statement{From: "n1", FromInstance: "i1", To: "n2", ToInstance: "i2"}

	// Its time is MaxAge ahead of this clock, so it is acceptable for a minute.
	header := s.Sign(keyOf("n1"), ask, now.Add(MaxAge))
	if _, err := v.Verify(header, ask, known, now); err != nil {
		t.Fatal(err)
	}

	for _, later := range []time.Duration{0, MaxAge, 2 * MaxAge} {
		if _, err := v.Verify(header, ask, known, now.Add(later)); !errors.Is(err, ErrReplay) {
			t.Errorf("%s later: %v", later, err)
		}
	}

	if _, err := v.Verify(header, ask, known, now.Add(2*MaxAge+time.Millisecond)); !errors.Is(err, ErrTime) {
		t.Errorf("after its nonce was forgotten: %v", err)
	}

	again := s.Sign(keyOf("n1"), ask, now)
	if _, err := v.Verify(again, ask, known, now); err != nil {
		t.Errorf("a second one for the same request: %v", err)
	}
}

func TestVerify_BoundsWhatItRemembers(t *testing.T) {
	v := NewVerifier("n2", "i2")
	full := map[string]time.Time{}
	for i := range maxNonces {
		full[fmt.Sprint(i)] = now.Add(MaxAge)
	}

	v.nonces = maps.Clone(full)
	ask := Request{Method: http.MethodGet, Path: "/v1/tasks:ask"}
	s := Statement{From: "n1", FromInstance: "i1", To: "n2", ToInstance: "i2"}

	if _, err := v.Verify(s.Sign(keyOf("n1"), ask, now), ask, known, now); !errors.Is(err, ErrBusy) {
		t.Errorf("when the verifier is full: %v", err)
	}

	later := now.Add(MaxAge + time.Millisecond)
	if _, err := v.Verify(s.Sign(keyOf("n1"), ask, later), ask, known, later); err != nil || len(v.nonces) != 1 {
		t.Errorf("when the others are too old: %v, %d are remembered", err, len(v.nonces))
	}
}

func TestSign_TellsNoSecret(t *testing.T) {
	header := Statement{Caller: Caller{Token: "abc"}}.Sign(keyOf("n1"), Request{Method: http.MethodGet, Path: "/"}, now)
	b, err := strictEncoding.DecodeString(strings.Split(header, ".")[0])
	if err != nil {
		t.Fatal(err)
	}

	var fields map[string]any
	if err := json.Unmarshal(b, &fields); err != nil || fields["nonce"] == "" || fields["time"] != float64(now.UnixMilli()) {
		t.Errorf("%s: %v", b, err)
	}
}
