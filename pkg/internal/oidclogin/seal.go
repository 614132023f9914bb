package oidclogin

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/json"
	"errors"
)

// KeyBytes is the length of the key that seals logins that are under way.
const KeyBytes = 32

// maxSealed is the maximum length of a sealed text that is opened. Cookies are limited to 4096 bytes by browsers.
const maxSealed = 8 << 10

// What a sealed text is for. A text for one purpose cannot be used for another.
const (
	purposeWeb    = "web"
	purposeDevice = "device"
)

// sealer encrypts and authenticates what travels with a login that is under way.
type sealer struct{ aead cipher.AEAD }

func newSealer(key [KeyBytes]byte) *sealer {
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic("oidclogin: " + err.Error()) // cannot happen: 32 bytes are a valid key
	}

	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic("oidclogin: " + err.Error()) // cannot happen: AES has blocks of 16 bytes
	}

	return &sealer{aead}
}

// bindingFor returns the additional data that binds a text to its purpose.
func bindingFor(purpose string) []byte { return []byte("carillon login 1\x00" + purpose) }

// seal returns v as a text that only nodes with the key can read and make.
func (s *sealer) seal(purpose string, v any) string {
	plain, err := json.Marshal(v)
	if err != nil {
		panic("oidclogin: " + err.Error()) // cannot happen: only strings and times are sealed
	}

	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, plain, bindingFor(purpose)))
}

var errNotSealed = errors.New("the text was not sealed with this cluster's key, or was changed")

// open decodes into v what seal has returned for the same purpose.
func (s *sealer) open(purpose, text string, v any) error {
	sealed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(text) > maxSealed {
		return errNotSealed
	}

	plain, err := s.aead.Open(nil, nil, sealed, bindingFor(purpose))
	if err != nil || json.Unmarshal(plain, v) != nil {
		return errNotSealed
	}

	return nil
}
