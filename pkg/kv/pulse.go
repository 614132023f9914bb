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
)

// streams knows the gRPC streams that carry the client's watches. They are spread over a few lanes: one goroutine of the
// client and one of the server serve a stream, a full buffer of a thousand responses sets all its watches back, and one
// watch that has to catch up silences the pulse of all. A range keeps its lane. All watches of a lane share its current
// stream; whoever finds that stalled has the next ones opened on a new stream, since a new watch on a dead stream would
// be dead too.
//
// A watch on a quiet range hears nothing, alive or dead. So each stream has a pulse while anybody watches on it: a
// progress request, which etcd answers once and the client hands to every watch of the stream. Its cost is one small
// message per beat, however many follow.
//
// A stream that breaks ends its watches (see haltWatches). One that never opens stays in the etcd client until its connection ends, so that their number is bounded: the
// ids go round.
type streams struct {
	mu      sync.Mutex
	current [lanes]int // how often the lane's stream was condemned, modulo streamsPerLane
	live    map[int]*stream
}

const (
	lanes          = 6
	apart          = lanes - 2 // the lane of the ranges that keep apart from the crowd
	aside          = lanes - 1 // the lane of readers on whom nothing depends
	streamsPerLane = 8
)

// stream is what the watches of one gRPC stream share.
type stream struct {
	id         int
	members    map[*member]time.Duration // and how often each needs a beat; guarded by streams.mu
	faster     chan struct{}             // one slot: the interval has changed
	stop       context.CancelFunc
	done       chan struct{}
	epoch      time.Time
	heard      atomic.Int64 // when any watch received anything, since epoch
	progressed atomic.Int64 // when any watch received an answer to a beat, since epoch
}

type member struct{ of *stream }

// streamContext marks ctx so that the etcd client puts its watch on the given stream: it has one per metadata.
func streamContext(ctx context.Context, id int) context.Context {
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(
		rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader,
		"carillon-watch", strconv.Itoa(id)))
}

// laneOf returns the lane of a range that begins at key.
func laneOf(key string) int {
	return int(maphash.String(keySeed, key) % apart)
}

// pickStream returns the stream for a new watch.
func (s *streams) pickStream(lane int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current[lane]*lanes + lane
}

// closeStream makes the following watches of its lane use another stream than id.
func (s *streams) closeStream(id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lane := id % lanes; s.current[lane] == id/lanes {
		s.current[lane] = (s.current[lane] + 1) % streamsPerLane
	}
}

// joinStream adds a watch to the pulse of its stream, which then beats at least as often as every.
func (s *streams) joinStream(ctx context.Context, c *Client, id int, every time.Duration) *member {
	s.mu.Lock()
	defer s.mu.Unlock()

	st := s.live[id]
	if st == nil {
		pulse, stop := context.WithCancel(streamContext(context.WithoutCancel(ctx), id))
		st = &stream{
			id: id, members: map[*member]time.Duration{}, faster: make(chan struct{}, 1),
			stop: stop, done: make(chan struct{}), epoch: time.Now(),
		}

		if s.live == nil {
			s.live = map[int]*stream{}
		}

		s.live[id] = st
		go s.runProbe(pulse, c, st, every)
	}

	m := &member{of: st}
	st.members[m] = every
	select {
	case st.faster <- struct{}{}:
	default:
	}

	return m
}

// leaveStream ends a membership. The last to leave stops the pulse and waits for it.
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

// probeInterval is the shortest that a member asks for.
func (s *streams) probeInterval(st *stream, otherwise time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, d := range st.members {
		otherwise = min(otherwise, d)
	}

	return otherwise
}

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
			// An error means that there is no stream at the moment; the watches find out by themselves.
			beat, cancel := context.WithTimeout(ctx, every)
			_ = c.RequestProgress(beat)
			cancel()
		}

		t.Reset(every)
	}
}

// noteResponse notes that a watch received something: an answer to a beat, or not.
func (st *stream) noteResponse(progress bool) {
	now := int64(time.Since(st.epoch))
	st.heard.Store(now)
	if progress {
		st.progressed.Store(now)
	}
}

// isBusy says that the stream carried something since the moment given, but no answer to a beat. etcd answers only when
// every watch of the stream has caught up, so a flood of events on one keeps the beats of all unanswered: no proof that
// a quiet watch is dead. If another watch did hear an answer, this one should have heard it, too.
func (st *stream) isBusy(since time.Time) bool {
	at := int64(since.Sub(st.epoch))
	return st.heard.Load() > at && st.progressed.Load() <= at
}
