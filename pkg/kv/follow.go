package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const (
	defaultStallAfter = 5 * time.Second
	// patience is how many times StallAfter a quiet watch waits while others keep its stream busy.
	patience = 3
)

var (
	errWatchStalled = errors.New("watch stalled")
	errWatchClosed  = errors.New("watch closed")
)

// Batch is one step of what Follow tells.
type Batch struct {
	// Reset says that KVs are content at Revision: all of it, or a page of it if FollowConfig.PageSize is set. Forget what
	// was known, an unfinished list included, unless Page is above 0.
	Reset bool
	// Page counts the pages of a list from 0, and More says that the list goes on in the next batch. Only after its last
	// page is the content whole, and true at Revision; no events come between. A list that fails starts again, with page 0
	// and the same Revision or a later one.
	Page int
	More bool
	// KVs come with Reset, in the order of their keys. Follow keeps none of them.
	KVs []*mvccpb.KeyValue
	// Events come without Reset, in order.
	Events []*clientv3.Event
	// Echo, only if FollowConfig.Echo asks for it, says that Events bring nothing new: the watch tells of what a list had
	// told before it. Without Events, it says that a new watch begins, which tells of nothing at or before Revision.
	Echo bool
	// Revision is up to where everything in this range is told, itself included (once there is no More). It grows with
	// every batch, save that a Reset may repeat it.
	Revision int64
}

// FollowConfig says what to follow: the range [Key, End), or the one key if End is empty.
type FollowConfig struct {
	Key, End string
	// WatchKey and WatchEnd, if set, are a wider range to watch than the one to list: what lies outside of
	// [Key, End) is told as events only, and untold if it happened before a list that the watch had not reached: before
	// the first one, or in the gap that another Reset stands for. A watch that is lost and resumed misses nothing. So a
	// Reset is the whole content of [Key, End), and says nothing about the rest. Not for a Mirror.
	WatchKey, WatchEnd string
	// Revision, if set, is that of the first list. If it is compacted by then, the newest is taken.
	Revision int64
	// PageSize, if set, has lists told in pages of that many keys at most, as they arrive; 1000 is some 1.5 MB of tasks.
	// The next page is read while apply works on one, and none further. Not for a Mirror, which ignores it.
	PageSize int
	// Apart gives the range a stream that it shares only with others that say so: for the few on which much depends, to
	// be served beside the many.
	Apart bool
	// Aside gives the range a stream that it shares only with others that say so: for readers on whom nothing depends, so
	// that one who has much to catch up with holds up nobody else.
	Aside bool
	// Previous asks for what each key held before, as PrevKv of an event: etcd reads it when it tells the event, so that it
	// is missing, of a key that was there, if that revision is compacted away by then.
	Previous bool
	// StallAfter is how long a watch may be silent, though a sign of life is asked for three times as often; default
	// 5 s. While other watches of the client keep the stream busy, it is three times as long.
	StallAfter time.Duration
	// Relist is the period, about, of a new list while all is well: a watch is a hint. 0 is never.
	Relist time.Duration
	// Echo asks for Batches with Echo: whoever compares lists with what it knew finds out by them what a watch had lost,
	// and what had been on its way only.
	Echo   bool
	Logger *zap.Logger // may be nil
	// Name is what the logs call it; default the key.
	Name string
}

// watchedRange is the range to watch.
func (cfg FollowConfig) watchedRange() (key, end string) {
	if cfg.WatchKey != "" {
		return cfg.WatchKey, cfg.WatchEnd
	}
	return cfg.Key, cfg.End
}

func (cfg FollowConfig) streamClass() int {
	switch {
	case cfg.Apart:
		return apart
	case cfg.Aside:
		return aside
	}

	key, _ := cfg.watchedRange()
	return laneOf(key)
}

