package record

import (
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// Token is the record of an API token. The secret itself is nowhere in etcd.
type Token struct {
	task.Token
	Hash string `json:"hash"` // SHA-256 of the secret, hexadecimal
}

// Timestamp is the record of what holds since an instant: a subject is disabled, or no process of an instance is left.
type Timestamp struct {
	At task.Time `json:"at"`
}

// Fence is the value of the fence's key. Only the key's mod revision matters; the value
// limits how often the fence may be written.
type Fence struct {
	Writes []FenceWrite `json:"writes"` // the last ones, the newest last; at most FenceWrites
}

// FenceWrite says when the fence was written, and on whose behalf.
type FenceWrite struct {
	At task.Time `json:"at"`
	By string    `json:"by,omitempty"` // the subject; absent: the node itself
}

// Limits of how often the fence may be written within a second. Each write of it makes every write of the API that is
// under way lose once and be authorised again: without a limit, one administrator's loop would keep all others from
// writing. Callers with grant on access may use all of FenceWrites. The others leave FenceWritesReserved of them, so that
// rights can always be taken away from them, and each of their subjects has FenceWritesOfSubject.
const (
	FenceWrites          = 10
	FenceWritesReserved  = 2
	FenceWritesOfSubject = 3
)

// LoginKeyBytes is the length of the key that seals logins which are under way and the cookies of sessions.
const LoginKeyBytes = 32

// LoginKey is the record of that key.
type LoginKey struct {
	Key []byte `json:"key"`
}

// Secret is the record of a secret. Without the keys of the nodes, everything in it can be read
// except the values.
type Secret struct {
	task.Secret
	Sealed []byte `json:"sealed,omitempty"` // the values, encrypted by package secret; empty if the secret was deleted
}

// Deleted reports whether the secret was deleted. The record remains for a while, so that the
// next secret of this name continues its generation. Encrypted values are bound to a
// generation, so former values are not valid for the new secret.
func (s *Secret) Deleted() bool { return s.Change == task.SecretDeleted }

// Secrets is the prefix of all secrets.
func (k Keys) Secrets() string { return k.root + "secrets/" }

// SecretsOf is the prefix of the secrets in one namespace.
func (k Keys) SecretsOf(namespace string) string { return k.Secrets() + namespace + "/" }

// Secret is the key of a secret.
func (k Keys) Secret(namespace, name string) string { return k.SecretsOf(namespace) + name }

// ParseSecret returns the namespace and the name in the key of a secret.
func (k Keys) ParseSecret(key string) (namespace, name string, ok bool) {
	parts, ok := partsBelow(k.Secrets(), key)
	if !ok || len(parts) != 2 {
		return "", "", false
	}
	return parts[0], parts[1], true
}

// DecodeSecret decodes the record of a secret. It takes the namespace and the name from the
// key.
func (k Keys) DecodeSecret(e *mvccpb.KeyValue) (Secret, error) {
	r, err := Decode[Secret](e.Value)
	r.Namespace, r.Name, _ = k.ParseSecret(string(e.Key))
	r.Revision = e.ModRevision
	if err == nil && (r.Generation < 1 || !r.Deleted() && len(r.Sealed) == 0) {
		err = fmt.Errorf("%w: unreadable record: a secret must have a generation and a sealed value", task.ErrInvalid)
	}

	return r, err
}
