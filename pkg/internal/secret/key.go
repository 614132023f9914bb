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
