package ui

import (
	"context"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
)

const (
	// failuresKept is for how long a failed reading is not repeated. While the API is slow, viewers so do not wait for each
	// other's attempts in turn.
	failuresKept = 2 * time.Second
	// unusedKept is for how long a value is kept that nobody asks for.
	unusedKept = time.Minute
)

// sharedCache keeps what all viewers with the same rights see, so that it is read once. The zero value is empty.
type sharedCache[T any] struct {
	mu  sync.Mutex
	all map[access.Digest]*sharedValue[T]
}

// sharedValue is the value for some rights.
type sharedValue[T any] struct {
	asked time.Time // guarded by the mutex of the cache

	// turn holds an element while somebody uses the fields below. It is no mutex, because who waits for it may give up.
	turn  chan struct{}
	at    time.Time // zero: not read yet
	value T
	err   error
}

// get returns the value for the rights of a viewer. Unless the one that is kept is fresh, it is read: by one viewer, for
// whom others with the same rights wait. A value is kept only if the rights were the same all the time.
func (c *sharedCache[T]) get(ctx context.Context, q *Request, fresh func(at time.Time) bool, read func(context.Context) (T, error)) (value T, err error) {
	before := q.access()
	rights := before.Digest(q.caller, q.Now)

	v := c.entry(rights, q.Now)
	select {
	case v.turn <- struct{}{}:
		defer func() { <-v.turn }()
	case <-ctx.Done():
		return value, ctx.Err()
	}

	switch {
	case v.at.IsZero():
	case v.err == nil && fresh(v.at):
		return v.value, nil
	case v.err != nil && q.Now.Sub(v.at) < failuresKept:
		return value, v.err
	}

	value, err = read(ctx)
	if ctx.Err() != nil {
		return value, err // the viewer has left, which says nothing about the API
	}
	if after := q.access(); after.Fence == before.Fence && after.Digest(q.caller, q.Now) == rights {
		v.at, v.value, v.err = q.Now, value, err
	}

	return value, err
}

// entry returns the place of the value for some rights, and forgets values that nobody uses.
func (c *sharedCache[T]) entry(rights access.Digest, now time.Time) *sharedValue[T] {
	c.mu.Lock()
	defer c.mu.Unlock()

	v := c.all[rights]
	if v == nil {
		for r, other := range c.all {
			if now.Sub(other.asked) > unusedKept {
				delete(c.all, r)
			}
		}

		if c.all == nil {
			c.all = map[access.Digest]*sharedValue[T]{}
		}
		v = &sharedValue[T]{turn: make(chan struct{}, 1)}
		c.all[rights] = v
	}
	v.asked = now

	return v
}
