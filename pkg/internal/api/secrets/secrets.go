// Package secrets contains the API handlers for secrets. The node that serves a request encrypts the values,
// and no answer, error or log contains a value. A change compares the revision that was read.
package secrets

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/secret"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	ofSecret = httpapi.InNamespace + "/secrets/{name}"

	setSecretAbout = "The node that receives the request encrypts the values with its key before it writes them to etcd. No answer contains a value. " +
		"Values that the request does not name stay, unless replace is true."
	rotateSecretAbout = "Uses the first key of the node that receives the request. Nothing is written if the secret is already encrypted with this key."
)

// Handlers serve secrets. They are safe for concurrent use.
type Handlers struct {
	Store *store.Store
	Node  string // the name of this node
	Now   httpapi.Clock
	// Keys returns this node's keys for secrets. It is called for each request, because key files can change;
	// nil means that the node has none.
	Keys func() (secret.Ring, error)
}

// Routes returns the operations on secrets. No answer contains a value.
func (h *Handlers) Routes() []*httpapi.Operation {
	one, many := reflect.TypeFor[task.Secret](), reflect.TypeFor[client.List[task.Secret]]()
	return []*httpapi.Operation{
		{ID: "list-all-secrets", Method: http.MethodGet, Path: "/v1/secrets", Tag: "secrets", Summary: "List the secrets of all namespaces, without their values",
			Description: "The list contains the secrets of all namespaces that you may read. No operation returns a value.",
			Status:      200, Answer: many, Handler: httpapi.Query(h.listSecrets)},
		{ID: "list-secrets", Verb: access.Read, Kind: access.Secrets, Method: http.MethodGet, Path: httpapi.InNamespace + "/secrets", Tag: "secrets", Summary: "List the secrets of a namespace, without their values",
			Description: "They are in the order of their names. No operation returns a value.",
			Status:      200, Answer: many, Handler: httpapi.Query(h.listSecrets)},
		{ID: "get-secret", Verb: access.Read, Kind: access.Secrets, Method: http.MethodGet, Path: ofSecret, Tag: "secrets", Summary: "Read a secret's metadata, without its values",
			Description: "The answer says who changed it and when. No operation returns a value.",
			Status:      200, Answer: one, Tagged: true, Revalidated: true, Handler: httpapi.NoQuery(h.getSecret)},
		{ID: "set-secret", Verb: access.Set, Kind: access.Secrets, Method: http.MethodPut, Path: ofSecret, Tag: "secrets", Summary: "Set values of a secret, creating it if needed",
			Description: setSecretAbout, Body: &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: reflect.TypeFor[client.SecretRequest]()},
			Conditional: true, Creates: true, Writes: true, Status: 200, Answer: one, Tagged: true, Errors: []int{409}, Handler: httpapi.NoQuery(h.setSecret)},
		{ID: "rotate-secret", Verb: access.Set, Kind: access.Secrets, Method: http.MethodPost, Path: ofSecret + "/rotate", Tag: "secrets", Summary: "Re-encrypt a secret",
			Description: rotateSecretAbout, Writes: true, Status: 200, Answer: one, Tagged: true, Errors: []int{409}, Handler: httpapi.NoQuery(h.rotateSecret)},
		{ID: "delete-secret", Verb: access.Delete, Kind: access.Secrets, Method: http.MethodDelete, Path: ofSecret, Tag: "secrets", Summary: "Delete a secret",
			Description: "Tasks that refer to the secret stay. Their next runs fail, because they cannot read it.",
			Conditional: true, Writes: true, Status: 204, Errors: []int{409}, Handler: httpapi.NoQuery(h.deleteSecret)},
	}
}

// secretName returns the secret in the path after checking it.
func secretName(c *httpapi.Call) (ns, name string, err error) {
	if ns, err = c.Namespace(); err != nil {
		return "", "", err
	}
	name = c.Request.PathValue("name")
	return ns, name, task.CheckName("name", name)
}

// answerSecret answers with a secret's metadata.
func answerSecret(r record.Secret) (httpapi.Answer, error) {
	return httpapi.Answer{Status: http.StatusOK, Body: r.Secret, Header: http.Header{"Etag": {httpapi.ETag(r.Revision)}}}, nil
}

