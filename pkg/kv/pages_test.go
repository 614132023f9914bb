package kv_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// walks is a KV that counts the keys that etcd visits to answer reads: all up to the end of each range.
type walks struct {
	clientv3.KV
	requests, visited, returned atomic.Int64
}

func countWalks(c *kv.Client) *walks {
	w := &walks{KV: c.KV}
	c.KV = w
	return w
}

func (w *walks) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	res, err := w.KV.Get(ctx, key, opts...)
	if err == nil {
		w.requests.Add(1)
		w.visited.Add(res.Count)
		w.returned.Add(int64(len(res.Kvs)))
	}

	return res, err
}

// readAll reads all pages, at one revision or each at the current one, and returns the keys.
func readAll(t rapid.TB, pages *kv.Pages, size int, oneRevision bool) (keys []string) {
	rev := int64(0)
	for pages.More() {
		kvs, at, err := pages.Next(context.Background(), rev)
		if err != nil {
			t.Fatal(err)
		}
		if oneRevision {
			rev = at
		}

		if len(kvs) > size || len(kvs) < size && pages.More() {
			t.Fatalf("a page of %d keys, want %d", len(kvs), size)
		}

		for _, e := range kvs {
			keys = append(keys, string(e.Key))
		}
	}

	return keys
}

func TestPages_ReadEachKeyOnceWithAnySplits(t *testing.T) {
	c := kvtest.Memory(t)
	name := rapid.StringMatching(`[ab/\x00]{0,4}`)
	round := 0

	rapid.Check(t, func(t *rapid.T) {
		round++
		dir := fmt.Sprintf("p%d/", round)
		var all []string
		for _, n := range rapid.SliceOfNDistinct(name, 0, 40, rapid.ID).Draw(t, "keys") {
			all = append(all, dir+n)
			if _, err := c.Put(context.Background(), dir+n, "value"); err != nil {
				t.Fatal(err)
			}
		}
		slices.Sort(all)

		key, end := kv.Prefix(dir)
		key += name.Draw(t, "from")
		if rapid.Bool().Draw(t, "bounded") {
			end = max(key+"\x00", dir+name.Draw(t, "end"))
		}
		want := slices.DeleteFunc(all, func(k string) bool { return k < key || k >= end })

		size := rapid.IntRange(1, 6).Draw(t, "size")
		pages := kv.NewPages(c, key, end, size, clientv3.WithKeysOnly())
		if rapid.Bool().Draw(t, "with splits") {
			splits := rapid.SliceOfN(name, 0, 10).Draw(t, "splits")
			slices.Sort(splits)
			pages.UseSplits(dir, splits, rapid.IntRange(0, 3).Draw(t, "ahead"))
		}

		if got := readAll(t, pages, size, rapid.Bool().Draw(t, "one revision")); !slices.Equal(got, want) {
			t.Fatalf("read %q, want %q", got, want)
		}
	})
}

// etcd counts the keys of a range up to its end in each request. So reading a long range in pages that are all read up to
// the end takes a time that grows with the square of its size.
func TestPages_VisitKeysOfALongRangeAFewTimes(t *testing.T) {
	const keys, size = 20_000, 100
	c := kvtest.Memory(t)
	putMany(t, c, keys)
	w := countWalks(c)

	key, end := kv.Prefix("p/")
	if got := readAll(t, kv.NewPages(c, key, end, size), size, true); len(got) != keys {
		t.Fatalf("%d keys", len(got))
	}

	// The first page counts them all, then they are listed without values, and then read.
	if n := w.visited.Load(); n > 3*keys {
		t.Errorf("visited %d keys to read %d", n, keys)
	}
	if n := w.requests.Load(); n > keys/size+1 {
		t.Errorf("%d requests", n)
	}

	// With known splits, each key is visited about once, also without a common revision.
	w.visited.Store(0)
	var splits []string
	for i := 25; i < keys; i += 25 {
		splits = append(splits, fmt.Sprintf("%05d", i))
	}

	pages := kv.NewPages(c, key, end, size)
	pages.UseSplits("p/", splits, 4)
	if got := readAll(t, pages, size, false); len(got) != keys {
		t.Fatalf("%d keys with splits", len(got))
	}
	if n := w.visited.Load(); n > 2*keys {
		t.Errorf("visited %d keys to read %d with splits", n, keys)
	}
}

func TestList_VisitsKeysOfALongRangeAFewTimes(t *testing.T) {
	const keys = 20_000
	c := kvtest.Memory(t)
	putMany(t, c, keys)
	w := countWalks(c)

	key, end := kv.Prefix("p/")
	kvs, _, err := kv.List(t.Context(), c, key, end, 0)
	if err != nil || len(kvs) != keys || string(kvs[keys-1].Key) != "p/19999" {
		t.Fatalf("%d keys, %v", len(kvs), err)
	}
	if n := w.visited.Load(); n > 3*keys {
		t.Errorf("visited %d keys to list %d", n, keys)
	}
}

func TestPages_ContinueAfterAnError(t *testing.T) {
	const keys = 60
	c := kvtest.Memory(t)
	fill(t, c, keys)

	failing, errLost := true, errors.New("lost")
	spoilReads(c, func(int) error {
		if failing = !failing; failing {
			return errLost
		}
		return nil
	})

	key, end := kv.Prefix("p/")
	pages, rev := kv.NewPages(c, key, end, 5), int64(0)
	n, errs := 0, 0
	for pages.More() {
		kvs, at, err := pages.Next(t.Context(), rev)
		if errors.Is(err, errLost) {
			errs++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}

		rev = at
		for _, e := range kvs {
			if want := fmt.Sprintf("p/%03d", n); string(e.Key) != want {
				t.Fatalf("read %q, want %q", e.Key, want)
			}
			n++
		}
	}

	if n != keys || errs == 0 {
		t.Errorf("%d keys, %d errors", n, errs)
	}
}