// Follow lists the range, then watches it from the next revision on, and calls apply with each step, one at a time,
// from the calling goroutine. It returns when ctx ends, with its error, or with apply's error.
//
// A watch that is closed, cancelled or stalled, or whose store is away, is resumed from the revision told: every change
// is told once and in order, as if nothing had happened. There is another list, which apply gets as a Reset, only if
// the revision told is compacted away, if three resumed watches in a row heard nothing though the store could be read,
// if the store had gone back, or if Relist asks for it. Follow tries for ever, with a growing pause of up to about two
// seconds. It logs when the client loses the store and when all who follow have it back, not each attempt. A store whose revision is lower
// than what was told (restored from a snapshot) is not told of: it counts as lost until it is beyond that, and is then
// listed. If it grows beyond that unseen, it is taken for the same store. Resumptions, stalls and lists that were forced
// are counted (see Client.Register).
//
// While apply works, events wait in memory without a limit.
func Follow(ctx context.Context, c *Client, cfg FollowConfig, apply func(Batch) error) error {
	cfg.StallAfter = orDefault(cfg.StallAfter, defaultStallAfter)
	f := &follower{
		client: c, cfg: cfg, apply: apply,
		log:  orNop(cfg.Logger).With(zap.String("range", orDefault(cfg.Name, cfg.Key))),
		wait: backoff{first: 50 * time.Millisecond, most: 1500 * time.Millisecond},
	}
	defer f.reportRecovered()

	for {
		err := f.followOnce(ctx)
		var final applyError
		switch {
		case errors.As(err, &final):
			return final.error
		case ctx.Err() != nil:
			return ctx.Err()
		}

		f.reportLost(err)

		if !f.wait.sleep(ctx) {
			return ctx.Err()
		}
	}
}

// applyError marks the consumer's error, which ends Follow.
type applyError struct{ error }

func (e applyError) Unwrap() error { return e.error }

type follower struct {
	client *Client
	cfg    FollowConfig
	apply  func(Batch) error
	log    *zap.Logger
	wait   backoff

	revision int64 // told up to here
	begun    int64 // the highest that was told of, by a page of an unfinished list maybe
	whole    bool  // what was told is all there is up to revision: the next watch goes on from there
	heard    bool  // something came by the present watch, beyond that it is open
	silent   int   // resumed watches in a row by which nothing came
	lost     bool
	why      string // the content is to be listed again
}

func (f *follower) deliver(b Batch) error {
	if newest := max(f.begun, f.cfg.Revision); b.Revision < newest {
		return wentBack(newest, b.Revision)
	}

	f.begun = b.Revision
	if err := f.handOver(b); err != nil {
		return err
	}

	if !b.More {
		f.revision, f.whole, f.why = b.Revision, true, ""
	}

	return nil
}

func (f *follower) handOver(b Batch) error {
	if err := f.apply(b); err != nil {
		return applyError{err}
	}
	return nil
}

// runWatch tells what happens after f.revision until the watch ends or is silent for too long.
func (f *follower) runWatch(ctx context.Context) error {
	stream := f.client.streams.pickStream(f.cfg.streamClass())
	wctx, cancel := context.WithCancel(streamContext(ctx, stream))
	defer cancel()

	events, err := f.openWatch(wctx, cancel)
	if err != nil {
		f.client.streams.closeStream(stream)
		return err
	}

	// Leaving comes before cancel: a beat must find the stream, it would open another one for nobody.
	m := f.client.streams.joinStream(ctx, f.client, stream, f.cfg.StallAfter/3)
	defer f.client.streams.leaveStream(m)

	heard := time.Now()
	silence := time.NewTimer(f.cfg.StallAfter)
	defer silence.Stop()

	relist, stop := f.relistTimer()
	defer stop()

	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-relist:
			f.markInconsistent(whyBroken) // until it is through

			if err := f.loadAll(ctx); err != nil {
				return err
			}

			stop()
			relist, stop = f.relistTimer()
		case r, ok := <-events:
			if err := f.receiveResponse(m, r, ok); err != nil {
				if errors.Is(err, errWatchBehind) {
					f.client.streams.closeStream(stream) // the next one may lead to another member
				}
				return err
			}
		case <-silence.C:
			if len(events) > 0 {
				break
			}

			if m.of.isBusy(heard) && time.Since(heard) < patience*f.cfg.StallAfter {
				silence.Reset(f.cfg.StallAfter / 3)
				continue
			}

			f.client.streams.closeStream(stream)
			f.client.sight.stalls.Inc()

			return fmt.Errorf("%w: silent for %s", errWatchStalled, time.Since(heard).Round(time.Millisecond))
		}

		// The time that apply took is not silence.
		heard = time.Now()
		silence.Reset(f.cfg.StallAfter)
	}
}

