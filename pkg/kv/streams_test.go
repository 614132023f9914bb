package kv_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// hasty is an etcd at revision 10 with one key, which was written at revisions 5 and 8. Its first watch stream breaks
// at the worst moment: a progress notification for older watches has overtaken the events that the new watch still
// had to receive.
type hasty struct {
	pb.UnimplementedKVServer
	pb.UnimplementedWatchServer
	code    codes.Code
	streams chan int64 // the revision at which the watch of each stream starts
	n       int
}

func (h *hasty) Range(_ context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	kv := &mvccpb.KeyValue{Key: []byte("p/a"), Value: []byte("old"), CreateRevision: 5, ModRevision: 5, Version: 1}
	return &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: max(r.Revision, 5)}, Kvs: []*mvccpb.KeyValue{kv}, Count: 1}, nil
}

func (h *hasty) Watch(s pb.Watch_WatchServer) error {
	r, err := s.Recv()
	if err != nil {
		return err
	}

	from := r.GetCreateRequest().StartRevision
	h.streams <- from

	at := &pb.ResponseHeader{Revision: 10}
	if err := s.Send(&pb.WatchResponse{Header: at, Created: true}); err != nil {
		return err
	}

	if h.n++; h.n == 1 {
		if err := s.Send(&pb.WatchResponse{Header: at, WatchId: clientv3.InvalidWatchID}); err != nil {
			return err
		}
		return status.Error(h.code, "the connection is gone")
	}

	if from <= 8 {
		kv := &mvccpb.KeyValue{Key: []byte("p/a"), Value: []byte("new"), CreateRevision: 5, ModRevision: 8, Version: 2}
		if err := s.Send(&pb.WatchResponse{Header: at, Events: []*mvccpb.Event{{Kv: kv}}}); err != nil {
			return err
		}
	}

	<-s.Context().Done()

	return s.Context().Err()
}

func TestFollow_MissesNothingWhenAProgressNoticeOvertakesAndTheStreamBreaks(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.Internal, codes.Unknown} {
		t.Run(code.String(), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "etcd")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}

			server := grpc.NewServer()
			h := &hasty{code: code, streams: make(chan int64, 8)}
			pb.RegisterKVServer(server, h)
			pb.RegisterWatchServer(server, h)
			go func() { _ = server.Serve(l) }()
			t.Cleanup(server.Stop)

			c, err := kv.Dial(t.Context(), kv.Config{Endpoints: []string{"unix://" + path}})
			if err != nil {
				t.Fatal(err)
			}

			t.Cleanup(func() { _ = c.Close() })
			cfg := prefixed("p/")
			cfg.StallAfter = time.Minute // so nothing else ends a watch
			f := follow(t, c, cfg)
			<-h.streams

			if from := <-h.streams; from != 5 {
				t.Errorf("the watch is resumed from revision %d, and 5 was delivered", from)
			}

			eventually(t, "the event that was overtaken", func() bool { return f.value("p/a") == "new" })

			if n := f.resetCount(); n != 1 {
				t.Errorf("%d lists", n)
			}
		})
	}
}

// counters returns a function that returns the sum of a client's counters with a name.
func counters(t *testing.T, c *kv.Client) func(name string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	c.Register(r)

	return func(name string) (sum float64) {
		t.Helper()
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}

		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == name {
					sum += m.GetCounter().GetValue()
				}
			}
		}

		return sum
	}
}

