package kv

import (
	"context"
	"hash/maphash"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/metadata"

	"github.com/carillonhq/carillon/pkg/wake"
)

// streams manages the gRPC streams that carry the watches of a client.
//
// The watches are spread over a few classes of streams, because watches on one stream affect each other: one goroutine of the
// client and one of the server serve a stream, a full buffer of a thousand responses delays all its watches, and
// while one watch catches up, etcd answers no progress request of the stream. A range always has the same class. All
// watches of a class share its current stream. When a follower finds that stream stalled, it makes the following
// watches of the class use a new stream, because a new watch on a dead stream would be dead, too.
//
// A watch on a range without changes receives nothing, whether it works or not. Therefore each stream with watches
// has a progress probe: a progress request at regular intervals. etcd answers it once, and the client delivers the
// answer to every watch of the stream. So a probe costs one small message, however many ranges are followed.
//
// A stream that breaks ends its watches (see haltWatches). A stream that never opens stays in the etcd client until
// its connection ends. The ids of the streams are reused in a cycle, so the number of such streams is bounded.
type streams struct {
	mu      sync.Mutex
	current [streamClassCount]int // how often the class has changed its stream, modulo streamsPerLane
	// live contains the streams that have watches, by id. The id of a stream is its class's value in current, times
	// streamClassCount, plus the class.
	live map[int]*stream
}

const (
	// streamClassCount is the number of classes. The ranges that ask for no particular class are spread over the first four.
	streamClassCount = 6
	dedicatedClass   = streamClassCount - 2 // the class of ranges that set FollowConfig.Dedicated; also the number of classes before it
	backgroundClass  = streamClassCount - 1 // the class of ranges that set FollowConfig.Background
	streamsPerClass  = 8                    // the number of stream ids that a class uses in turn
)

// stream is the state that the watches of one gRPC stream share. It exists while the stream has at least one watch.
type stream struct {
	id         int
	members    map[*member]time.Duration // the watches, and how often each needs a probe; guarded by streams.mu
	faster     wake.Signal               // one slot; receives a value when the probe interval may have become shorter
	stop       context.CancelFunc        // ends the probe
	done       chan struct{}             // closed when the probe has ended
	epoch      time.Time                 // the moment from which the two times below are counted
	heard      atomic.Int64              // when any watch of the stream last received anything, in nanoseconds since epoch
	progressed atomic.Int64              // when any watch of the stream last received an answer to a probe, in nanoseconds since epoch
}

// member is the membership of one watch in its stream.
type member struct{ of *stream }

// streamContext adds metadata to ctx that make the etcd client put the watch on the stream with the given id: the
// client has one stream for each distinct set of metadata. The metadata also require that the etcd member has a
// leader, so that a member which is cut off from the others ends its watches.
func streamContext(ctx context.Context, id int) context.Context {
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(
		rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader,
		"carillon-watch", strconv.Itoa(id)))
}

// streamClassOf returns the class of a range that begins at key, one of the first four.
func streamClassOf(key string) int {
	return int(maphash.String(keySeed, key) % dedicatedClass)
}

// pickStream returns the id of the stream for a new watch of a class.
func (s *streams) pickStream(class int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current[class]*streamClassCount + class
}

// closeStream makes the following watches of the class use another stream than id. It does nothing if the class has
// already moved on from id, so that several followers which find the same stream stalled change it only once. The
// watches that are open on the stream stay open.
func (s *streams) closeStream(id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if class := id % streamClassCount; s.current[class] == id/streamClassCount {
		s.current[class] = (s.current[class] + 1) % streamsPerClass
	}
}

// joinStream adds a watch to the stream id, which is then probed at least once in every. The first watch starts the
// probe. The caller must call leaveStream when the watch ends.
func (s *streams) joinStream(ctx context.Context, c *Client, id int, every time.Duration) *member {
	s.mu.Lock()
	defer s.mu.Unlock()

	st := s.live[id]
	if st == nil {
		// The probe outlives ctx, which belongs to one of the watches. The last watch to leave stops it.
		probeCtx, stop := context.WithCancel(streamContext(context.WithoutCancel(ctx), id))
		st = &stream{
			id: id, members: map[*member]time.Duration{}, faster: wake.NewSignal(),
			stop: stop, done: make(chan struct{}), epoch: time.Now(),
		}

		if s.live == nil {
			s.live = map[int]*stream{}
		}

		s.live[id] = st
		go s.runProbe(probeCtx, c, st, every)
	}

	m := &member{of: st}
	st.members[m] = every
	st.faster.Send()

	return m
}

// leaveStream removes a watch from its stream. When the last watch leaves, it stops the probe and waits for its end.
func (s *streams) leaveStream(m *member) {
	s.mu.Lock()
	st := m.of
	delete(st.members, m)

	last := len(st.members) == 0
	if last {
		delete(s.live, st.id)
		st.stop()
	}
	s.mu.Unlock()

	if last {
		<-st.done
	}
}

// probeInterval returns the shortest interval that a watch of the stream needs, or otherwise if that is shorter.
func (s *streams) probeInterval(st *stream, otherwise time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, d := range st.members {
		otherwise = min(otherwise, d)
	}

	return otherwise
}

// runProbe requests progress at the interval that the watches of the stream need, until ctx ends.
func (s *streams) runProbe(ctx context.Context, c *Client, st *stream, every time.Duration) {
	defer close(st.done)

	t := time.NewTimer(every)
	defer t.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-st.faster:
			every = s.probeInterval(st, time.Minute)
		case <-t.C:
			// The probe ignores errors. An error means that there is no stream at the moment, which the watches
			// notice because they end or stay silent.
			beat, cancel := context.WithTimeout(ctx, every)
			_ = c.RequestProgress(beat)
			cancel()
		}

		t.Reset(every)
	}
}

// noteResponse records that a watch received a response. progress is true if it was the answer to a progress request.
func (st *stream) noteResponse(progress bool) {
	now := int64(time.Since(st.epoch))
	st.heard.Store(now)
	if progress {
		st.progressed.Store(now)
	}
}

// isBusy reports whether the stream has carried a response since the given time, but no answer to a progress request.
// etcd answers a progress request only when every watch of the stream has caught up. So a flood of events on one
// watch suppresses the answers for all, and the silence of another watch does not prove that it is dead. But if any
// watch of the stream has received such an answer, a working watch would have received it, too.
func (st *stream) isBusy(since time.Time) bool {
	at := int64(since.Sub(st.epoch))
	return st.heard.Load() > at && st.progressed.Load() <= at
}