// listSecrets serves the secrets of a namespace or of all namespaces.
func (h *Handlers) listSecrets(c *httpapi.Call, q httpapi.PageQuery) (httpapi.Answer, error) {
	ns := ""
	if c.Request.PathValue("ns") != "" {
		var err error
		if ns, err = c.Namespace(); err != nil {
			return httpapi.Answer{}, err
		}
	}

	p, err := c.Paging(q)
	if err != nil {
		return httpapi.Answer{}, err
	}

	var list []task.Secret
	var next string
	if within := c.Rights().Readable(access.Secrets); ns == "" && within != nil {
		list, next, err = h.listWithin(c, within, p)
	} else {
		list, next, err = h.Store.Secrets(c.Context(), ns, p.After, p.Limit)
	}

	if err != nil {
		return httpapi.Answer{}, err
	}

	return httpapi.Page(c, p, list, next)
}

// listWithin lists the secrets of some namespaces, one after another. It reads nothing outside them.
func (h *Handlers) listWithin(c *httpapi.Call, within []string, p httpapi.Paging) (list []task.Secret, next string, err error) {
	for i, ns := range within {
		after := p.After
		if from, _, ok := strings.Cut(after, "/"); ok && from > ns {
			continue
		}
		if !strings.HasPrefix(after, ns+"/") {
			after = ""
		}

		for {
			part, more, err := h.Store.Secrets(c.Context(), ns, after, p.Limit-len(list))
			if err != nil {
				return nil, "", err
			}

			list, after = append(list, part...), more
			if len(list) >= p.Limit {
				if more == "" && i == len(within)-1 {
					return list, "", nil
				}

				last := list[len(list)-1]
				return list, last.Namespace + "/" + last.Name, nil
			}
			if more == "" {
				break
			}
		}
	}

	return list, "", nil
}