// A put and a deletion that the watch drops silently are in the mirror after the next list, and are counted after the
// list that follows. There are no other changes in the range.
func TestMirror_CountsWhatItsWatchHasLost(t *testing.T) {
	t.Parallel()
	c := kvtest.Memory(t)
	count := counters(t, c)
	deaf := kvtest.Deafen(c)

	// A change that a resumed watch skips is not certainly lost and is not counted. That can happen if the machine is paused
	// for two seconds, but not each time.
	const most = 5
	for i := range most {
		before, resumed := count(kv.RepairsMetric), count("carillon_watch_resumptions_total")
		deaf.Drop(nil)
		prefix := fmt.Sprintf("p%d/", i)
		put(t, c, prefix+"gone", "1")
		cfg := prefixed(prefix)
		cfg.Relist, cfg.StallAfter = 500*time.Millisecond, 2*time.Second
		m, stop := startMirror(t.Context(), c, cfg)
		defer stop()

		<-m.Ready()
		deaf.Drop(func(string) bool { return true })
		put(t, c, prefix+"new", "1")

		if _, err := c.Delete(t.Context(), prefix+"gone"); err != nil {
			t.Fatal(err)
		}

		eventually(t, "the repair", func() bool { s := m.Snapshot(); return s.Get(prefix+"new") != nil && s.Get(prefix+"gone") == nil })
		eventually(t, "the count", func() bool {
			return count(kv.RepairsMetric) == before+2 || count("carillon_watch_resumptions_total") > resumed && i < most-1
		})

		if count(kv.RepairsMetric) == before+2 {
			return
		}

		stop()
	}
}

// Lists in the middle of many writes find changes that are in flight, and none that are lost.
func TestMirror_CountsNothingWhileItsWatchIsWell(t *testing.T) {
	t.Parallel()
	c := kvtest.Memory(t)
	count := counters(t, c)
	cfg := prefixed("p/")
	cfg.Relist = 200 * time.Millisecond
	m, stop := startMirror(t.Context(), c, cfg)
	defer stop()

	<-m.Ready()

	for until, i := time.Now().Add(2*time.Second), 0; time.Now().Before(until); i++ {
		put(t, c, fmt.Sprint("p/", i%7), "v")
		if _, err := c.Delete(t.Context(), fmt.Sprint("p/", (i+3)%7)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond) // without it, the test measures the speed of etcd
	}

	if n := count(kv.RepairsMetric); n != 0 {
		t.Errorf("%v repairs", n)
	}
}

func TestFollow_CountsResumptionsAndForcedLists(t *testing.T) {
	s := kvtest.StartServer(t)
	p := s.Proxy()
	core, logs := observer.New(zap.InfoLevel)
	c := p.Client(kv.Config{})
	count := counters(t, c)

	var all []*follower
	for i := range 20 {
		cfg := prefixed(fmt.Sprintf("p/%02d/", i))
		cfg.StallAfter, cfg.Logger, cfg.Relist = time.Minute, zap.New(core), 400*time.Millisecond // watches are lost only because the connection is cut
		f := follow(t, c, cfg)
		listed(t, f)
		all = append(all, f)
	}

	if n := count("carillon_watch_relists_total"); n != 0 {
		t.Errorf("%v forced lists while all is well", n)
	}

	p.Cut()
	eventually(t, "the loss", func() bool { return logs.FilterLevelExact(zap.WarnLevel).Len() > 0 })
	rev := put(t, s.Client(), "p/00/a", "1")
	rev = put(t, s.Client(), "p/00/a", fmt.Sprint(rev))
	if _, err := s.Client().Compact(t.Context(), rev); err != nil {
		t.Fatal(err)
	}

	p.Mend()
	eventually(t, "all ranges", func() bool { return logs.FilterMessage("the watch of etcd recovered").Len() > 0 })
	// If the connection is cut during a list, the list ends or starts again. Then there is nothing to resume, or nothing that
	// has been compacted. Lists are rare, so such followers are few.
	eventually(t, "lists of what is compacted away", func() bool { return count("carillon_watch_relists_total") >= float64(len(all)/2) })

	if n := count("carillon_watch_resumptions_total"); n < float64(len(all)/2) {
		t.Errorf("%v resumptions of %d ranges", n, len(all))
	}

	if n := logs.FilterLevelExact(zap.WarnLevel).Len(); n > 2 {
		t.Errorf("%d losses were logged of %d ranges that were lost together", n, len(all))
	}
}
