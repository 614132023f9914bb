package peerhistory

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestHistory_Header(t *testing.T) {
	for _, h := range []Status{{History{"c", 1, ""}, true}, {History{"c", 1_800_000_000, "r1"}, false}} {
		header := http.Header{}
		h.WriteTo(header)
		if got, ok := FromHeader(header); !ok || got != h {
			t.Errorf("%+v becomes %+v, %v", h, got, ok)
		}
	}

	for _, header := range []http.Header{
		{}, {ClusterHeader: {"c"}}, {ClusterHeader: {"c"}, EpochHeader: {"x"}}, {ClusterHeader: {"c"}, EpochHeader: {"-1"}}, {EpochHeader: {"1"}},
	} {
		if h, ok := FromHeader(header); ok {
			t.Errorf("%v is %+v", header, h)
		}
	}
}

func TestOf_NamesTheRestoreThatBeganTheEpoch(t *testing.T) {
	c := task.Cluster{ID: "c", Epoch: 5, Restored: []task.Restored{{Epoch: 5, ID: "r"}}}
	if h := Of(c); h != (History{"c", 5, "r"}) {
		t.Errorf("%+v", h)
	}

	c.Epoch = 6
	if h := Of(c); h != (History{"c", 6, ""}) {
		t.Errorf("%+v", h)
	}
}

func TestHistory_Supersedes(t *testing.T) {
	own := History{"c", 5, "r"}
	for _, c := range []struct {
		other History
		want  bool
	}{
		{own, false},
		{History{"c", 4, "q"}, false},
		{History{"c", 6, "s"}, true},
		{History{"c", 6, ""}, true},
		{History{"c", 5, "s"}, true},
		{History{"c", 5, ""}, false}, // it has not reached etcd yet
		{History{"d", 6, "s"}, false},
		{History{}, false},
	} {
		if got := c.other.Supersedes(own); got != c.want {
			t.Errorf("%+v supersedes %+v: %v", c.other, own, got)
		}
	}

	if (History{"", 6, ""}).Supersedes(History{}) {
		t.Error("a node without a cluster is superseded")
	}
}

func TestAsker(t *testing.T) {
	node := func(header http.Header) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/healthz" {
				maps.Copy(w.Header(), header)
			}
		}))
		t.Cleanup(s.Close)

		return s.URL
	}

	want, header := Status{History{"c", 5, "r"}, true}, http.Header{}
	want.WriteTo(header)

	got := NewAsker(Dial, nil).AskAll(t.Context(), []string{node(header), node(nil), "http://127.0.0.1:1", ""})
	if a := got[0]; a.Err != nil || a.Status != want {
		t.Errorf("a node: %+v", a)
	}
	if !errors.Is(got[1].Err, ErrNoHistory) {
		t.Errorf("another server: %+v", got[1])
	}
	for _, a := range got[2:] {
		if a.Err == nil || errors.Is(a.Err, ErrNoHistory) {
			t.Errorf("nobody: %+v", a)
		}
	}
}