// getSecret serves the metadata of a secret.
func (h *Handlers) getSecret(c *httpapi.Call) (httpapi.Answer, error) {
	ns, name, err := secretName(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	r, err := h.Store.Secret(c.Context(), ns, name)
	if err != nil {
		return httpapi.Answer{}, err
	}

	return answerSecret(r)
}

// setSecret serves changes of a secret's values.
func (h *Handlers) setSecret(c *httpapi.Call) (httpapi.Answer, error) {
	var ask client.SecretRequest
	if c.Decode(&ask) != nil {
		// The error of the decoder is not passed on, because it may quote a value.
		return httpapi.Answer{}, httpapi.Fail(http.StatusBadRequest, task.CodeBadJSON, "the body is not JSON of the form {\"values\": {\"NAME\": \"text\"}, \"remove\": [\"NAME\"], \"replace\": false}")
	}

	if len(ask.Values)+len(ask.Remove) == 0 {
		return httpapi.Answer{}, task.Invalid(task.CodeRequired, "values", "is empty, and so is remove: there is nothing to write")
	}

	return h.writeSecret(c, func(ring secret.Ring, r record.Secret, is bool) (map[string]string, string, error) {
		if c.IfNoneMatch && is {
			return nil, "", fmt.Errorf("secret %s/%s: %w", r.Namespace, r.Name, task.ErrExists)
		}

		// Values that the request does not name stay, so the existing ones must be decrypted, unless all are
		// replaced.
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

// rotateSecret serves the re-encryption of a secret under the first key of this node.
func (h *Handlers) rotateSecret(c *httpapi.Call) (httpapi.Answer, error) {
	return h.writeSecret(c, func(ring secret.Ring, r record.Secret, is bool) (map[string]string, string, error) {
		if !is {
			return nil, "", fmt.Errorf("secret %s/%s: %w", r.Namespace, r.Name, task.ErrNotFound)
		}

		values, err := openSecret(ring, r)
		if err == nil && ring.IDs()[0] == r.KeyID {
			values = nil // it is already encrypted under that key: write nothing
		}

		return values, task.SecretRotated, err
	})
}

// writeSecret writes a new version of a secret. next returns its values and the kind of the change; if the
// values are nil, nothing is written. next may be called several times, because a conflict starts again. is
// states whether the secret exists.
func (h *Handlers) writeSecret(c *httpapi.Call, next func(ring secret.Ring, r record.Secret, is bool) (map[string]string, string, error)) (httpapi.Answer, error) {
	ns, name, err := secretName(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	if err := c.Rights().RequireNamespace(ns); err != nil {
		return httpapi.Answer{}, err
	}

	ring, err := h.readRing()
	if err != nil {
		return httpapi.Answer{}, err
	}

	var r record.Secret
	err = httpapi.RetryConflict(c.Context(), func() error {
		var is bool
		r, is, err = h.secretNow(c, ns, name)
		if errors.Is(err, task.ErrInvalid) && r.Revision > 0 {
			r.Sealed, r.KeyID, is, err = nil, "", true, nil // next can replace the damaged record, and fails if it must decrypt it
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

		// The generation is part of what is encrypted, so the values of an earlier version cannot be put back
		// unnoticed.
		r.Generation, r.Change, r.UpdatedAt, r.UpdatedBy = r.Generation+1, change, now, c.Actor()
		r.Keys = slices.Sorted(maps.Keys(values))
		if r.Sealed, r.KeyID, err = ring.Seal(secret.Name{Namespace: ns, Name: name, Generation: r.Generation}, values); err != nil {
			return err
		}

		r.Revision, err = h.Store.As(c.Rights()).PutSecret(c.Context(), old, r)

		return httpapi.About("secret "+ns+"/"+name, err)
	})

	if err != nil {
		return httpapi.Answer{}, err
	}

	return answerSecret(r)
}

// secretNow reads a secret, and whether it exists, and compares its revision with the one that the request
// requires. If the record is damaged, it returns task.ErrInvalid and the revision.
func (h *Handlers) secretNow(c *httpapi.Call, ns, name string) (r record.Secret, is bool, err error) {
	r, err = h.Store.Secret(c.Context(), ns, name)
	is = err == nil
	if errors.Is(err, task.ErrNotFound) && c.IfMatch == 0 {
		err = nil
	}

	damaged := errors.Is(err, task.ErrInvalid)
	if (err == nil || damaged) && c.IfMatch != 0 && c.IfMatch != r.Revision {
		err = fmt.Errorf("secret %s/%s is at revision %d: %w, %d", ns, name, r.Revision, task.ErrStale, c.IfMatch)
	}

	return r, is, err
}

// readRing returns the keys of this node.
func (h *Handlers) readRing() (secret.Ring, error) {
	if h.Keys == nil {
		return secret.Ring{}, httpapi.Fail(http.StatusConflict, client.CodeNoKey, "node %s has no key for secrets", h.Node).
			WithHint("set secret_keys in the agent's configuration to the file with the keys, or use a node that has the key (--server)")
	}

	ring, err := h.Keys()
	if err != nil {
		return ring, httpapi.Fail(http.StatusConflict, client.CodeNoKey, "node %s cannot read its keys for secrets: %s", h.Node, err).Because(err)
	}

	return ring, nil
}

// openSecret decrypts the values of a secret, so that they can be written again.
func openSecret(ring secret.Ring, r record.Secret) (map[string]string, error) {
	values, err := ring.Open(secret.Name{Namespace: r.Namespace, Name: r.Name, Generation: r.Generation}, r.Sealed, r.KeyID)
	switch {
	case r.KeyID == "":
		return nil, httpapi.Fail(http.StatusConflict, client.CodeUnreadable, "the record of secret %s is damaged", r.Name).
			WithHint("write all values again, with --replace")
	case errors.Is(err, secret.ErrNoKey):
		return nil, httpapi.Fail(http.StatusConflict, client.CodeNoKey, "secret %s is encrypted with key %s, which this node does not have", r.Name, r.KeyID).
			WithHint("use a node that has it (--server), or write all values again, with --replace")
	case err != nil:
		return nil, httpapi.Fail(http.StatusConflict, client.CodeUnreadable, "secret %s %s", r.Name, err).
			WithHint("write all values again, with --replace")
	}

	return values, nil
}

// deleteSecret serves the deletion of a secret. A record without values stays for a week, so that a new secret
// of the same name continues with higher generations.
func (h *Handlers) deleteSecret(c *httpapi.Call) (httpapi.Answer, error) {
	ns, name, err := secretName(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	err = httpapi.RetryConflict(c.Context(), func() error {
		r, is, err := h.secretNow(c, ns, name)
		switch {
		case errors.Is(err, task.ErrInvalid) && r.Revision > 0:
			r.CreatedAt = h.Now.Stamp() // a damaged record can be deleted
		case err != nil:
			return err
		case !is:
			return fmt.Errorf("secret %s/%s: %w", ns, name, task.ErrNotFound)
		}

		gone := record.Secret{Secret: task.Secret{Namespace: ns, Name: name, Generation: r.Generation + 1, Change: task.SecretDeleted,
			CreatedAt: r.CreatedAt, UpdatedAt: h.Now.Stamp(), UpdatedBy: c.Actor()}}
		_, err = h.Store.As(c.Rights()).PutSecret(c.Context(), r.Revision, gone)

		return httpapi.About("secret "+ns+"/"+name, err)
	})

	return httpapi.Answer{Status: http.StatusNoContent}, err
}
