package kv

import (
	"context"
	"hash/maphash"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

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

// watchMethod is the gRPC method of the streams that carry watches.
const watchMethod = "/etcdserverpb.Watch/Watch"

// haltWatches is an interceptor that makes all watches of a gRPC stream end when the stream breaks.
//
// Otherwise the etcd client would open a new stream and continue each watch after the revision of its last response.
// That can skip events. A progress notification goes to every watch of the stream, including one that was opened
// after the progress was requested and that still has to catch up. If the stream breaks then, the client continues
// that watch after the revision of the notification, and never delivers the events before it (G16).
//
// The client reopens a stream after the codes Unavailable and Internal, and ends the watches after any other code.
// Follow then resumes from the last revision that it has delivered.
func haltWatches(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil || method != watchMethod {
		return s, err // no watch has received anything yet, so the client may retry
	}
	return haltingStream{s}, nil
}

// haltingStream is a watch stream whose errors the etcd client does not retry.
type haltingStream struct{ grpc.ClientStream }

// RecvMsg replaces the codes after which the etcd client would reopen the stream by Aborted.
func (s haltingStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	switch status.Code(err) {
	case codes.Unavailable, codes.Internal:
		return status.Error(codes.Aborted, status.Convert(err).Message())
	}

	return err
}

// RepairsMetric is the name, and repairsHelp the help text, of a counter that every component has which reads again
// what it follows by a watch. The constant label "who" names the component. A healthy cluster has no repairs.
const (
	RepairsMetric = "carillon_reconcile_repairs_total"
	repairsHelp   = "Differences that a watch should have reported, but that a later read found and repaired."
)

// NewRepairs returns the counter RepairsMetric for the component who.
func NewRepairs(who string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: RepairsMetric, Help: repairsHelp, ConstLabels: prometheus.Labels{"who": who}})
}

// watchHealth counts the failures of the ranges that are followed through one client.
type watchHealth struct {
	resumptions prometheus.Counter
	stalls      prometheus.Counter
	relists     *prometheus.CounterVec
	repairs     prometheus.Counter // of mirrors

	mu   sync.Mutex
	lost int // ranges whose watch is lost at present
	gone int // losses since the last moment at which no range was lost
}

// The reasons for listing a range again instead of resuming its watch. They are values of the label "why".
const (
	whyCompacted = "compacted" // etcd has compacted the revision from which the watch had to resume
	whyBack      = "gone_back" // the revision of the store is lower than one that was delivered
	whySilent    = "silent"    // three resumed watches in a row received nothing
	whyBroken    = "broken"    // the previous list failed before it was complete
)

// newWatchHealth returns a watchHealth with new counters.
func newWatchHealth() watchHealth {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}

	return watchHealth{
		resumptions: counter("carillon_watch_resumptions_total", "Watches that were lost and resumed from the last revision that they had delivered."),
		stalls:      counter("carillon_watch_stalls_total", "Watches that were given up because they were silent for too long."),
		relists: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_watch_relists_total",
			Help: "Watched ranges that were listed again because their watch could not be resumed, by reason: compacted, gone_back, silent, broken."}, []string{"why"}),
		repairs: NewRepairs("mirror"),
	}
}

// Register adds the counters of the ranges that are followed through the client to r. They count from the creation of
// the client. Register panics if r already has counters with these names.
func (c *Client) Register(r prometheus.Registerer) {
	r.MustRegister(c.health.resumptions, c.health.stalls, c.health.relists, c.health.repairs)
}

// markLost records that the watch of a range is lost. A failure of etcd affects all ranges at once, and there
// may be hundreds, so only the first loss is logged as a warning.
func (w *watchHealth) markLost(log *zap.Logger, fields ...zap.Field) {
	w.mu.Lock()
	defer w.mu.Unlock()

	level := zapcore.DebugLevel
	if w.lost++; w.gone == 0 {
		level = zapcore.WarnLevel
	}

	w.gone++
	log.Log(level, "lost contact with the store", fields...)
}

// markFound records that a lost range has been recovered, or is no longer followed. It logs the recovery when no
// range is lost any more.
func (w *watchHealth) markFound(log *zap.Logger, fields ...zap.Field) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.lost--; w.lost > 0 {
		return
	}

	log.Info("the watch of etcd recovered", append(fields, zap.Int("losses", w.gone))...)
	w.gone = 0
}
