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

	"github.com/carillonhq/carillon/pkg/clock"
)

const (
	// defaultStallAfter is how long a watch may be silent if FollowConfig.StallAfter is 0.
	defaultStallAfter = 5 * time.Second
	// maxQuietStalls is the factor by which a quiet watch may be silent longer while other watches keep its stream
	// busy.
	maxQuietStalls = 3
)

var (
	errWatchStalled = errors.New("watch stalled") // it was silent for too long
	errWatchClosed  = errors.New("watch closed")  // the etcd client closed its channel without an error
)

// Batch is one step of what Follow delivers: a list or a page of it, or events.
type Batch struct {
	// Reset means that KVs are the content of the range at Revision: all of it, or one page if FollowConfig.PageSize
	// is set. The consumer must discard what it had, including an unfinished list, unless Page is above 0.
	Reset bool
	// Page is the number of the page in its list, from 0. More means that the list continues in the next batch. The
	// content is complete, and valid at Revision, only after the last page. No events are delivered between two
	// pages. A list that fails starts again with page 0, at the same revision or a later one.
	Page int
	More bool
	// KVs are set with Reset, in the order of their keys. Follow keeps no reference to them.
	KVs []*mvccpb.KeyValue
	// Events are set without Reset, in the order of their revisions.
	Events []*clientv3.Event
	// Replayed is only set if FollowConfig.Replayed is. It means that Events contain nothing new: the watch replays
	// changes that a list had already delivered. Without Events, it means that a new watch begins, which replays
	// nothing at or before Revision.
	Replayed bool
	// Progress is only set if FollowConfig.Progress is. It means that the watch has given a sign of life. The batch has
	// no events, but events may follow that are older than this sign.
	Progress bool
	// Revision is the revision up to which, and including which, everything in the range has been delivered. While
	// More is set, that holds only for the pages so far. Revision increases with each batch, except that a Reset may
	// repeat it.
	Revision int64
}

// FollowConfig describes what to follow: the range [Key, End), or the single key if End is empty.
type FollowConfig struct {
	Key, End string
	// WatchKey and WatchEnd, if set, are a wider range to watch than the range to list. Keys outside of [Key, End)
	// are delivered as events only. Their changes are not delivered if they happened before a list that the watch had
	// not reached: before the first list, or in the gap that another Reset closes. A watch that is lost and resumed
	// misses nothing. So a Reset is the complete content of [Key, End), and contains no other keys. A Mirror does not
	// support it.
	WatchKey, WatchEnd string
	// Revision, if set, is the revision of the first list. If it has been compacted, the current content is listed.
	Revision int64
	// PageSize, if set, delivers lists in pages of at most that many keys, as they arrive. A page of 1000 tasks is
	// about 1.5 MB. Follow reads the next page while apply processes one, but not further ahead. A Mirror ignores it.
	PageSize int
	// Dedicated gives the range a stream that it shares only with other ranges that set Dedicated. It is for a few
	// important ranges, so that a flood of events on the others does not delay them.
	Dedicated bool
	// Background gives the range a stream that it shares only with other ranges that set Background. It is for readers
	// that nothing depends on, so that one of them which has much to catch up with delays nothing else.
	Background bool
	// Previous requests the previous value of each key, as PrevKv of an event. etcd reads that value when it delivers
	// the event. So PrevKv is nil, although the key existed before, if its revision has been compacted by then.
	Previous bool
	// StallAfter is how long a watch may be silent before it is given up. The default is 5 s. The watch is probed
	// three times as often. While other watches keep the stream busy, a watch may be silent three times as long.
	StallAfter time.Duration
	// Relist is the approximate period between two lists while the watch works. They detect changes that the watch
	// has lost. 0 disables them.
	Relist time.Duration
	// Replayed requests replayed batches. A consumer that compares lists with its own state needs them to distinguish
	// changes that the watch had lost from changes that were still in flight.
	Replayed bool
	// Progress requests a batch for each sign of life of the watch, which a consumer needs to know how current its
	// state is. There is one at least each third of StallAfter, as long as the watch works.
	Progress bool
	Logger   *zap.Logger // may be nil
	// Name identifies the range in log messages. The default is the key.
	Name string
}

// watchedRange returns the range to watch: the wider one if it is set, otherwise the range that is listed.
func (f FollowConfig) watchedRange() (key, end string) {
	if f.WatchKey != "" {
		return f.WatchKey, f.WatchEnd
	}
	return f.Key, f.End
}

// streamClass returns the class of the watch.
func (f FollowConfig) streamClass() int {
	switch {
	case f.Dedicated:
		return dedicatedClass
	case f.Background:
		return backgroundClass
	}

	key, _ := f.watchedRange()
	return streamClassOf(key)
}

