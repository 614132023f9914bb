package httpapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestActor_NamesTokenAndCertificate(t *testing.T) {
	long := strings.Repeat("x", 500)
	for _, c := range []struct {
		caller Caller
		want   task.Actor
	}{
		{Caller{Who: "user:ann", Token: "k3vq"}, task.Actor{Subject: "user:ann", Token: "k3vq"}},
		{Caller{Who: "user:ann", Token: "k3vq", Certificate: "laptop"}, task.Actor{Subject: "user:ann", Token: "k3vq", Certificate: "laptop"}},
		{Caller{Who: "unix:uid=0"}, task.Actor{Subject: "unix:uid=0"}},
		{Caller{Who: "cert:ann (token x)\xff", Certificate: "ann (token x)\xff"}, task.Actor{Subject: "cert:ann (token x)?", Certificate: "ann (token x)?"}},
		{Caller{Who: "cert:" + long, Certificate: long}, task.Actor{Subject: "cert:" + long[:task.MaxSubjectLength-5] + "…", Certificate: long[:128] + "…"}},
	} {
		if got := c.caller.Actor(); *got != c.want {
			t.Errorf("%+v acts as %+v, want %+v", c.caller, got, c.want)
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
