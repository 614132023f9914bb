package kv_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// reads is a KV that calls before with the number of each read of values, from 0. If before returns an error, that is the
// answer. Lists of keys, by which Pages finds splits, are not counted.
type reads struct {
	clientv3.KV
	n      atomic.Int32
	before func(n int) error
}

func (r *reads) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if op := clientv3.OpGet(key, opts...); op.IsKeysOnly() {
		return r.KV.Get(ctx, key, opts...)
	}
	if err := r.before(int(r.n.Add(1)) - 1); err != nil {
		return nil, err
	}
	return r.KV.Get(ctx, key, opts...)
}

func spoilReads(c *kv.Client, before func(n int) error) *reads {
	r := &reads{KV: c.KV, before: before}
	c.KV = r
	return r
}

func paged(p string, size int) kv.FollowConfig {
	cfg := prefixed(p)
	cfg.PageSize = size
	cfg.StallAfter = time.Minute // reads are counted, and resuming a watch would add one
	return cfg
}

// fill puts the keys p/000 and following, each with its number as the value, and returns the revision.
func fill(t *testing.T, c *kv.Client, keys int) (rev int64) {
	t.Helper()
	for i := range keys {
		rev = put(t, c, fmt.Sprintf("p/%03d", i), fmt.Sprint(i))
	}
	return rev
}

func TestFollow_TellsAListInPages(t *testing.T) {
	c := kvtest.Memory(t)
	rev := fill(t, c, 25)
	f := follow(t, c, paged("p/", 10))
	put(t, c, "p/zzz", "new")
	eventually(t, "what comes after the list", func() bool { return f.value("p/zzz") == "new" })
	f.mu.Lock()
	defer f.mu.Unlock()

	next := 0
	for i, b := range f.batches[:3] {
		if !b.Reset || b.Page != i || b.More != (i < 2) || b.Revision < rev || b.Revision != f.batches[0].Revision {
			t.Errorf("batch %d: Reset %v, Page %d, More %v, Revision %d", i, b.Reset, b.Page, b.More, b.Revision)
		}

		for _, e := range b.KVs {
			if string(e.Key) != fmt.Sprintf("p/%03d", next) && string(e.Key) != "p/zzz" {
				t.Errorf("key %q at %d", e.Key, next)
			}
			next++
		}
	}

	if next < 25 || f.resets != 1 {
		t.Errorf("%d keys, %d lists", next, f.resets)
	}
}

func TestFollow_EmptyRangeIsOnePage(t *testing.T) {
	f := follow(t, kvtest.Memory(t), paged("p/", 10))
	eventually(t, "the list", func() bool { return f.resetCount() == 1 })
	if b := f.first(); b.More || b.Page != 0 || len(b.KVs) != 0 || b.Revision == 0 {
		t.Errorf("%+v", b)
	}
}

// The first list fails at its second page. The next one finds its revision compacted at its third page.
func TestFollow_BrokenListBeginsAgain(t *testing.T) {
	s := kvtest.StartServer(t)
	c := s.Dial()
	fill(t, s.Client(), 50)
	r := spoilReads(c, func(n int) error {
		switch n {
		case 1:
			_, err := s.Client().Delete(t.Context(), "p/000")
			return errors.Join(errors.New("broken"), err)
		case 4:
			rev := put(t, s.Client(), "p/001", "newer")
			_, err := s.Client().Compact(t.Context(), rev)
			return err
		}

		return nil
	})

	f := follow(t, c, paged("p/", 10))
	eventually(t, "a whole list", func() bool { return f.value("p/049") == "49" })

	if f.value("p/000") != "" || f.value("p/001") != "newer" || f.resetCount() != 3 || r.n.Load() != 10 {
		t.Errorf("%q, %q after %d lists and %d reads", f.value("p/000"), f.value("p/001"), f.resetCount(), r.n.Load())
	}
}

