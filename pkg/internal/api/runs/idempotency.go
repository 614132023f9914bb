package runs

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// idempotencyOf identifies a request to queue a run of a task by its Idempotency-Key. It returns the zero value if the
// request has none.
//
// A key belongs to its caller and task: equal keys of other callers, and for a task that was deleted and created again, are
// different keys. etcd stores only the digest, because senders may use keys that are secret.
func idempotencyOf(c *httpapi.Call, st store.Stored, operation string, content any) (store.Idempotency, error) {
	if c.IdempotencyKey == "" {
		return store.Idempotency{}, nil
	}

	key, err := digest(httpapi.CallerOf(c.Context()).Who, st.Ref.Namespace, st.Ref.Name, st.Task.UID, c.IdempotencyKey)
	if err != nil {
		return store.Idempotency{}, err
	}
	request, err := digest(operation, content)

	return store.Idempotency{Key: key, Request: request}, err
}

// digest returns a digest of values. JSON separates the values, and sorts the keys of maps.
func digest(values ...any) (string, error) {
	b, err := json.Marshal(values)
	if err != nil {
		return "", fmt.Errorf("write a digest: %w", err)
	}
	sum := sha256.Sum256(b)

	return hex.EncodeToString(sum[:16]), nil
}

// replay returns the current state of the run that an earlier copy of a request queued. Replayed is false if there was none. If the
// record of the run is no longer kept, the answer contains what the id of the run shows.
func (h *Handlers) replay(c *httpapi.Call, st store.Stored, once store.Idempotency) (client.Triggered, error) {
	id, err := h.Store.RunOf(c.Context(), once)
	switch {
	case errors.Is(err, store.ErrKeyReused):
		return client.Triggered{}, httpapi.Fail(http.StatusUnprocessableEntity, client.CodeKeyReused,
			"%s was used for a different request for task %s", task.Quote(c.IdempotencyKey), st.Ref).
			WithField(client.IdempotencyKeyHeader).WithHint("use a new key for each new request")
	case err != nil || id == "":
		return client.Triggered{}, err
	}

	run, err := h.Find(c.Context(), st.Ref, id)
	if errors.Is(err, task.ErrNotFound) {
		run, err = h.manualRun(st), nil
		run.ID = id
		if at, ok := task.TimeOfRunID(id); ok {
			run.ScheduledTime, run.CreatedAt = task.At(at), task.At(at)
		}
	}
	_, paused := views.PauseInForce(&st.Entry, h.Now.Stamp().Time)

	return client.Triggered{Run: views.ReadableRun(c.Rights(), views.RunInBrief(run)), Paused: paused, Replayed: true}, err
}
