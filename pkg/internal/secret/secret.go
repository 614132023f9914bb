// Package secret encrypts values with keys that only nodes have, and reads the files that contain those keys.
//
// A Ring encrypts with its first key and decrypts with any. The values of a secret are encrypted together, with
// AES-256-GCM and a random nonce, and are bound to namespace, name and generation. A user who can write to etcd but
// has no key can therefore neither read a value, nor change one, nor replace one secret by another. Such a user can
// restore an earlier record, or delete one.
//
// The ciphertext shows how long the values are together, up to a multiple of paddingUnit. The package assumes that
// a key encrypts at most about 2^32 times: secrets are written by people.
//
// A key file (KeyFile) contains a key in each line: "carillon-key-1", a colon, and 32 bytes as base64. Only its
// owner may read it, who must be root or the daemon's user. It is read before each use, so a change takes effect at
// once. No error, and nothing else that the package prints, contains a value or a key.
package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	keyMark  = "carillon-key-1:"
	keyBytes = 32 // AES-256
)

// Key is one of the keys that encrypt secrets. Printing it prints its id.
type Key struct {
	id   string
	key  func() [keyBytes]byte // a function, so that printing a struct that contains a Key does not print the bytes
	aead cipher.AEAD
}

// NewKey generates a random key.
func NewKey() Key {
	var b [keyBytes]byte
	rand.Read(b[:]) // crypto/rand never fails
	return keyOf(b)
}

// keyOf returns the key with the given bytes.
func keyOf(b [keyBytes]byte) Key {
	block, err := aes.NewCipher(b[:])
	if err != nil {
		panic("secret: " + err.Error()) // cannot happen: 32 bytes are a valid key
	}

	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic("secret: " + err.Error()) // cannot happen: AES has blocks of 16 bytes
	}

	sum := sha256.Sum256(append([]byte("carillon secret key id\x00"), b[:]...))

	return Key{id: hex.EncodeToString(sum[:4]), key: func() [keyBytes]byte { return b }, aead: aead}
}

// ID returns eight hexadecimal digits that identify the key and reveal nothing about it.
func (k Key) ID() string { return k.id }

// String returns the id. It keeps the bytes of the key out of logs.
func (k Key) String() string { return "key " + k.id }

// GoString returns the id.
func (k Key) GoString() string { return k.String() }

// Format prints the id for every verb.
func (k Key) Format(s fmt.State, _ rune) { fmt.Fprint(s, k.String()) }

// formatLine returns the key as a line of a key file.
func (k Key) formatLine() string {
	b := k.key()
	return keyMark + base64.StdEncoding.EncodeToString(b[:])
}

// parseKey parses a line that formatLine has written. Its error does not contain the text.
func parseKey(line string) (Key, error) {
	text, ok := strings.CutPrefix(line, keyMark)
	if !ok {
		return Key{}, fmt.Errorf("does not begin with %s", keyMark)
	}

	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != keyBytes {
		return Key{}, fmt.Errorf("does not have %d bytes in base64 after %s", keyBytes, keyMark)
	}

	return keyOf([keyBytes]byte(b)), nil
}

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
