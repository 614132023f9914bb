package check

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
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// ErrGap means that revisions are missing from a recording: it proves nothing.
var ErrGap = errors.New("the recording has a gap")

const (
	progressInterval = 250 * time.Millisecond // how often the recorder asks how far etcd is
	watchTimeout     = 5 * time.Second        // a watch this silent is given up
	listTimeout      = time.Minute
)

// Recorder keeps every revision of a cluster's prefix in memory: what was there
// when it began, then each change. It is no part of the cluster, and only reads.
//
//	list ──▶ watch from the next revision ──lost──▶ watch from the next one it has not ──▶ …
//
// A watch that is lost, cancelled or silent is opened again from the revision
// after the last one held; nothing is ever listed twice, so that no revision is
// left out. If etcd has compacted that revision away, or has gone back behind
// it, the recording ends with ErrGap.
//
// A watch's word that it has told everything is not believed: CatchUp, and so
// Stop, hold what was recorded against the keys that are there. If it does not
// lead to them, all since the last time that it did is recorded anew.
type Recorder struct {
	client *kv.Client
	keys   record.Keys
	ready  chan struct{}
	done   chan struct{}
	cancel context.CancelFunc // of Record

	mu       sync.Mutex
	events   []Event
	revision int64          // all up to here is held, if the watch is to be believed
	verified verifiedPrefix // the part that was compared with what is there
	reopen   chan struct{}  // closed when a watch is to be opened anew
	failure  error          // of the watch, while it is lost
	err      error          // of Run
	advanced chan struct{}
}

// NewRecorder makes a recorder of the cluster with those keys; Run fills it.
func NewRecorder(c *kv.Client, keys record.Keys) *Recorder {
	return &Recorder{client: c, keys: keys, ready: make(chan struct{}), done: make(chan struct{}), advanced: make(chan struct{}),
		reopen: make(chan struct{})}
}

// Record runs a recorder beside the caller, and returns when it has its list:
// it holds everything that happens from then on. Stop ends it.
func Record(ctx context.Context, c *kv.Client, keys record.Keys) (*Recorder, error) {
	r := NewRecorder(c, keys)
	ctx, r.cancel = context.WithCancel(ctx)
	go func() { _ = r.Run(ctx) }() // Stop and WaitFor tell its error

	select {
	case <-r.ready:
		return r, nil
	case <-r.done:
		return nil, r.endError()
	}
}

// Stop waits until the recorder holds all that is in etcd now, ends it, and
// returns the events. It is for a recorder that Record made.
func (r *Recorder) Stop(ctx context.Context) ([]Event, error) {
	err := r.CatchUp(ctx)
	r.cancel()
	<-r.done

	return r.Events(), err
}

// Run records until ctx ends, or the recording has a gap (ErrGap). It is called
// once.
func (r *Recorder) Run(ctx context.Context) error {
	defer close(r.done)

	err := r.listRecords(ctx)
	for attempt := 0; err == nil; attempt++ {
		err = r.watchOnce(ctx, attempt)
		if err == nil || errors.Is(err, ErrGap) || ctx.Err() != nil {
			break
		}

		if errors.Is(err, errBehind) {
			if gap := r.checkNotRolledBack(ctx); gap != nil {
				err = gap
				break
			}
		}

		r.mu.Lock()
		r.failure = err
		r.mu.Unlock()

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

// Events is the history so far, for Check. Nobody may change it.
func (r *Recorder) Events() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events[:len(r.events):len(r.events)]
}

// Revision is the revision up to which everything is held.
func (r *Recorder) Revision() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.revision
}

// CatchUp waits until all is held that is in etcd now, and leads to the keys that
// are there.
func (r *Recorder) CatchUp(ctx context.Context) error {
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

// WaitFor waits until everything up to a revision is held. It returns the
// recording's error if that ends first, or the context's.
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

func (r *Recorder) endError() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Errorf("recorder: ended at revision %d: %w", r.revision, r.err)
}

func (r *Recorder) listRecords(ctx context.Context) error {
	key, end := kv.Prefix(r.keys.Root())
	kvs, rev, err := kv.List(ctx, r.client, key, end, 0)
	if err != nil {
		return err
	}

	events := make([]Event, 0, len(kvs))
	for _, e := range kvs {
		events = append(events, Event{
			Revision: rev, Key: string(e.Key), Value: e.Value, Listed: true,
			ModRevision: e.ModRevision, CreateRevision: e.CreateRevision, Lease: e.Lease,
		})
	}

	r.addEvents(events, rev, r.reopen)
	r.verified = verifiedPrefix{revision: rev, events: len(events), live: liveAfter(nil, events, rev)}
	close(r.ready)

	return nil
}

