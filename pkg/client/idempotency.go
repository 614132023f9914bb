package client

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// IdempotencyKeyHeader is the header that names a request, so that sending it again does not repeat what it does.
const IdempotencyKeyHeader = "Idempotency-Key"

// MaxIdempotencyKey is the maximum length of an idempotency key in bytes.
const MaxIdempotencyKey = 255

// CheckIdempotencyKey returns task.ErrInvalid for text that cannot be an idempotency key.
func CheckIdempotencyKey(key string) error {
	if key == "" || len(key) > MaxIdempotencyKey {
		return task.Invalid(task.CodeBadValue, IdempotencyKeyHeader, "has %d bytes; 1 to %d are allowed", len(key), MaxIdempotencyKey)
	}

	for _, r := range key {
		if r < ' ' || r > '~' {
			return task.Invalid(task.CodeBadValue, IdempotencyKeyHeader, "%s contains %q; only printable ASCII characters are allowed", task.Quote(key), r)
		}
	}

	return nil
}

const (
	// repeats is how often a call with an idempotency key is sent at most, if the answers to the former ones are lost.
	repeats = 3
	// repeatPause is the pause before the second time. It doubles each time.
	repeatPause = 300 * time.Millisecond
)

// doOnce sends a call for a task with an idempotency key; "" means a random one. While the outcome is unknown, it sends the
// call again with the same key, so that nothing is done twice. All of this happens within the timeout of one call.
func (c *connection) doOnce(ctx context.Context, namespace, name, key string, k call, out any, rest ...string) error {
	if key == "" {
		key = task.NewUID()
	}
	if err := CheckIdempotencyKey(key); err != nil {
		return err
	}

	if k.header == nil {
		k.header = http.Header{}
	}
	k.header.Set(IdempotencyKeyHeader, key)

	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()

	pause := repeatPause
	for i := 1; ; i++ {
		err := c.doTask(ctx, namespace, name, k, out, rest...)
		if i == repeats || !errors.Is(err, task.ErrUnknown) {
			return err
		}

		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause *= 2
	}
}
