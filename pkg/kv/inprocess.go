package kv

import (
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"

	"github.com/carillonhq/carillon/pkg/wake"
)

// inProcess is etcd's own client without a network, save that its watch requests never wait for the server.
//
// In the process a request is handed from goroutine to goroutine. When twenty watches of one stream are cancelled at
// once, the client hands over cancellations and reads no answers; the server cannot send its answers, and so takes no
// more requests: both wait for ever, as do all watches of the stream. Over a network gRPC's window of 64 KiB, thousands
// of requests, lies between.
func inProcess(s *etcdserver.EtcdServer) *clientv3.Client {
	c := v3client.New(s)
	c.KV = newRestoringKV(adapter.KvServerToKvClient(v3rpc.NewQuotaKVServer(s)), c)
	watches := adapter.WatchServerToWatchClient(eagerServer{v3rpc.NewWatchServer(s)})
	c.Watcher = clientv3.NewWatchFromWatchClient(watches, c)

	return c
}

type eagerServer struct{ pb.WatchServer }

func (e eagerServer) Watch(s pb.Watch_WatchServer) error {
	eager := &eagerStream{Watch_WatchServer: s, more: wake.NewSignal()}
	go eager.receiveNext() // ends with the stream
	return e.WatchServer.Watch(eager)
}

// eagerStream keeps what the client has sent until the server asks for it. That is no more than two cancellations of
// each watch, one creation at a time, and the beats of the pulse.
type eagerStream struct {
	pb.Watch_WatchServer
	more wake.Signal // there is more to return

	mu    sync.Mutex
	queue []*pb.WatchRequest
	err   error
}

func (s *eagerStream) receiveNext() {
	for {
		r, err := s.Watch_WatchServer.Recv()
		s.mu.Lock()
		if s.err = err; err == nil {
			s.queue = append(s.queue, r)
		}
		s.mu.Unlock()

		s.more.Send()

		if err != nil {
			return
		}
	}
}

// Recv is called by one goroutine.
func (s *eagerStream) Recv() (*pb.WatchRequest, error) {
	for {
		s.mu.Lock()
		if len(s.queue) > 0 {
			r := s.queue[0]
			s.queue[0], s.queue = nil, s.queue[1:]
			s.mu.Unlock()

			return r, nil
		}

		err := s.err
		s.mu.Unlock()

		if err != nil {
			return nil, err
		}

		<-s.more
	}
}