func TestFollow_BrokenListAtARevisionIsTakenUpThere(t *testing.T) {
	c := kvtest.Memory(t)
	cfg := paged("p/", 10)
	cfg.Revision = fill(t, c, 25)
	put(t, c, "p/000", "newer")
	spoilReads(c, func(n int) error {
		if n == 1 {
			return errors.New("broken")
		}
		return nil
	})

	f := follow(t, c, cfg)
	eventually(t, "the list and what followed", func() bool { return f.value("p/024") == "24" && f.value("p/000") == "newer" })
	f.mu.Lock()
	defer f.mu.Unlock()

	for i, b := range f.batches {
		if b.Reset && b.Revision != cfg.Revision {
			t.Errorf("batch %d has revision %d, want %d", i, b.Revision, cfg.Revision)
		}
	}
}

func TestFollow_ListWhoseRevisionIsCompactedAwayTakesTheNewest(t *testing.T) {
	c := kvtest.Memory(t)
	cfg := paged("p/", 10)
	cfg.Revision = fill(t, c, 25)
	newest := put(t, c, "p/000", "newer")
	spoilReads(c, func(n int) error {
		if n == 1 {
			_, err := c.Compact(t.Context(), newest)
			return err
		}
		return nil
	})

	f := follow(t, c, cfg)
	eventually(t, "the whole list", func() bool { return f.value("p/024") == "24" })

	if f.value("p/000") != "newer" || f.resetCount() != 2 {
		t.Errorf("%q after %d lists", f.value("p/000"), f.resetCount())
	}
}

// Between two pages, the store is replaced by one with a lower revision.
func TestFollow_RefusesAStoreThatWentBackWithinAList(t *testing.T) {
	s, other := kvtest.StartServer(t), kvtest.StartServer(t)
	p := s.Proxy()
	fill(t, s.Client(), 25)
	fill(t, other.Client(), 15)
	core, logs := observer.New(zap.WarnLevel)
	cfg := paged("p/", 10)
	cfg.Logger = zap.New(core)
	c := p.Client(kv.Config{})
	r := spoilReads(c, func(n int) error {
		if n == 1 {
			p.Redirect(other)
		}
		return nil
	})

	f := follow(t, c, cfg)
	eventually(t, "the loss, and two attempts", func() bool { return logs.Len() > 0 && r.n.Load() >= 6 })

	if n := f.resetCount(); n != 1 {
		t.Errorf("%d lists were reported, want only the one that broke off", n)
	}

	p.Redirect(s)
	eventually(t, "the whole list", func() bool { return f.value("p/024") == "24" })
}

func TestFollow_ReadsOnePageAheadAndKeepsNone(t *testing.T) {
	c := kvtest.Memory(t)
	const pages, size = 8, 10
	fill(t, c, pages*size)
	r := spoilReads(c, func(int) error { return nil })
	var told []weak.Pointer[mvccpb.KeyValue]
	enough := errors.New("enough")
	err := kv.Follow(t.Context(), c, paged("p/", size), func(b kv.Batch) error {
		if b.More {
			eventually(t, "the next page", func() bool { return int(r.n.Load()) >= b.Page+2 })
			for range 10 { // time for one read too many
				put(t, c, "elsewhere", "v")
			}
		}

		if n := int(r.n.Load()); n > b.Page+2 {
			t.Errorf("%d pages are read while page %d is being applied", n, b.Page)
		}

		told = append(told, weak.Make(b.KVs[0]))

		if b.More {
			return nil
		}

		eventually(t, "the memory of the former pages", func() bool {
			runtime.GC()

			for _, p := range told[:b.Page] {
				if p.Value() != nil {
					return false
				}
			}

			return true
		})

		return enough
	})

	if !errors.Is(err, enough) || len(told) != pages {
		t.Fatalf("%d pages, %v", len(told), err)
	}
}

func TestFollow_EndsWithinAList(t *testing.T) {
	c := kvtest.Memory(t)
	fill(t, c, 35)
	enough := errors.New("enough")
	err := kv.Follow(t.Context(), c, paged("p/", 10), func(b kv.Batch) error {
		if b.Page == 1 {
			return enough
		}
		return nil
	})

	if !errors.Is(err, enough) {
		t.Error(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- kv.Follow(ctx, c, paged("p/", 10), func(b kv.Batch) error { cancel(); return nil })
	}()

	if err := within(t, time.Minute, "the end", ended); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
