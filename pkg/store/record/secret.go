package record

import (
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// Secret is a secret as it is in etcd. Who has no key of the nodes can read
// all of it but the values.
type Secret struct {
	task.Secret
	Sealed []byte `json:"sealed,omitempty"` // by package secret; none if it was deleted
}

// Deleted reports whether there is nothing but what the next of its name goes on
// with, for a time: its generation, so that no former values fit in it.
func (r *Secret) Deleted() bool { return r.Change == task.SecretDeleted }

// Secrets is the prefix of all secrets.
func (k Keys) Secrets() string { return k.root + "secrets/" }

// SecretsOf is the part of Secrets that belongs to one namespace.
func (k Keys) SecretsOf(namespace string) string { return k.Secrets() + namespace + "/" }

// Secret is one of them.
func (k Keys) Secret(namespace, name string) string { return k.SecretsOf(namespace) + name }

// ParseSecret is the namespace and the name of a key below secrets/.
func (k Keys) ParseSecret(key string) (namespace, name string, ok bool) {
	parts, ok := partsBelow(k.Secrets(), key)
	if !ok || len(parts) != 2 {
		return "", "", false
	}
	return parts[0], parts[1], true
}

// DecodeSecret reads the record of a secret. Its namespace and name are the key's.
func (k Keys) DecodeSecret(e *mvccpb.KeyValue) (Secret, error) {
	r, err := Decode[Secret](e.Value)
	r.Namespace, r.Name, _ = k.ParseSecret(string(e.Key))
	r.Revision = e.ModRevision
	if err == nil && (r.Generation < 1 || !r.Deleted() && len(r.Sealed) == 0) {
		err = fmt.Errorf("%w: unreadable record: a secret has a generation and what is sealed", task.ErrInvalid)
	}

	return r, err
}
