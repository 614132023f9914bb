package httpapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestActor_NamesTokenAndCertificate(t *testing.T) {
	for want, c := range map[string]Caller{
		"user:ann (token k3vq)":                               {Who: "user:ann", Token: "k3vq"},
		"user:ann (token k3vq, certificate laptop)":           {Who: "user:ann", Token: "k3vq", Certificate: "laptop"},
		"cert:laptop (certificate laptop)":                    {Who: "cert:laptop", Certificate: "laptop"},
		"unix:uid=0":                                          {Who: "unix:uid=0"},
		"a?b?? (token k3vq)":                                  {Who: "a\nb\x1b\xff", Token: "k3vq"},
		"ann ?token x? (token k3vq, certificate x? ?token y)": {Who: "ann (token x)", Token: "k3vq", Certificate: "x) (token y"},
		"service:carillon (token k3vq)":                       {Who: "service:carillon", Token: "k3vq"}, // not what Carillon itself is called
		strings.Repeat("é", 64) + "… (token k3vq, certificate " + strings.Repeat("x", 128) + "…)": {
			Who: strings.Repeat("é", 65), Token: "k3vq", Certificate: strings.Repeat("x", 500)},
	} {
		if got := c.Actor(); got != want {
			t.Errorf("%+v acts as %q, want %q", c, got, want)
		}
	}
}

// Other versions of nodes must find the records of the same requests.
func TestIdempotency_KeepsTheOrderOfItsDigest(t *testing.T) {
	r := httptest.NewRequestWithContext(WithCaller(t.Context(), Caller{Who: "user:ann"}), http.MethodPost, "/", nil)
	c := &Call{Request: r, IdempotencyKey: "k"}
	got, err := c.Idempotency("trigger", nil, "default", "a", "uid")
	want, _ := digest([]string{"user:ann", "default", "a", "uid", "k"})
	if err != nil || got.Key != want {
		t.Errorf("got %s, %v; want %s", got.Key, err, want)
	}
}
