package eventlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/carillonhq/carillon/pkg/task"
)

// Reader is one reader of a Hub.
type Reader struct {
	position
	hub     *Hub
	query   Query
	counted bool     // it keeps the hub open
	release func()   // releases the watch of its own; nil: it has none
	told    bool     // apply has been called
	taken   []*Event // the events of the last step; only the array is reused
	apply   func(Batch) error
}

// Open adds a reader, and opens the hub if it is closed. It does not wait for etcd, except for a short time if the hub
// has just opened.
//
// It returns the error of Query.OwnWatch if the reader needs a watch of its own: if the hub does not have the events from
// the given place on, or is not open. Later, a reader that needs such a watch waits until it may open one.
//
// The caller must close the Reader.
func (h *Hub) Open(ctx context.Context, q Query) (*Reader, error) {
	r := &Reader{hub: h, query: q, counted: !q.Brief}
	if q.After != nil {
		r.position = position{*q.After, true}
	}

	if r.counted {
		h.addReader()
	}

	if !r.startsInRing(ctx) {
		if err := r.acquireWatch(); err != nil {
			r.Close()
			return nil, err
		}
	}

	return r, nil
}

// startsInRing reports whether the reader needs no watch of its own at first. A reader of new events waits for the ring in
// any case.
func (r *Reader) startsInRing(ctx context.Context) bool {
	ring := r.hub.currentRing()
	if ring == nil || !r.begun {
		return ring != nil
	}

	if r.counted {
		waitCtx, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		awaitBegin(waitCtx, ring)
	}

	return ring.currentState().holds(r.place)
}

// Close ends a reader. Follow must have returned.
func (r *Reader) Close() {
	r.releaseWatch()

	if r.counted {
		r.counted = false
		r.hub.removeReader()
	}
}

// acquireWatch takes the right to open a watch, unless the reader has it.
func (r *Reader) acquireWatch() (err error) {
	if r.release != nil {
		return nil
	}

	if r.query.OwnWatch == nil {
		r.release = func() {}
		return nil
	}

	r.release, err = r.query.OwnWatch()

	return err
}

func (r *Reader) releaseWatch() {
	if r.release != nil {
		r.release()
		r.release = nil
	}
}

// Follow calls apply as FollowEvents does, until ctx ends or apply returns an error, which it returns.
func (r *Reader) Follow(ctx context.Context, apply func(Batch) error) error {
	r.apply = apply

	return retryAttempts(ctx, func() error {
		ring, err := r.chooseRing(ctx)

		switch {
		case err != nil:
			return err
		case ring != nil:
			return r.readRing(ctx, ring)
		default:
			return r.readWatch(ctx)
		}
	})
}

// chooseRing returns the ring if the reader can continue there, and nil if it needs a watch of its own. It determines
// where a reader of new events begins.
func (r *Reader) chooseRing(ctx context.Context) (*ring, error) {
	ring := r.hub.currentRing()
	if ring == nil {
		return nil, nil
	}

	// A reader of new events waits until the ring has begun. etcd then has the same revision as at the beginning of the
	// ring, or a higher one.
	state := ring.currentState()
	if !r.begun {
		if state = awaitBegin(ctx, ring); ctx.Err() != nil {
			return nil, ctx.Err()
		}
	} else if !state.holds(r.place) {
		return nil, nil
	}

	// The ring may have events of a history that etcd has lost, because it was restored from an older snapshot. Its
	// revision shows that. The state was read before the revision, so the ring cannot be ahead for another reason.
	newest, err := r.hub.log.newestRevision(ctx)

	switch {
	case err != nil:
		return nil, err
	case newest < state.told.Revision:
		r.hub.discardRing(ring)
		return nil, errRingEnded
	case !r.begun:
		r.position = position{task.After(newest), true}
	case r.baseRevision() > newest:
		gap := restoredGap(newest)
		if err := r.deliverBatch(Batch{Events: []*Event{gap}, Told: gap.Place}); err != nil {
			return nil, err
		}
		return nil, errMoved // the ring may not hold the new place
	}

	return ring, nil
}

// awaitBegin waits until a ring has begun or ended, or ctx ends.
func awaitBegin(ctx context.Context, ring *ring) ringState {
	for {
		state := ring.currentState()
		if state.begun || state.ended {
			return state
		}

		select {
		case <-state.changed:
		case <-ctx.Done():
			return state
		}
	}
}

// readRing delivers events from the ring until it no longer has the place of the reader.
func (r *Reader) readRing(ctx context.Context, ring *ring) error {
	r.releaseWatch()

	if !r.told {
		if err := r.deliverBatch(Batch{Told: r.place}); err != nil {
			return err
		}
	}

	for {
		var state ringState
		r.taken, state = ring.takeAfter(r.place, r.taken[:0])

		switch {
		case r.place.Before(state.floor):
			clear(r.taken)
			r.hub.behind.Add(1)
			return errBehind
		case r.place.Before(state.told):
			if err := r.deliverTaken(state.told); err != nil {
				return err
			}
			continue
		case state.ended:
			return errRingEnded
		}

		select {
		case <-state.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// keptArray is the number of events for which a reader keeps its array between two steps.
const keptArray = 256

// deliverTaken delivers those of the taken events that the reader wants.
func (r *Reader) deliverTaken(told task.Place) error {
	var wanted []*Event
	for _, e := range r.taken {
		if r.query.Wants != nil && !r.query.Wants(&e.Event) {
			continue
		}

		if base := r.baseRevision(); e.Kind == task.EventGap && e.From <= base {
			e = e.gapAfter(base)
		}

		wanted = append(wanted, e)
	}

	// The reader may wait for its client for a long time. It must not keep events that it does not need.
	clear(r.taken)
	if cap(r.taken) > keptArray {
		r.taken = nil
	}

	return r.deliverBatch(Batch{Events: wanted, Told: told})
}

// gapAfter returns the part of a gap after a revision: a reader that begins within the gap does not miss all of it.
func (e *Event) gapAfter(base int64) *Event {
	part := &Event{Event: e.Event, Place: e.Place}
	part.From = base + 1

	return part
}

// deliverBatch passes a batch to apply.
func (r *Reader) deliverBatch(b Batch) error {
	if err := r.apply(b); err != nil {
		return err
	}

	r.position, r.told = position{b.Told, true}, true

	return nil
}

// readWatch delivers events from a watch of its own until the reader has caught up with the ring.
func (r *Reader) readWatch(ctx context.Context) error {
	if err := r.acquireWatch(); err != nil {
		return fmt.Errorf("%w: %w", errNoWatch, err)
	}

	q := Query{Wants: r.query.Wants}
	if r.begun {
		q.After = &r.place
	}

	err := r.hub.log.FollowEvents(ctx, q, func(b Batch) error {
		if err := r.deliverBatch(b); err != nil {
			return err
		}

		if ring := r.hub.currentRing(); ring != nil && ring.isNear(b.Told) {
			return errCaughtUp
		}

		return nil
	})

	if errors.Is(err, errCaughtUp) {
		return errRejoin
	}

	return err
}
