package embedded

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/wake"
)

// maxSocketPath is the maximum length of the path of a unix socket on Linux: 108 bytes less the terminating NUL.
const maxSocketPath = 107

// listener is an open address of the embedded server.
type listener struct {
	net.Listener
	endpoint string // the address in the form that etcdctl accepts
	remove   string // a private directory that close deletes, or empty
}

// close closes the listener and removes its directory. It may be called after the listener was closed.
func (l listener) close() error {
	if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	if l.remove == "" {
		return nil
	}

	return os.Remove(l.remove)
}

// openListeners opens the addresses for clients. It runs before etcd starts, so that a taken address fails early.
func (s *Server) openListeners() error {
	if len(s.cfg.ListenClient) == 0 {
		l, err := s.ownSocket()
		if err != nil {
			return err
		}
		s.listen = append(s.listen, l)
	}

	for _, addr := range s.cfg.ListenClient {
		l, err := listenOn(addr)
		if err != nil {
			return err
		}
		s.listen = append(s.listen, l)
	}

	return nil
}

// listenOn opens an address of the form unix:///path or http://ip:port.
func listenOn(addr string) (listener, error) {
	u, err := url.Parse(addr)
	if err != nil {
		return listener{}, fmt.Errorf("listen on %.200q: want unix:///path or http://ip:port", addr)
	}

	switch {
	case u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path):
		return listenUnix(u.Path)
	case u.Scheme == "http" && u.Host != "" && u.Path == "":
		l, err := net.Listen("tcp", u.Host)
		if err != nil {
			return listener{}, fmt.Errorf("listen on %s: %w", addr, err)
		}
		return listener{Listener: l, endpoint: "http://" + l.Addr().String()}, nil
	}

	return listener{}, fmt.Errorf("listen on %.200q: want unix:///path or http://ip:port", addr)
}

// ownSocket opens the socket in the data directory, or in a short private directory if its path would be too long.
func (s *Server) ownSocket() (listener, error) {
	dir, err := filepath.Abs(s.cfg.Dir)
	if err != nil {
		return listener{}, err
	}

	path := filepath.Join(dir, "etcd.sock")
	if len(path) <= maxSocketPath {
		return listenUnix(path)
	}

	short, err := shortDir(dir)
	if err != nil {
		return listener{}, err
	}

	l, err := listenUnix(filepath.Join(short, "etcd.sock"))
	l.remove = short

	return l, err
}

// shortDir creates a private directory whose name is derived from dir. So the endpoint stays the same, and a crash
// leaves at most one such directory behind. Others can guess the name and create the directory first. Therefore
// shortDir checks that it is a private directory of this user.
func shortDir(dir string) (string, error) {
	sum := sha256.Sum256([]byte(dir))
	short := filepath.Join(os.TempDir(), fmt.Sprintf("carillon-%d-%x", os.Getuid(), sum[:6]))
	if err := os.Mkdir(short, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}

	// Lstat does not follow a symbolic link, which another user could have created.
	info, err := os.Lstat(short)
	if err != nil {
		return "", err
	}

	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm() != 0o700 || !ok || int(owner.Uid) != os.Getuid() {
		return "", fmt.Errorf("%s must be a private directory of this user; it contains the socket, because %s is too long for a socket (%d bytes at most)", short, dir, maxSocketPath)
	}

	return short, nil
}

// listenUnix opens a socket that only this user can open. It replaces a socket that an earlier process has left. The
// lock of the data directory guarantees that the earlier process does not run any more.
func listenUnix(path string) (listener, error) {
	if len(path) > maxSocketPath {
		return listener{}, fmt.Errorf("listen on unix://%s: the path of a socket can have at most %d bytes, but this has %d", path, maxSocketPath, len(path))
	}

	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return listener{}, err
		}
	}

	l, err := net.Listen("unix", path)
	if err != nil {
		return listener{}, fmt.Errorf("listen on unix://%s: %w", path, err)
	}
	// From here on, only this user can connect. Until then, a socket in the data directory is protected by the directory.
	if err := os.Chmod(path, 0o600); err != nil {
		return listener{}, errors.Join(err, l.Close())
	}

	return listener{Listener: l, endpoint: "unix://" + path}, nil
}

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