// Follow lists the range, and then watches it from the revision of the list. It calls apply with each step, one at a
// time, from the calling goroutine. It returns the error of ctx when that ends, or the error of apply.
//
// If the watch is closed, cancelled or stalled, or if the store cannot be reached, Follow resumes it from the last
// delivered revision. Then every change is delivered once and in order, as if the watch had not been lost. Follow
// lists the range again, and delivers the list as a Reset, only in these cases:
//
//   - The last delivered revision has been compacted.
//   - Three resumed watches in a row received nothing although the store could be read.
//   - The store had gone back to an older revision.
//   - The previous list failed before it was complete.
//   - FollowConfig.Relist requires it.
//
// Follow retries without limit, with a pause that grows to about two seconds. It logs when the client loses the store
// and when all followed ranges have recovered, but not each attempt.
//
// If the revision of the store is lower than the last delivered revision (because it was restored from a snapshot),
// Follow delivers nothing and treats the store as lost until its revision is higher again. Then it lists the range.
// If the revision becomes higher before Follow reads it, Follow cannot detect the restore.
//
// Client.Register exports counters for resumed watches, stalls, and the lists that were not requested by Relist.
//
// While apply runs, events wait in memory. Their number is not limited.
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

// applyError marks an error of the consumer, which ends Follow.
type applyError struct{ error }

func (e applyError) Unwrap() error { return e.error }

// follower is the state of one call of Follow. Its goroutine is the only one that uses it.
type follower struct {
	client *Client
	cfg    FollowConfig
	apply  func(Batch) error
	log    *zap.Logger
	wait   backoff // between two attempts; reset when a watch receives something

	revision int64  // the last revision that was delivered completely
	begun    int64  // the highest revision that was delivered, maybe only by a page of an unfinished list
	whole    bool   // the consumer has everything up to revision, so the next watch can resume there
	received bool   // the present watch has received something besides its creation
	silent   int    // how many resumed watches in a row have received nothing
	lost     bool   // the loss of the watch has been reported
	why      string // why the range has to be listed again; empty if that is not the case or not yet known
}

// deliverBatch passes a list or new events to the consumer. It returns an error without calling apply if the
// revision is lower than one that was delivered or requested before, so that the consumer never goes back (see
// Follow).
func (f *follower) deliverBatch(b Batch) error {
	if newest := max(f.begun, f.cfg.Revision); b.Revision < newest {
		return wentBack(newest, b.Revision)
	}

	// begun is set before the call: apply may have used a part of the batch when it fails.
	f.begun = b.Revision
	if err := f.handOver(b); err != nil {
		return err
	}

	// Only a complete list, or events after one, is a state from which a watch can be resumed.
	if !b.More {
		f.revision, f.whole, f.why = b.Revision, true, ""
	}

	return nil
}

// handOver calls apply and marks its error, so that the error ends Follow.
func (f *follower) handOver(b Batch) error {
	if err := f.apply(b); err != nil {
		return applyError{err}
	}
	return nil
}

// runWatch delivers the changes after f.revision until the watch ends or is silent for too long. It always returns an
// error.
func (f *follower) runWatch(ctx context.Context) error {
	stream := f.client.streams.pickStream(f.cfg.streamClass())
	wctx, cancel := context.WithCancel(streamContext(ctx, stream))
	defer cancel()

	events, err := f.openWatch(wctx, cancel)
	if err != nil {
		f.client.streams.closeStream(stream)
		return err
	}

	// The deferred calls run in reverse order, so the watch leaves the probe before it is cancelled. Otherwise a
	// progress request could find no stream and would open a new one without watches.
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
			// If the list fails after some pages, the consumer has a mix of two revisions, and the range has to be
			// listed again. deliver clears the mark after the last page.
			f.markInconsistent(whyBroken)

			if err := f.loadAll(ctx); err != nil {
				return err
			}

			stop()
			relist, stop = f.relistTimer()
		case r, ok := <-events:
			if err := f.receiveResponse(m, r, ok); err != nil {
				if errors.Is(err, errWatchBehind) {
					// The next stream may connect to another member, which is up to date.
					f.client.streams.closeStream(stream)
				}
				return err
			}
		case <-silence.C:
			// Responses arrived while apply ran. That is not silence.
			if len(events) > 0 {
				break
			}

			// While another watch floods the stream, etcd does not answer probes, so silence proves nothing yet.
			if m.of.isBusy(heard) && time.Since(heard) < maxQuietStalls*f.cfg.StallAfter {
				silence.Reset(f.cfg.StallAfter / 3)
				continue
			}

			f.client.streams.closeStream(stream)
			f.client.health.stalls.Inc()

			return fmt.Errorf("%w: silent for %s", errWatchStalled, time.Since(heard).Round(time.Millisecond))
		}

		// The time that apply has taken does not count as silence.
		heard = time.Now()
		silence.Reset(f.cfg.StallAfter)
	}
}