// addEvents appends events and notes up to where all is held, unless their watch is one
// that is to be opened anew.
func (r *Recorder) addEvents(events []Event, revision int64, reopen chan struct{}) {
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

// watchOnce adds what happens after the revision held, until the watch is lost.
// Each attempt has a stream of its own: one that is dead must not carry the next.
func (r *Recorder) watchOnce(ctx context.Context, attempt int) error {
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, metadata.Pairs(
		rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader,
		"carillon-recorder", strconv.Itoa(attempt))))
	defer cancel()

	key, end := kv.Prefix(r.keys.Root())
	r.mu.Lock()
	from, reopen := r.revision+1, r.reopen
	r.mu.Unlock()

	guard := time.AfterFunc(watchTimeout, cancel) // Watch waits for the server's word
	// Without fragments: a response holds whole revisions, so that the next one
	// not held is where to resume.
	responses := r.client.Watch(ctx, key, clientv3.WithRange(end), clientv3.WithRev(from), clientv3.WithCreatedNotify())
	guard.Stop()

	ask := time.NewTicker(progressInterval)
	defer ask.Stop()

	heard := time.Now()
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

			heard = time.Now()
		case <-ask.C:
			if time.Since(heard) > watchTimeout && len(responses) == 0 {
				return fmt.Errorf("the watch was silent for %s", watchTimeout)
			}

			one, stop := context.WithTimeout(ctx, progressInterval)
			_ = r.client.RequestProgress(one) // silence will tell
			stop()
		}
	}
}

// errBehind means that the member that the watch is on has not caught up, or
// that etcd has gone back.
var errBehind = errors.New("the watch is on a member that is behind")

// checkNotRolledBack asks etcd as a whole, by a linearizable read, whether it has gone
// back behind what is held. No answer is none.
func (r *Recorder) checkNotRolledBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()

	res, err := r.client.Get(ctx, r.keys.Cluster(), clientv3.WithKeysOnly())
	if held := r.Revision(); err == nil && res.Header.Revision < held {
		return fmt.Errorf("%w: etcd has gone back to revision %d, the recording ends at %d", ErrGap, res.Header.Revision, held)
	}

	return nil
}

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

	if len(res.Events) == 0 {
		if res.IsProgressNotify() {
			r.addEvents(nil, res.Header.Revision, reopen)
		}
		return nil
	}

	events := make([]Event, 0, len(res.Events))
	for _, e := range res.Events {
		if e.Kv.ModRevision <= held {
			continue
		}

		events = append(events, Event{
			Revision: e.Kv.ModRevision, Key: string(e.Kv.Key), Value: e.Kv.Value, Deleted: e.Type == clientv3.EventTypeDelete,
			ModRevision: e.Kv.ModRevision, CreateRevision: e.Kv.CreateRevision, Lease: e.Kv.Lease,
		})
	}

	// The header may be ahead of the events.
	r.addEvents(events, res.Events[len(res.Events)-1].Kv.ModRevision, reopen)

	return nil
}

// List reads what is there now, as the events of one list: for Snapshot.
func List(ctx context.Context, c *kv.Client, keys record.Keys) ([]Event, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()

	r := NewRecorder(c, keys)
	if err := r.listRecords(ctx); err != nil {
		return nil, err
	}

	return r.Events(), nil
}

// Save writes events, one JSON object a line: a history to keep beside a failed
// test, that Load reads.
func Save(w io.Writer, events []Event) error {
	enc := json.NewEncoder(w)

	for _, e := range events {
		if err := enc.Encode(e); err != nil {
			return fmt.Errorf("save events: %w", err)
		}
	}

	return nil
}

// Load reads what Save wrote.
func Load(rd io.Reader) ([]Event, error) {
	dec := json.NewDecoder(rd)
	var events []Event
	for {
		var e Event
		switch err := dec.Decode(&e); {
		case errors.Is(err, io.EOF):
			return events, nil
		case err != nil:
			return nil, fmt.Errorf("load event %d: %w", len(events)+1, err)
		}

		events = append(events, e)
	}
}
