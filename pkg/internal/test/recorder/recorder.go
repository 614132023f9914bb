// Package recorder records every revision of a cluster's prefix, for tests that judge the history afterwards with
// package check. It uses the etcd client itself, which no package above store may do that takes part in the cluster:
// store returns the current state, and the checker needs each revision. A recording is complete, or its end is an
// error (ErrGap).
package recorder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// ErrGap means that revisions are missing from a recording, so that it must not be judged.
var ErrGap = errors.New("the recording has a gap")

const (
	progressInterval = 250 * time.Millisecond // how often the recorder requests etcd's current revision
	watchTimeout     = 5 * time.Second        // a watch that is silent for this long is given up
)

// Recorder keeps every revision of a cluster's prefix in memory: the keys that existed when it began, then each
// change. It does not take part in the cluster, and only reads.
//
//	list ──▶ watch from the next revision ──lost──▶ watch from the next missing one ──▶ …
//
// When a watch is lost, cancelled or silent, the recorder opens another from the revision after the last one that
// it holds. It never lists again, so that it omits no revision. If etcd has compacted that revision, or has gone
// back to an earlier one, the recording ends with ErrGap.
//
// The recorder does not trust a watch to be complete. CatchUp, and so Stop, compare the recording with the keys in
// etcd. If they differ, everything after the last successful comparison is recorded again.
//
// All exported methods may be called concurrently.
type Recorder struct {
	client *kv.Client
	keys   record.Keys
	ready  chan struct{}      // closed when the first list is held
	done   chan struct{}      // closed when recordUntilDone returns
	cancel context.CancelFunc // ends recordUntilDone; set by Start

	// mu guards the fields below.
	mu       sync.Mutex
	events   []check.Event  // the recording; slices of it were handed out, so elements never change
	revision int64          // everything up to here is held, if the watch was complete
	verified verifiedPrefix // the part that was compared with etcd
	reopen   chan struct{}  // closed and replaced when a watch must be opened again
	failure  error          // why the watch is lost; nil while it works
	err      error          // the result of recordUntilDone
	advanced chan struct{}  // closed and replaced when revision advances
}

// newRecorder returns a recorder of the cluster with those keys. It is filled by recordUntilDone.
func newRecorder(c *kv.Client, keys record.Keys) *Recorder {
	return &Recorder{client: c, keys: keys, ready: make(chan struct{}), done: make(chan struct{}), advanced: make(chan struct{}),
		reopen: make(chan struct{})}
}

// Start starts a recorder in a goroutine and returns when it holds the first list. The recording contains
// everything that happens from then on. The caller must call Stop to end it.
func Start(ctx context.Context, c *kv.Client, keys record.Keys) (*Recorder, error) {
	r := newRecorder(c, keys)
	ctx, r.cancel = context.WithCancel(ctx)
	go func() { _ = r.recordUntilDone(ctx) }() // Stop and WaitFor return its error

	select {
	case <-r.ready:
		return r, nil
	case <-r.done:
		return nil, r.endError()
	}
}

// Stop waits until the recorder holds everything that is in etcd now, ends it, and returns the events. If it
// returns an error, the events may be incomplete.
func (r *Recorder) Stop(ctx context.Context) ([]check.Event, error) {
	err := r.CatchUp(ctx)
	r.cancel()
	<-r.done

	return r.Events(), err
}

// recordUntilDone records until ctx ends, or until the recording has a gap (ErrGap). It retries every other error.
// Call it once.
func (r *Recorder) recordUntilDone(ctx context.Context) error {
	defer close(r.done)

	err := r.listRecords(ctx)
	for attempt := 0; err == nil; attempt++ {
		err = r.watchOnce(ctx, attempt)
		if err == nil || errors.Is(err, ErrGap) || ctx.Err() != nil {
			break
		}

		// A member that lags behind is normal, and another watch may reach a member that does not. Only an etcd
		// that has gone back as a whole ends the recording.
		if errors.Is(err, errBehind) {
			if gap := r.checkNotRolledBack(ctx); gap != nil {
				err = gap
				break
			}
		}

		r.mu.Lock()
		r.failure = err
		r.mu.Unlock()

		// Sleep returns false if ctx ended. The error then ends the loop.
		if clock.Sleep(ctx, progressInterval) {
			err = nil
		}
	}

	if ctx.Err() != nil && !errors.Is(err, ErrGap) {
		err = ctx.Err()
	}

	r.mu.Lock()
	r.err = err
	r.mu.Unlock()

	return err
}

