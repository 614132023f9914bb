package ui

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"
)

// KeyBytes is the length of the key that Config.Key returns.
const KeyBytes = 32

const (
	// readKeyWithin limits how long a request waits for the key.
	readKeyWithin = 2 * time.Second
	// maxCookie is the maximum length of a cookie that is opened.
	maxCookie = 1 << 10
	// cookiePurpose separates the key of cookies from other uses of the cluster's key, and cookies of another format.
	cookiePurpose = "carillon session cookie 1"
)

// cookieSealer encrypts and authenticates the cookies of sessions. A cookie has the secret of the session and the time at which
// a person last used it. So each node with the same key knows whether the session is idle, and nobody else can change the
// time, or take the secret out and use it elsewhere.
type cookieSealer struct {
	readKey func(ctx context.Context) ([KeyBytes]byte, error)
	reading chan struct{} // has one value while somebody reads the key: a mutex would not end with a context
	aead    atomic.Pointer[cipher.AEAD]
}

func newCookieSealer(readKey func(ctx context.Context) ([KeyBytes]byte, error)) *cookieSealer {
	return &cookieSealer{readKey: readKey, reading: make(chan struct{}, 1)}
}

// prepare reads the key, until that has succeeded once.
func (c *cookieSealer) prepare(ctx context.Context) error {
	if c.aead.Load() != nil {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, readKeyWithin)
	defer cancel()
	select {
	case c.reading <- struct{}{}:
		defer func() { <-c.reading }()
	case <-ctx.Done():
		return ctx.Err()
	}

	if c.aead.Load() != nil {
		return nil
	}

	key, err := c.readKey(ctx)
	if err != nil {
		return err
	}

	aead, err := cookieCipher(key)
	if err != nil {
		return err
	}
	c.aead.Store(&aead)

	return nil
}

// cookieCipher returns the cipher of cookies for a cluster's key.
func cookieCipher(key [KeyBytes]byte) (cipher.AEAD, error) {
	derived, err := hkdf.Key(sha256.New, key[:], nil, cookiePurpose, KeyBytes)
	if err != nil {
		return nil, fmt.Errorf("derive the key of cookies: %w", err)
	}

	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, fmt.Errorf("the key of cookies: %w", err)
	}

	return cipher.NewGCMWithRandomNonce(block)
}

// seal returns the cookie of a session that a person used at a time. prepare must have succeeded.
func (c *cookieSealer) seal(secret string, used time.Time) string {
	plain := binary.BigEndian.AppendUint64(nil, uint64(used.UnixMilli()))
	plain = append(plain, secret...)

	return base64.RawURLEncoding.EncodeToString((*c.aead.Load()).Seal(nil, nil, plain, nil))
}

// open returns what seal was called with. It reports false if the cookie was not sealed with this cluster's key.
func (c *cookieSealer) open(cookie string) (secret string, used time.Time, ok bool) {
	aead := c.aead.Load()
	if aead == nil || len(cookie) > maxCookie {
		return "", time.Time{}, false
	}

	sealed, err := base64.RawURLEncoding.DecodeString(cookie)
	if err != nil {
		return "", time.Time{}, false
	}

	plain, err := (*aead).Open(nil, nil, sealed, nil)
	if err != nil || len(plain) < 8 {
		return "", time.Time{}, false
	}

	return string(plain[8:]), time.UnixMilli(int64(binary.BigEndian.Uint64(plain))), true
}
