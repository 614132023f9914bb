package api

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/secret"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	ofSecret = inNamespace + "/secrets/{name}"

	setSecretAbout = "Values are encrypted by the node that answers, which holds a key for that, before they go to etcd; no answer has one. " +
		"What is not named stays as it is, unless replace is true."
	rotateSecretAbout = "Under the first key of the node that answers. Nothing is written if that is the one it is encrypted under."
)

// secretHandlers serve secrets.
type secretHandlers struct {
	Store *store.Store
	Node  string // this one's name
	Now   Clock
	// Keys are this node's keys for secrets, read anew at each call; nil: it has none.
	Keys func() (secret.Ring, error)
}

// Routes are the operations of secrets. None answers with a value.
func (h *secretHandlers) Routes() []*route {
	one, many := reflect.TypeFor[task.Secret](), reflect.TypeFor[client.List[task.Secret]]()
	return []*route{
		{id: "list-all-secrets", method: http.MethodGet, path: "/v1/secrets", tag: "secrets", summary: "List the secrets of all namespaces, without their values",
			status: 200, answer: many, handler: Query(h.listSecrets)},
		{id: "list-secrets", method: http.MethodGet, path: inNamespace + "/secrets", tag: "secrets", summary: "List the secrets of a namespace, without their values",
			status: 200, answer: many, handler: Query(h.listSecrets)},
		{id: "get-secret", method: http.MethodGet, path: ofSecret, tag: "secrets", summary: "Read what is told of a secret: all but its values",
			status: 200, answer: one, tagged: true, handler: NoQuery(h.getSecret)},
		{id: "set-secret", method: http.MethodPut, path: ofSecret, tag: "secrets", summary: "Set values of a secret, which is made if it is not there",
			about: setSecretAbout, body: &body{types: []string{jsonType}, of: reflect.TypeFor[client.SecretRequest]()},
			conditional: true, creates: true, writes: true, status: 200, answer: one, tagged: true, errors: []int{409}, handler: NoQuery(h.setSecret)},
		{id: "rotate-secret", method: http.MethodPost, path: ofSecret + "/rotate", tag: "secrets", summary: "Encrypt a secret anew",
			about: rotateSecretAbout, writes: true, status: 200, answer: one, tagged: true, errors: []int{409}, handler: NoQuery(h.rotateSecret)},
		{id: "delete-secret", method: http.MethodDelete, path: ofSecret, tag: "secrets", summary: "Delete a secret",
			conditional: true, writes: true, status: 204, errors: []int{409}, handler: NoQuery(h.deleteSecret)},
	}
}

// secretName is the secret in the path, checked.
func (c *call) secretName() (ns, name string, err error) {
	if ns, err = c.namespace(); err != nil {
		return "", "", err
	}
	name = c.r.PathValue("name")
	return ns, name, task.CheckName("name", name)
}

func answerSecret(r store.SecretRecord) (answer, error) {
	return answer{status: http.StatusOK, body: r.Secret, header: http.Header{"Etag": {etag(r.Revision)}}}, nil
}

func (h *secretHandlers) listSecrets(c *call, q PageQuery) (answer, error) {
	ns := ""
	if c.r.PathValue("ns") != "" {
		var err error
		if ns, err = c.namespace(); err != nil {
			return answer{}, err
		}
	}
	p, err := c.paging(q)
	if err != nil {
		return answer{}, err
	}
	list, next, err := h.Store.Secrets(c.ctx(), ns, p.after, p.limit)
	if err != nil {
		return answer{}, err
	}
	return page(c, p, list, next)
}

func (h *secretHandlers) getSecret(c *call) (answer, error) {
	ns, name, err := c.secretName()
	if err != nil {
		return answer{}, err
	}
	r, err := h.Store.Secret(c.ctx(), ns, name)
	if err != nil {
		return answer{}, err
	}
	return answerSecret(r)
}

func (h *secretHandlers) setSecret(c *call) (answer, error) {
	var ask client.SecretRequest
	if c.decode(&ask) != nil {
		// What is wrong is not said: it may have a value in it.
		return answer{}, fail(http.StatusBadRequest, task.CodeBadJSON, "the body is not JSON of the form {\"values\": {\"NAME\": \"text\"}, \"remove\": [\"NAME\"], \"replace\": false}")
	}
	if len(ask.Values)+len(ask.Remove) == 0 {
		return answer{}, task.Invalid(task.CodeRequired, "values", "is empty, and remove is, too: there is nothing to write")
	}
	return h.writeSecret(c, func(ring secret.Ring, r store.SecretRecord, is bool) (map[string]string, string, error) {
		if c.fresh && is {
			return nil, "", fmt.Errorf("secret %s/%s: %w", r.Namespace, r.Name, task.ErrExists)
		}
		values := map[string]string{}
		if is && !ask.Replace {
			var err error
			if values, err = openSecret(ring, r); err != nil {
				return nil, "", err
			}
		}
		for i, name := range ask.Remove {
			if _, has := values[name]; !has {
				return nil, "", task.Invalid(task.CodeBadValue, fmt.Sprintf("remove[%d]", i), "%s is not the name of a value", task.Quote(name))
			}
			delete(values, name)
		}
		maps.Copy(values, ask.Values)
		return values, task.SecretSet, task.CheckSecret("values", values)
	})
}