// Events returns the history so far, for check.Check. The caller must not change it.
func (r *Recorder) Events() []check.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events[:len(r.events):len(r.events)]
}

// Revision returns the revision up to which everything is held.
func (r *Recorder) Revision() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.revision
}

// CatchUp waits until everything that is in etcd now is held, and replaying it yields the keys that exist.
func (r *Recorder) CatchUp(ctx context.Context) error {
	// Each failed comparison discards what was recorded since the last successful one. The limit keeps a watch that
	// always omits something from being retried forever.
	const tries = 5

	for i := 1; ; i++ {
		res, err := r.client.Get(ctx, r.keys.Cluster(), clientv3.WithKeysOnly())
		if err != nil {
			return fmt.Errorf("recorder: read the present revision: %w", err)
		}
		if err := r.WaitFor(ctx, res.Header.Revision); err != nil {
			return err
		}

		switch ok, err := r.verifyAt(ctx, res.Header.Revision); {
		case err != nil:
			return fmt.Errorf("recorder: compare with what is there: %w", err)
		case ok:
			return nil
		case i == tries:
			return fmt.Errorf("%w: the recording does not lead to what is there, after %d tries", ErrGap, tries)
		}
	}
}

// WaitFor waits until everything up to a revision is held. It returns the recording's error if the recording ends
// first, or the context's.
func (r *Recorder) WaitFor(ctx context.Context, revision int64) error {
	for {
		r.mu.Lock()
		held, moved, failure := r.revision, r.advanced, r.failure
		r.mu.Unlock()

		if held >= revision {
			return nil
		}

		select {
		case <-moved:
		case <-r.done:
			return r.endError()
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("recorder: at revision %d of %d: %w", held, revision, context.Cause(ctx)), failure)
		}
	}
}

// endError returns why the recording ended.
func (r *Recorder) endError() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Errorf("recorder: ended at revision %d: %w", r.revision, r.err)
}

// listRecords reads the prefix at one revision, and marks it as verified.
func (r *Recorder) listRecords(ctx context.Context) error {
	key, end := kv.Prefix(r.keys.Root())
	kvs, rev, err := kv.List(ctx, r.client, key, end, 0)
	if err != nil {
		return err
	}

	now := time.Now().UTC().Round(0) // as Save writes it
	events := make([]check.Event, 0, len(kvs))
	for _, e := range kvs {
		events = append(events, check.Event{
			Revision: rev, Key: string(e.Key), Value: e.Value, Listed: true,
			ModRevision: e.ModRevision, CreateRevision: e.CreateRevision, Lease: e.Lease, At: now,
		})
	}

	r.addEvents(events, rev, r.reopen)
	r.verified = verifiedPrefix{revision: rev, events: len(events), live: liveAfter(nil, events, rev)}
	close(r.ready)

	return nil
}

// addEvents appends events and advances revision. reopen identifies the watch that delivered them. If it was
// replaced in the meantime, the events are discarded, because verifyAt has moved revision back.
func (r *Recorder) addEvents(events []check.Event, revision int64, reopen chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if reopen != r.reopen {
		return
	}

	r.events = append(r.events, events...)
	r.revision, r.failure = max(r.revision, revision), nil
	close(r.advanced)
	r.advanced = make(chan struct{})
}

