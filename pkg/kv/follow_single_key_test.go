package kv_test

import (
	"context"
	"errors"
	"testing"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
)

// The in-process client forwards an empty end of a range as it is, and etcd interprets it as everything from the key
// on.
func TestFollow_OfOneKeyTellsOfNoOther_InProcess(t *testing.T) {
	s, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}

	defer s.Close()

	c := s.Client()

	for _, k := range []string{"/a/1", "/a/2", "/b"} {
		if _, err := c.Put(t.Context(), k, "v"); err != nil {
			t.Fatal(err)
		}
	}

	enough := errors.New("enough")
	seen := map[string]int{}
	err = kv.Follow(t.Context(), c, kv.FollowConfig{Key: "/a/1"}, func(b kv.Batch) error {
		for _, e := range b.KVs {
			seen[string(e.Key)]++
		}

		for _, e := range b.Events {
			seen[string(e.Kv.Key)]++
		}

		if b.Reset {
			go func() {
				ctx := context.WithoutCancel(t.Context())
				c.Put(ctx, "/a/2", "w")
				c.Put(ctx, "/a/1", "w")
			}()

			return nil
		}

		if len(b.Events) == 0 {
			return nil
		}

		return enough
	})

	if !errors.Is(err, enough) {
		t.Fatal(err)
	}

	if len(seen) != 1 || seen["/a/1"] != 2 {
		t.Fatalf("delivered %v; want /a/1 twice and nothing else", seen)
	}
}