// openWatch starts the watch. Watch of the etcd client returns only when the server has confirmed the watch, which
// never happens on a stalled stream. Therefore a timer cancels the watch after StallAfter.
func (f *follower) openWatch(ctx context.Context, cancel context.CancelFunc) (clientv3.WatchChan, error) {
	guard := time.AfterFunc(f.cfg.StallAfter, cancel)
	key, end := f.cfg.watchedRange()

	// The watch starts at the delivered revision, not at the next one. In an idle store the next revision is in the
	// future, and while one watch of a stream starts in the future, etcd answers no progress request for any watch of
	// the stream. receiveResponse drops the events that have been delivered already.
	//
	// The watch does not request fragments, because etcd would then measure the size of each response. A response has
	// the events of one request (at most 1.5 MiB), or of up to a thousand requests for a watch that catches up. Client
	// and server accept 2 GiB, which no range of Carillon comes close to. A watch that exceeded it would be closed, and
	// its range listed. Fragments would not save memory either, since the client joins them before it delivers them.
	opts := append(upTo(end), clientv3.WithRev(f.revision), clientv3.WithCreatedNotify())
	if f.cfg.Previous {
		opts = append(opts, clientv3.WithPrevKV())
	}

	events := f.client.Watch(ctx, key, opts...)

	// The timer has fired and cancelled the watch.
	if !guard.Stop() {
		f.client.health.stalls.Inc()
		return nil, fmt.Errorf("%w: not opened in %s", errWatchStalled, f.cfg.StallAfter)
	}

	return events, nil
}

// relistTimer returns a channel that receives a value when the next list is due, and the function that stops the
// timer. The time is random, so that the lists of many ranges spread out. Without FollowConfig.Relist, the channel is
// nil.
func (f *follower) relistTimer() (<-chan time.Time, func() bool) {
	if f.cfg.Relist <= 0 {
		return nil, func() bool { return false }
	}
	t := time.NewTimer(f.cfg.Relist*3/4 + clock.Jitter(f.cfg.Relist/4))
	return t.C, t.Stop
}

// receiveResponse processes one response of the watch. ok is false if the channel of the watch is closed. An error
// ends the watch.
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

	// The member has not applied f.revision yet, so the watch starts in its future. That would suppress the answers to
	// the progress requests of the whole stream until the member has caught up. Only the header of the creation shows
	// it: that of a progress notification may be older than the watch.
	if r.Created && r.Header.Revision < f.revision {
		return fmt.Errorf("%w: at revision %d, %d was reported", errWatchBehind, r.Header.Revision, f.revision)
	}

	// The creation alone does not count as a sign of life (see followOnce).
	f.received = f.received || !r.Created
	m.of.noteResponse(r.IsProgressNotify())
	f.reportRecovered()

	// Only events advance the revision. The header of a response with events may have a later revision than the events.
	// A progress notification may answer a request that is older than this watch, and may overtake events that the
	// watch still has to catch up with. It is a sign of life and nothing more. Resuming from its revision would lose
	// events.
	if len(r.Events) == 0 {
		if f.cfg.Progress && !r.Created {
			return f.handOver(Batch{Progress: true, Revision: f.revision})
		}
		return nil
	}

	// The events up to f.revision have been delivered by a list or by the previous watch.
	firstNew := slices.IndexFunc(r.Events, func(e *clientv3.Event) bool { return e.Kv.ModRevision > f.revision })
	if firstNew < 0 {
		firstNew = len(r.Events)
	}

	if err := f.replayEvents(r.Events[:firstNew]); err != nil || firstNew == len(r.Events) {
		return err
	}

	return f.deliverBatch(Batch{Revision: r.Events[len(r.Events)-1].Kv.ModRevision, Events: r.Events[firstNew:]})
}

// replayEvents delivers events that a list or an earlier watch has delivered before, if the consumer requested them.
func (f *follower) replayEvents(events []*clientv3.Event) error {
	if !f.cfg.Replayed || len(events) == 0 {
		return nil
	}
	return f.handOver(Batch{Replayed: true, Events: events, Revision: f.revision})
}

// markInconsistent records that the consumer has no state from which a watch can be resumed, and why. The range is
// then listed again.
func (f *follower) markInconsistent(why string) { f.whole, f.why = false, why }

// reportLost reports the loss of the watch, once until reportRecovered is called.
func (f *follower) reportLost(err error) {
	if !f.lost {
		f.lost = true
		f.client.health.markLost(f.log, zap.Int64("rev", f.revision), zap.Error(err))
	}
}