// watchOnce records from the first missing revision until its watch is lost. It always returns an error. The
// metadata gives each attempt its own gRPC stream, so that a dead stream does not carry the next watch.
func (r *Recorder) watchOnce(ctx context.Context, attempt int) error {
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, metadata.Pairs(
		rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader,
		"carillon-recorder", strconv.Itoa(attempt))))
	defer cancel()

	key, end := kv.Prefix(r.keys.Root())
	r.mu.Lock()
	from, reopen := r.revision+1, r.reopen
	r.mu.Unlock()

	// Watch blocks until the server answers. guard limits that.
	guard := time.AfterFunc(watchTimeout, cancel)

	// Without fragments, a response holds whole revisions. A watch can therefore resume after the last revision
	// that it delivered.
	responses := r.client.Watch(ctx, key, clientv3.WithRange(end), clientv3.WithRev(from), clientv3.WithCreatedNotify())
	guard.Stop()

	ask := time.NewTicker(progressInterval)
	defer ask.Stop()

	// lastReceived is when the last response arrived. Progress notifications count, so that an idle but working watch
	// is not given up.
	lastReceived := time.Now()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-reopen:
			return errors.New("it left something out")
		case res, ok := <-responses:
			if !ok {
				return errors.New("the watch was closed")
			}
			if err := r.receiveResponse(res, reopen); err != nil {
				return err
			}

			lastReceived = time.Now()
		case <-ask.C:
			if time.Since(lastReceived) > watchTimeout && len(responses) == 0 {
				return fmt.Errorf("the watch was silent for %s", watchTimeout)
			}

			one, stop := context.WithTimeout(ctx, progressInterval)

			// An error is ignored: if requests fail, no response arrives, and the check for silence ends the watch.
			_ = r.client.RequestProgress(one)
			stop()
		}
	}
}

// errBehind means that the watch is on a member that has not caught up, or that etcd has gone back.
var errBehind = errors.New("the watch is on a member that is behind")

// checkNotRolledBack determines by a linearizable read whether etcd as a whole has gone back behind the revision
// that is held, as after a restore. It returns nil if etcd does not answer.
func (r *Recorder) checkNotRolledBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()

	res, err := r.client.Get(ctx, r.keys.Cluster(), clientv3.WithKeysOnly())
	if held := r.Revision(); err == nil && res.Header.Revision < held {
		return fmt.Errorf("%w: etcd has gone back to revision %d, the recording ends at %d", ErrGap, res.Header.Revision, held)
	}

	return nil
}

// receiveResponse appends the events of a watch response. It returns ErrGap if the next revision was compacted, and
// errBehind if the response is older than what is held.
func (r *Recorder) receiveResponse(res clientv3.WatchResponse, reopen chan struct{}) error {
	held := r.Revision()

	if res.CompactRevision != 0 || errors.Is(res.Err(), rpctypes.ErrCompacted) {
		return fmt.Errorf("%w: etcd has compacted up to revision %d, the recording ends at %d", ErrGap, res.CompactRevision, held)
	}

	if err := res.Err(); err != nil {
		return err
	}

	if res.Header.Revision < held {
		return fmt.Errorf("%w: at revision %d, and %d is held", errBehind, res.Header.Revision, held)
	}

	// A progress notification confirms that everything up to its revision was delivered.
	if len(res.Events) == 0 {
		if res.IsProgressNotify() {
			r.addEvents(nil, res.Header.Revision, reopen)
		}
		return nil
	}

	now := time.Now().UTC().Round(0) // as Save writes it
	events := make([]check.Event, 0, len(res.Events))
	for _, e := range res.Events {
		// A repeated event is already held.
		if e.Kv.ModRevision <= held {
			continue
		}

		events = append(events, check.Event{
			Revision: e.Kv.ModRevision, Key: string(e.Kv.Key), Value: e.Kv.Value, Deleted: e.Type == clientv3.EventTypeDelete,
			ModRevision: e.Kv.ModRevision, CreateRevision: e.Kv.CreateRevision, Lease: e.Kv.Lease, At: now,
		})
	}

	// Use the revision of the last event. The header's revision may be ahead of the events.
	r.addEvents(events, res.Events[len(res.Events)-1].Kv.ModRevision, reopen)

	return nil
}

// Save writes events as one JSON object per line, so that the history of a failed test can be kept.
func Save(w io.Writer, events []check.Event) error {
	enc := json.NewEncoder(w)

	for _, e := range events {
		if err := enc.Encode(e); err != nil {
			return fmt.Errorf("save events: %w", err)
		}
	}

	return nil
}
