package secret

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// Ring is the set of keys that a node has. The zero Ring has none.
type Ring struct{ keys []Key }

// NewRing returns a ring of keys. The first one encrypts.
func NewRing(keys ...Key) Ring { return Ring{keys} }

// IDs returns the ids of the keys, first that of the key that encrypts.
func (r Ring) IDs() []string {
	ids := make([]string, len(r.keys))
	for i, k := range r.keys {
		ids[i] = k.id
	}
	return ids
}

// Errors of Seal and Open.
var (
	// ErrNoKey means that the node has no key at all, or not the required one.
	ErrNoKey = errors.New("no key")
	// ErrDamaged means that the ciphertext was not created with this key for this name, or was changed.
	ErrDamaged = errors.New("cannot be decrypted: it was changed, or belongs to another secret")
)

// Name identifies one version of a secret.
type Name struct {
	Namespace, Name string
	Generation      int64
}

// bindingFor returns the additional data that binds a ciphertext to its name and key. It is unambiguous, because
// names contain no NUL.
func (n Name) bindingFor(key string) []byte {
	return []byte("carillon secret 1\x00" + key + "\x00" + n.Namespace + "\x00" + n.Name + "\x00" + strconv.FormatInt(n.Generation, 10))
}

// paddingUnit is the unit to which values are padded before encryption.
const paddingUnit = 256

// Seal encrypts values with the first key, and returns that key's id. It returns ErrNoKey if the ring is empty.
func (r Ring) Seal(n Name, values map[string]string) (sealed []byte, key string, err error) {
	if len(r.keys) == 0 {
		return nil, "", ErrNoKey
	}

	plain, err := json.Marshal(values)
	if err != nil {
		return nil, "", errors.New("values that are not text")
	}

	for len(plain)%paddingUnit != 0 {
		plain = append(plain, ' ')
	}

	k := r.keys[0]

	return k.aead.Seal(nil, nil, plain, n.bindingFor(k.id)), k.id, nil
}

// Open decrypts what Seal has encrypted for the same name with the key of that id. It returns ErrNoKey if the ring
// does not contain the key, and ErrDamaged if the ciphertext is not authentic.
func (r Ring) Open(n Name, sealed []byte, key string) (map[string]string, error) {
	i := slices.IndexFunc(r.keys, func(k Key) bool { return k.id == key })
	if i < 0 {
		return nil, fmt.Errorf("%w %s", ErrNoKey, key)
	}

	plain, err := r.keys[i].aead.Open(nil, nil, sealed, n.bindingFor(key))
	if err != nil {
		return nil, ErrDamaged
	}

	var values map[string]string
	if json.Unmarshal(plain, &values) != nil {
		return nil, ErrDamaged
	}

	return values, nil
}
