package store_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
)

// putSpecs puts n specs into an etcd, in two namespaces, and returns their names in order.
func putSpecs(t *testing.T, etcd *kv.Client, prefix string, n int) (names []string) {
	for i := range n {
		name := fmt.Sprintf("%s/t%04d", []string{"a", "b"}[2*i/n], i)
		_, err := etcd.Put(t.Context(), prefix+"/tasks/"+name, "{}")
		ok(t, err)
		names = append(names, name)
	}

	return names
}

// Splits change only what etcd has to do for a page.
func TestBriefs_PagesAreTheSameWithAnySplits(t *testing.T) {
	t.Parallel()
	etcd := kvtest.Memory(t)
	s := store.New(etcd, kv.Direct(etcd), testKeys(t, "/c"))
	names := putSpecs(t, etcd, "/c", 40)

	for how, splits := range map[string][]string{
		"none":             nil,
		"dense":            names,
		"sparse":           {names[3], names[4], names[30]},
		"of deleted tasks": {"a/", "a/t0000a", "a/t0001a", "a/t0001b", "a/t0001c", "a/z", "b/t0039", "b/z"},
		"others":           {"0/x", "0/y", "c/x"},
	} {
		for _, limit := range []int{1, 3, 20, 39, 40, 41, 100} {
			for _, q := range []store.BriefPage{{}, {Namespace: "a"}, {Namespace: "b", Prefix: "t003"}} {
				var want, got []string
				for _, name := range names {
					if q.Namespace == "" || len(name) > len(q.Namespace+"/"+q.Prefix) && name[:len(q.Namespace+"/"+q.Prefix)] == q.Namespace+"/"+q.Prefix {
						want = append(want, name)
					}
				}

				pages := 0
				for q.Limit, q.Splits, q.After = limit, splits, ""; ; pages++ {
					list, next, err := s.Briefs(t.Context(), q)
					ok(t, err)
					for _, b := range list {
						got = append(got, b.Namespace+"/"+b.Name)
					}

					if q.After = next; next == "" {
						break
					}
					if len(list) != limit {
						t.Fatalf("%s, %d: a page of %d", how, limit, len(list))
					}
				}

				if !slices.Equal(got, want) || pages != (len(want)-1)/limit {
					t.Errorf("%s, %d of %q%q: %q after %d pages, want %q", how, limit, q.Namespace, q.Prefix, got, pages, want)
				}
			}
		}
	}
}

// etcd counts all keys of a range, also those beyond the limit. With splits, ranges end soon after the page, and all parts
// of a page are read at one revision.
func TestBriefs_EtcdCountsFewKeys(t *testing.T) {
	t.Parallel()
	etcd := kvtest.Memory(t)
	counted := int64(0)
	names := putSpecs(t, etcd, "/c", 400)

	below := etcd.KV
	etcd.KV = etcdhook.KV(etcd.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		res, err := next(ctx, op)
		if err == nil && op.IsGet() {
			counted += res.Get().Count

			// Meanwhile, somebody deletes tasks of the page, and creates others.
			_, err = below.Delete(ctx, "/c/tasks/a/t0197", clientv3.WithRange("/c/tasks/a/t0199"))
			if err == nil {
				_, err = below.Put(ctx, fmt.Sprintf("/c/tasks/a/t0198-%d", counted), "{}")
			}
		}

		return res, err
	})

	var splits []string
	for i := 5; i < len(names); i += 10 {
		splits = append(splits, names[i])
	}

	s := store.New(etcd, kv.Direct(etcd), testKeys(t, "/c"))
	list, next, err := s.Briefs(t.Context(), store.BriefPage{After: names[99], Limit: 99, Splits: splits})
	ok(t, err)

	if len(list) != 99 || list[0].Name != "t0100" || list[98].Name != "t0198" || next != "a/t0198" {
		t.Errorf("%d tasks, next %s", len(list), next)
	}
	if counted > 250 {
		t.Errorf("etcd counted %d keys", counted)
	}
}