func (h *secretHandlers) rotateSecret(c *call) (answer, error) {
	return h.writeSecret(c, func(ring secret.Ring, r store.SecretRecord, is bool) (map[string]string, string, error) {
		if !is {
			return nil, "", fmt.Errorf("secret %s/%s: %w", r.Namespace, r.Name, task.ErrNotFound)
		}
		values, err := openSecret(ring, r)
		if err == nil && ring.IDs()[0] == r.KeyID {
			values = nil // as it is to be
		}
		return values, task.SecretRotated, err
	})
}

// writeSecret writes what next makes of a secret: its values, and the word for the
// change. Without values nothing is written.
func (h *secretHandlers) writeSecret(c *call, next func(ring secret.Ring, r store.SecretRecord, is bool) (map[string]string, string, error)) (answer, error) {
	ns, name, err := c.secretName()
	if err != nil {
		return answer{}, err
	}
	ring, err := h.ring()
	if err != nil {
		return answer{}, err
	}
	var r store.SecretRecord
	err = retryConflict(c.ctx(), func() error {
		var is bool
		r, is, err = h.secretNow(c, ns, name)
		if errors.Is(err, task.ErrInvalid) && r.Revision > 0 {
			r.Sealed, r.KeyID, is, err = nil, "", true, nil // next finds that it cannot be opened
		}
		if err != nil {
			return err
		}
		values, change, err := next(ring, r, is)
		if err != nil || values == nil {
			return err
		}
		old := r.Revision
		now := h.Now.Stamp()
		if !is || r.CreatedAt.IsZero() {
			r.CreatedAt = now
		}
		r.Generation, r.Change, r.UpdatedAt, r.UpdatedBy = r.Generation+1, change, now, c.actor()
		r.Keys = slices.Sorted(maps.Keys(values))
		if r.Sealed, r.KeyID, err = ring.Seal(secret.Name{Namespace: ns, Name: name, Generation: r.Generation}, values); err != nil {
			return err
		}
		r.Revision, err = h.Store.PutSecret(c.ctx(), old, r)
		return about("secret "+ns+"/"+name, err)
	})
	if err != nil {
		return answer{}, err
	}
	return answerSecret(r)
}

// secretNow reads a secret, and whether it is there, and compares its revision
// with the one that was asked for.
func (h *secretHandlers) secretNow(c *call, ns, name string) (r store.SecretRecord, is bool, err error) {
	r, err = h.Store.Secret(c.ctx(), ns, name)
	is = err == nil
	if errors.Is(err, task.ErrNotFound) && c.match == 0 {
		err = nil
	}
	damaged := errors.Is(err, task.ErrInvalid)
	if (err == nil || damaged) && c.match != 0 && c.match != r.Revision {
		err = fmt.Errorf("secret %s/%s is at revision %d: %w, %d", ns, name, r.Revision, task.ErrStale, c.match)
	}
	return r, is, err
}

// ring is the keys of this node.
func (h *secretHandlers) ring() (secret.Ring, error) {
	if h.Keys == nil {
		return secret.Ring{}, fail(http.StatusConflict, client.CodeNoKey, "node %s has no key for secrets", h.Node).
			withHint("secret_keys of the agent names the file with them; or ask a node that has it, with --server")
	}
	ring, err := h.Keys()
	if err != nil {
		return ring, fail(http.StatusConflict, client.CodeNoKey, "node %s cannot read its keys for secrets: %s", h.Node, err).because(err)
	}
	return ring, nil
}

// openSecret decrypts a secret, to write it again.
func openSecret(ring secret.Ring, r store.SecretRecord) (map[string]string, error) {
	values, err := ring.Open(secret.Name{Namespace: r.Namespace, Name: r.Name, Generation: r.Generation}, r.Sealed, r.KeyID)
	switch {
	case r.KeyID == "":
		return nil, fail(http.StatusConflict, client.CodeUnreadable, "the record of secret %s is damaged", r.Name).
			withHint("write all its values anew, with --replace")
	case errors.Is(err, secret.ErrNoKey):
		return nil, fail(http.StatusConflict, client.CodeNoKey, "secret %s is encrypted under key %s, which this node does not hold", r.Name, r.KeyID).
			withHint("ask a node that does, with --server; or write all its values anew, with --replace")
	case err != nil:
		return nil, fail(http.StatusConflict, client.CodeUnreadable, "secret %s %s", r.Name, err).
			withHint("write all its values anew, with --replace")
	}
	return values, nil
}

func (h *secretHandlers) deleteSecret(c *call) (answer, error) {
	ns, name, err := c.secretName()
	if err != nil {
		return answer{}, err
	}
	err = retryConflict(c.ctx(), func() error {
		r, is, err := h.secretNow(c, ns, name)
		switch {
		case errors.Is(err, task.ErrInvalid) && r.Revision > 0:
			r.CreatedAt = h.Now.Stamp() // what cannot be read can go
		case err != nil:
			return err
		case !is:
			return fmt.Errorf("secret %s/%s: %w", ns, name, task.ErrNotFound)
		}
		gone := store.SecretRecord{Secret: task.Secret{Namespace: ns, Name: name, Generation: r.Generation + 1, Change: task.SecretDeleted,
			CreatedAt: r.CreatedAt, UpdatedAt: h.Now.Stamp(), UpdatedBy: c.actor()}}
		_, err = h.Store.PutSecret(c.ctx(), r.Revision, gone)
		return about("secret "+ns+"/"+name, err)
	})
	return answer{status: http.StatusNoContent}, err
}