// reportRecovered reports that the watch works again, if it was lost, and resets the pause between attempts.
func (f *follower) reportRecovered() {
	f.wait.reset()
	if f.lost {
		f.lost = false
		f.client.health.markFound(f.log, zap.Int64("rev", f.revision))
	}
}

// loadAll lists the range and delivers it as a Reset. The first list is at FollowConfig.Revision if that is set,
// every later list at the current revision.
func (f *follower) loadAll(ctx context.Context) error {
	at := int64(0)
	if f.revision == 0 {
		at = f.cfg.Revision
	}

	list := f.listAt
	if f.cfg.PageSize > 0 {
		list = f.listPages
	}

	// If the requested revision has been compacted away, the current content replaces it. An error of the consumer may wrap
	// ErrCompacted, too, and must end Follow instead.
	err := list(ctx, at)
	var final applyError
	if at > 0 && errors.Is(err, rpctypes.ErrCompacted) && !errors.As(err, &final) {
		err = list(ctx, 0)
	}

	return err
}

// listAt reads the whole range at a revision, or at the current one if it is 0, and delivers it as one batch.
func (f *follower) listAt(ctx context.Context, at int64) error {
	kvs, rev, err := List(ctx, f.client, f.cfg.Key, f.cfg.End, at)
	if err != nil {
		return err
	}
	return f.deliverBatch(Batch{Reset: true, KVs: kvs, Revision: rev})
}

// listPages reads the range at a revision, or at the current one if it is 0, and delivers each page as a batch. It
// reads the next page while apply processes one, but not further ahead, so at most two pages are in memory.
func (f *follower) listPages(ctx context.Context, at int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	pages, failed := make(chan Batch), error(nil)
	go func() {
		defer close(pages)
		failed = eachPage(ctx, f.client, f.cfg.Key, f.cfg.End, at, f.cfg.PageSize, func(b Batch) error {
			select {
			case pages <- b:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()

	for b := range pages {
		if err := f.deliverBatch(b); err != nil {
			// Wait until the goroutine that reads has ended.
			cancel()
			for range pages {
			}
			return err
		}
	}

	return failed // the goroutine set it before it closed pages
}

// silentResumptions is how many resumed watches in a row may receive nothing, although the store could be read each
// time, before the range is listed again.
const silentResumptions = 3

// errWatchBehind is the error of a watch on a member that has not yet applied the revision from which the watch starts.
var errWatchBehind = errors.New("watch opened on a member that is behind")

// followOnce lists the range, or resumes the last watch if possible, and then watches until the watch fails. It
// always returns an error.
func (f *follower) followOnce(ctx context.Context) error {
	// A watch can be resumed if the consumer has everything up to f.revision.
	resumed := f.whole
	if resumed {
		if err := f.awaitConnection(ctx); err != nil {
			return err
		}
		f.client.health.resumptions.Inc()
	} else {
		why := f.why

		if err := f.loadAll(ctx); err != nil {
			return err
		}

		if why != "" {
			f.client.health.relists.WithLabelValues(why).Inc()
		}
	}

	// Tell the consumer that a new watch begins, which replays nothing at or before this revision.
	if f.cfg.Replayed {
		if err := f.handOver(Batch{Replayed: true, Revision: f.revision}); err != nil {
			return err
		}
	}

	f.received = false
	err := f.runWatch(ctx)

	// A watch that opens but delivers nothing, not even answers to progress probes, is suspect. After several of them
	// in a row, listing the range shows whether changes were missed.
	switch {
	case f.received || !resumed:
		f.silent = 0
	default:
		if f.silent++; f.silent == silentResumptions {
			f.silent = 0
			f.markInconsistent(whySilent)
		}
	}

	return err
}

// awaitConnection reads one key before a watch is resumed, to make sure that the store can be reached. If it cannot,
// the attempt fails here. Without this check a long outage would replace the stream again and again and would count
// as silent watches, so that every range would be listed at its end.
//
// The read is linearizable. If its revision is lower than one that was delivered, the store has gone back to an older
// state, and its content must be listed.
func (f *follower) awaitConnection(ctx context.Context) error {
	resp, err := f.client.Get(ctx, f.cfg.Key, clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("read %q: %w", f.cfg.Key, err)
	}

	if resp.Header.Revision < f.revision {
		f.markInconsistent(whyBack)
		return wentBack(f.revision, resp.Header.Revision)
	}

	return nil
}

// wentBack returns the error for a store whose revision is lower than one that was delivered before.
func wentBack(from, to int64) error {
	return fmt.Errorf("the store has gone back from revision %d to %d", from, to)
}
