package kvmem_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// TestDifferential applies the same random operations to etcd and to the in-memory store, and compares every answer
// and every event. Each round begins at the revision of etcd, below a separate prefix.
func TestDifferential(t *testing.T) {
	etcd := kvtest.Start(t)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		now, err := etcd.Get(t.Context(), "x")
		if err != nil {
			rt.Fatal(err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()

		store := kvmem.New(kvmem.Config{Revision: now.Header.Revision, MinTTL: 1})
		defer store.Close()

		mem := kv.Wrap(store.Client(ctx), 0)
		defer mem.Close()

		p := &pair{
			ctx: ctx, etcd: side{Client: etcd}, mem: side{Client: mem},
			prefix: fmt.Sprintf("r%d/", round),
		}
		// The compacted revisions of earlier rounds are before the first revision of this one.
		p.same(rt, "put", func(s *side) (proto.Message, error) {
			resp, err := s.Put(ctx, p.prefix, "")
			return (*pb.PutResponse)(resp), err
		})

		p.first = p.now

		for range rapid.IntRange(5, 25).Draw(rt, "steps") {
			p.step(rt)
		}

		p.compareEvents(rt)
	})
}

// pair contains the two stores of a round.
type pair struct {
	ctx       context.Context
	etcd, mem side
	first     int64 // the first revision of the round
	now       int64
	compacted int64
	prefix    string
}

// side is one of the two stores.
type side struct {
	*kv.Client
	leases  []clientv3.LeaseID
	watches []*heard
}

// heard is what a watch has received. One goroutine of the test reads it.
type heard struct {
	ctx    context.Context // determines its stream
	events chan string
	told   []string
	synced chan struct{} // closed by its first progress notification, or when it ends

	isSynced bool
}

func (p *pair) step(rt *rapid.T) {
	switch rapid.SampledFrom([]string{"txn", "txn", "txn", "txn", "range", "range", "watch", "compact", "grant", "revoke"}).Draw(rt, "step") {
	case "txn":
		p.txn(rt)
	case "range":
		key, opts := p.drawRange(rt)
		p.same(rt, "range", func(s *side) (proto.Message, error) {
			resp, err := s.Get(p.ctx, key, opts...)
			return (*pb.RangeResponse)(resp), err
		})

	case "watch":
		p.watch(rt)
	case "compact":
		p.catchUp(rt)
		p.compareEvents(rt)

		rev := p.drawRevision(rt)
		if p.same(rt, "compact", func(s *side) (proto.Message, error) {
			resp, err := s.Compact(p.ctx, rev)
			return (*pb.CompactionResponse)(resp), err
		}) == nil {
			p.compacted = rev
		}

	case "grant":
		p.same(rt, "grant", func(s *side) (proto.Message, error) {
			resp, err := s.Grant(p.ctx, 100)
			if err == nil {
				s.leases = append(s.leases, resp.ID)
			}
			return nil, err
		})

	case "revoke":
		if n := len(p.mem.leases); n > 0 {
			i := rapid.IntRange(0, n-1).Draw(rt, "lease")
			p.same(rt, "revoke", func(s *side) (proto.Message, error) {
				resp, err := s.Revoke(p.ctx, s.leases[i])
				return (*pb.LeaseRevokeResponse)(resp), err
			})
		}
	}
}

// same applies an operation to both sides and compares the results.
func (p *pair) same(rt *rapid.T, what string, do func(*side) (proto.Message, error)) error {
	a, aerr := do(&p.etcd)
	b, berr := do(&p.mem)
	if (aerr == nil) != (berr == nil) || aerr != nil && aerr.Error() != berr.Error() {
		rt.Fatalf("%s: etcd answers %v, memory %v", what, aerr, berr)
	}

	if aerr != nil || a == nil {
		return aerr
	}

	x, y := p.etcd.canonical(a), p.mem.canonical(b)
	if !proto.Equal(x, y) {
		rt.Fatalf("%s: etcd answers\n%v\nmemory\n%v", what, x, y)
	}

	if h, ok := x.(interface{ GetHeader() *pb.ResponseHeader }); ok {
		p.now = max(p.now, h.GetHeader().GetRevision())
	}

	return nil
}

