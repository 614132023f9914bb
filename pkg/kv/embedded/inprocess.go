package embedded

import (
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/wake"
)

// inProcess returns a client of the server that uses no network. It is the in-process client of etcd, except that its
// watch requests never wait for the server.
//
// In the process, a request is passed from goroutine to goroutine without a buffer. If twenty watches of a stream are
// cancelled at once, the client sends cancellations and does not read answers. The server then cannot send its
// answers and accepts no more requests, so both wait forever, and so do all watches of the stream. Over a network,
// the 64 KiB window of gRPC holds thousands of requests and prevents this.
func inProcess(s *etcdserver.EtcdServer) *clientv3.Client {
	c := v3client.New(s)
	c.KV = kv.NewKV(adapter.KvServerToKvClient(v3rpc.NewQuotaKVServer(s)), c)
	watches := adapter.WatchServerToWatchClient(eagerServer{v3rpc.NewWatchServer(s)})
	c.Watcher = clientv3.NewWatchFromWatchClient(watches, c)

	return c
}

// eagerServer is a watch server that always accepts requests.
type eagerServer struct{ pb.WatchServer }

// Watch passes a stream to the watch server whose requests are received without delay.
func (e eagerServer) Watch(s pb.Watch_WatchServer) error {
	eager := &eagerStream{Watch_WatchServer: s, more: wake.NewSignal()}
	go eager.receiveNext() // ends when the stream ends
	return e.WatchServer.Watch(eager)
}

// eagerStream buffers the requests of the client until the server reads them. The number is bounded: two
// cancellations for each watch, one creation at a time, and the requests of the progress probe.
type eagerStream struct {
	pb.Watch_WatchServer
	more wake.Signal // sent after each change of queue or err

	mu    sync.Mutex
	queue []*pb.WatchRequest
	err   error // why the stream ended
}

// receiveNext receives the requests of the client and queues them, until the stream ends.
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

// Recv returns the next request. Only one goroutine calls it. The queue is emptied before the error of the stream is
// returned.
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
