package secret

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// Ring is the keys that a node holds. The zero Ring has none.
type Ring struct{ keys []Key }

// NewRing is a ring of keys, of which the first encrypts.
func NewRing(keys ...Key) Ring { return Ring{keys} }

// IDs are the ids of the keys, that of the one which encrypts first.
func (r Ring) IDs() []string {
	ids := make([]string, len(r.keys))
	for i, k := range r.keys {
		ids[i] = k.id
	}
	return ids
}

// Errors of a ring that cannot do what it is asked to.
var (
	// ErrNoKey means that the node has no key at all, or not that one.
	ErrNoKey = errors.New("no key")
	// ErrDamaged means that what is there was not sealed so by anybody who has the key.
	ErrDamaged = errors.New("cannot be decrypted: it was changed, or belongs elsewhere")
)

// Name says which write of which secret values are of.
type Name struct {
	Namespace, Name string
	Generation      int64
}

// bindingFor is what sealed values are bound to: their name, which cannot be mistaken
// for another, as names have no NUL.
func (n Name) bindingFor(key string) []byte {
	return []byte("carillon secret 1\x00" + key + "\x00" + n.Namespace + "\x00" + n.Name + "\x00" + strconv.FormatInt(n.Generation, 10))
}

// paddingUnit is what the length of sealed values is a multiple of.
const paddingUnit = 256

// Seal encrypts values under the first key, and says which that is. ErrNoKey if
// there is none.
func (r Ring) Seal(n Name, values map[string]string) (sealed []byte, key string, err error) {
	if len(r.keys) == 0 {
		return nil, "", ErrNoKey
	}

	plain, err := json.Marshal(values)
	if err != nil {
		return nil, "", errors.New("values that are no text")
	}

	for len(plain)%paddingUnit != 0 {
		plain = append(plain, ' ')
	}

	k := r.keys[0]

	return k.aead.Seal(nil, nil, plain, n.bindingFor(k.id)), k.id, nil
}

// Open decrypts what Seal made for that very name with the key of that id.
// ErrNoKey if the ring does not have it, ErrDamaged if it was not made so.
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