// canonical removes from an answer what may differ: the identity of the server and the ids of leases.
func (s *side) canonical(m proto.Message) proto.Message {
	m = proto.Clone(m)
	header := func(h *pb.ResponseHeader) {
		if h != nil {
			h.ClusterId, h.MemberId, h.RaftTerm = 0, 0, 0
		}
	}

	var walk func(m any)
	walk = func(m any) {
		switch m := m.(type) {
		case *pb.RangeResponse:
			header(m.Header)
			for _, kv := range m.Kvs {
				kv.Lease = s.leaseIndex(kv.Lease)
			}
		case *pb.PutResponse:
			header(m.Header)
			if m.PrevKv != nil {
				m.PrevKv.Lease = s.leaseIndex(m.PrevKv.Lease)
			}
		case *pb.DeleteRangeResponse:
			header(m.Header)
			for _, kv := range m.PrevKvs {
				kv.Lease = s.leaseIndex(kv.Lease)
			}
		case *pb.TxnResponse:
			header(m.Header)

			for _, r := range m.Responses {
				for _, one := range []any{r.GetResponseRange(), r.GetResponsePut(), r.GetResponseDeleteRange(), r.GetResponseTxn()} {
					if one.(proto.Message).ProtoReflect().IsValid() {
						walk(one)
					}
				}
			}
		case *pb.CompactionResponse:
			header(m.Header)
		case *pb.LeaseRevokeResponse:
			header(m.Header)
		}
	}

	walk(m)

	return m
}

// leaseIndex returns the position of a lease among those that were granted. 0 means no lease.
func (s *side) leaseIndex(id int64) int64 {
	return int64(slices.Index(s.leases, clientv3.LeaseID(id)) + 1)
}

// watch opens a watch on both sides and waits until both are open.
func (p *pair) watch(rt *rapid.T) {
	key, end := p.drawSpan(rt)
	from := p.drawRevision(rt)

	opts := []clientv3.OpOption{clientv3.WithCreatedNotify(), clientv3.WithRev(from)}
	if end != "" {
		opts = append(opts, clientv3.WithRange(end))
	}

	if rapid.Bool().Draw(rt, "previous") {
		opts = append(opts, clientv3.WithPrevKV())
	}

	for _, s := range []*side{&p.etcd, &p.mem} {
		h := &heard{events: make(chan string, 4096), synced: make(chan struct{}), isSynced: from > p.now}
		h.ctx = stream(p.ctx, fmt.Sprint(p.prefix, len(s.watches)))
		w := s.Watch(h.ctx, key, opts...)
		<-w
		s.watches = append(s.watches, h)
		leases := s.leases
		go func() {
			defer close(h.events)

			view := side{leases: leases}
			once := sync.OnceFunc(func() { close(h.synced) })
			defer once()

			for r := range w {
				if r.IsProgressNotify() {
					once()
				}

				if r.CompactRevision > 0 {
					h.events <- fmt.Sprintf("compacted at %d", r.CompactRevision)
				}

				for _, e := range r.Events {
					h.events <- view.shown(e)
				}
			}
		}()
	}
}

func (s *side) shown(e *clientv3.Event) string {
	one := func(kv *mvccpb.KeyValue) string {
		if kv == nil {
			return "-"
		}
		return fmt.Sprintf("%s=%s@%d/%d/%d,%t", kv.Key, kv.Value, kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease != 0)
	}

	return fmt.Sprintf("%v %s was %s", e.Type, one(e.Kv), one(e.PrevKv))
}

// catchUp waits until the watches of etcd have received everything that was written before they were opened.
// Otherwise it might be compacted first.
func (p *pair) catchUp(rt *rapid.T) {
	for i, h := range p.etcd.watches {
		for wait := time.After(time.Minute); !h.isSynced; {
			if err := p.etcd.RequestProgress(h.ctx); err != nil {
				rt.Fatal(err)
			}

			select {
			case <-h.synced:
				h.isSynced = true
			case <-time.After(20 * time.Millisecond):
			case <-wait:
				rt.Fatalf("watch %d of etcd does not catch up", i)
			}
		}
	}
}

// compareEvents waits until the watches of etcd have received the same events as those of the in-memory store.
func (p *pair) compareEvents(rt *rapid.T) {
	for i, mem := range p.mem.watches {
		// The watches of the in-memory store deliver their events at once. A moment later, no more can arrive.
		for quiet := false; !quiet; {
			select {
			case e, ok := <-mem.events:
				if ok {
					mem.told = append(mem.told, e)
				}
				quiet = !ok
			case <-time.After(2 * time.Millisecond):
				quiet = true
			}
		}

		etcd := p.etcd.watches[i]
		for wait := time.After(time.Minute); len(etcd.told) < len(mem.told); {
			select {
			case e := <-etcd.events:
				etcd.told = append(etcd.told, e)
			case <-wait:
				rt.Fatalf("watch %d: etcd says\n%s\nmemory\n%s", i, strings.Join(etcd.told, "\n"), strings.Join(mem.told, "\n"))
			}
		}

		if !slices.Equal(etcd.told, mem.told) {
			rt.Fatalf("watch %d: etcd says\n%s\nmemory\n%s", i, strings.Join(etcd.told, "\n"), strings.Join(mem.told, "\n"))
		}
	}
}