// openWatch starts the watch. The etcd client returns from Watch only when the server has confirmed it, which a stalled
// stream never does.
func (f *follower) openWatch(ctx context.Context, cancel context.CancelFunc) (clientv3.WatchChan, error) {
	guard := time.AfterFunc(f.cfg.StallAfter, cancel)
	key, end := f.cfg.watchedRange()

	// From the revision told, not from the next: while one watch of a stream starts beyond the store's revision, as it
	// would in an idle store, etcd answers no beat for any of them. receive drops what is told already.
	//
	// Without fragments, for which etcd would measure each response. A response has the events of one request (1.5 MiB),
	// or of up to a thousand for a watch that catches up; both ends take 2 GiB, which no range of ours nears, and a watch
	// that passed it would be closed, and its range listed. The client puts fragments together before it tells anything.
	opts := append(upTo(end), clientv3.WithRev(f.revision), clientv3.WithCreatedNotify())
	if f.cfg.Previous {
		opts = append(opts, clientv3.WithPrevKV())
	}

	events := f.client.Watch(ctx, key, opts...)

	if !guard.Stop() {
		f.client.sight.stalls.Inc()
		return nil, fmt.Errorf("%w: not opened in %s", errWatchStalled, f.cfg.StallAfter)
	}

	return events, nil
}

// relistTimer returns the channel that calls for the next list, about a period from now, and what stops it.
func (f *follower) relistTimer() (<-chan time.Time, func() bool) {
	if f.cfg.Relist <= 0 {
		return nil, func() bool { return false }
	}
	t := time.NewTimer(f.cfg.Relist*3/4 + jitter(f.cfg.Relist/4))
	return t.C, t.Stop
}

// receiveResponse takes one response of the watch.
func (f *follower) receiveResponse(m *member, r clientv3.WatchResponse, ok bool) error {
	if !ok {
		return errWatchClosed
	}

	if err := r.Err(); err != nil {
		if errors.Is(err, rpctypes.ErrCompacted) {
			f.markInconsistent(whyCompacted)
		}
		return err
	}

	// A watch in the member's future would silence the pulse of its stream until the member has caught up. Only this
	// header tells: that of a progress notice may be older than the watch.
	if r.Created && r.Header.Revision < f.revision {
		return fmt.Errorf("%w: at revision %d, %d was reported", errWatchBehind, r.Header.Revision, f.revision)
	}

	f.heard = f.heard || !r.Created
	m.of.noteResponse(r.IsProgressNotify())
	f.reportRecovered()

	// Only events move the revision on. The header of a response with events may be ahead of them; and a progress notice
	// may answer a request that is older than this watch, and overtake the events that the watch has still to catch up
	// with: it is a sign of life, no more.
	if len(r.Events) == 0 {
		return nil
	}

	told := slices.IndexFunc(r.Events, func(e *clientv3.Event) bool { return e.Kv.ModRevision > f.revision })
	if told < 0 {
		told = len(r.Events)
	}

	if err := f.replayEvents(r.Events[:told]); err != nil || told == len(r.Events) {
		return err
	}

	return f.deliver(Batch{Revision: r.Events[len(r.Events)-1].Kv.ModRevision, Events: r.Events[told:]})
}

// replayEvents passes on what a list has told already.
func (f *follower) replayEvents(events []*clientv3.Event) error {
	if !f.cfg.Echo || len(events) == 0 {
		return nil
	}
	return f.handOver(Batch{Echo: true, Events: events, Revision: f.revision})
}

// markInconsistent notes why what was told leaves nothing to resume.
func (f *follower) markInconsistent(why string) { f.whole, f.why = false, why }

func (f *follower) reportLost(err error) {
	if !f.lost {
		f.lost = true
		f.client.sight.markLost(f.log, zap.Int64("rev", f.revision), zap.Error(err))
	}
}

func (f *follower) reportRecovered() {
	f.wait.reset()
	if f.lost {
		f.lost = false
		f.client.sight.markFound(f.log, zap.Int64("rev", f.revision))
	}
}
