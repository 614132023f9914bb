package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
)

const (
	keyMark  = "carillon-key-1:"
	keyBytes = 32 // AES-256
)

// Key is one of the keys under which secrets are encrypted. It prints as its id.
type Key struct {
	id   string
	key  func() [keyBytes]byte // not the bytes: what has a Key in it may be printed, too
	aead cipher.AEAD
}

// NewKey makes a key, at random.
func NewKey() Key {
	var b [keyBytes]byte
	rand.Read(b[:]) // never fails: crypto/rand
	return keyOf(b)
}

func keyOf(b [keyBytes]byte) Key {
	block, err := aes.NewCipher(b[:])
	if err != nil {
		panic("secret: " + err.Error()) // 32 bytes are a key
	}

	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic("secret: " + err.Error()) // AES has blocks of 16 bytes
	}

	sum := sha256.Sum256(append([]byte("carillon secret key id\x00"), b[:]...))

	return Key{id: hex.EncodeToString(sum[:4]), key: func() [keyBytes]byte { return b }, aead: aead}
}

// ID names the key, and tells nothing of it: eight letters and digits that follow
// from it.
func (k Key) ID() string { return k.id }

// String is the id, however the key is printed.
func (k Key) String() string { return "key " + k.id }

// GoString is the id.
func (k Key) GoString() string { return k.String() }

// Format prints the id, whatever the verb.
func (k Key) Format(s fmt.State, _ rune) { fmt.Fprint(s, k.String()) }

// formatLine is the key as it stands in a file.
func (k Key) formatLine() string {
	b := k.key()
	return keyMark + base64.StdEncoding.EncodeToString(b[:])
}

// parseKey reads what line wrote. Its error has nothing of the text.
func parseKey(line string) (Key, error) {
	text, ok := strings.CutPrefix(line, keyMark)
	if !ok {
		return Key{}, fmt.Errorf("does not begin with %s", keyMark)
	}

	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != keyBytes {
		return Key{}, fmt.Errorf("has no %d bytes in base64 behind %s", keyBytes, keyMark)
	}

	return keyOf([keyBytes]byte(b)), nil
}
