package kv_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carillonhq/carillon/pkg/kv"
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
