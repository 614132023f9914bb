package oidcprovider

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"sync"
)

// keys are the keys that sign ID tokens.
type keys struct {
	id  string
	rsa *rsa.PrivateKey
	ec  *ecdsa.PrivateKey
}

// sharedKeys are the first keys of all providers of a test binary: generating RSA keys is slow.
var sharedKeys = sync.OnceValue(newKeys)

func newKeys() *keys {
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic("oidcprovider: " + err.Error())
	}

	e, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic("oidcprovider: " + err.Error())
	}

	return &keys{id: rand.Text(), rsa: r, ec: e}
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// publicKeySet returns the keys as a JSON Web Key Set lists them.
func (k *keys) publicKeySet() []map[string]any {
	point, err := k.ec.PublicKey.Bytes() // 4, x, y
	if err != nil {
		panic("oidcprovider: " + err.Error())
	}

	return []map[string]any{
		{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": k.id + "-rsa", "n": encode(k.rsa.N.Bytes()), "e": encode(big.NewInt(int64(k.rsa.E)).Bytes())},
		{"kty": "EC", "use": "sig", "alg": "ES256", "kid": k.id + "-ec", "crv": "P-256", "x": encode(point[1:33]), "y": encode(point[33:])},
	}
}

// sign returns claims as a JSON Web Token. secret is the key of HS256.
func (k *keys) sign(algorithm, secret string, claims map[string]any) string {
	header := map[string]any{"alg": algorithm, "typ": "JWT"}
	switch algorithm {
	case "RS256":
		header["kid"] = k.id + "-rsa"
	case "ES256":
		header["kid"] = k.id + "-ec"
	}

	h, err1 := json.Marshal(header)
	c, err2 := json.Marshal(claims)
	if err1 != nil || err2 != nil {
		panic("oidcprovider: the claims cannot be encoded")
	}

	text := encode(h) + "." + encode(c)
	sum := sha256.Sum256([]byte(text))

	var signature []byte
	switch algorithm {
	case "RS256":
		var err error
		if signature, err = rsa.SignPKCS1v15(rand.Reader, k.rsa, crypto.SHA256, sum[:]); err != nil {
			panic("oidcprovider: " + err.Error())
		}
	case "ES256":
		r, s, err := ecdsa.Sign(rand.Reader, k.ec, sum[:])
		if err != nil {
			panic("oidcprovider: " + err.Error())
		}
		signature = make([]byte, 64)
		r.FillBytes(signature[:32])
		s.FillBytes(signature[32:])
	case "HS256":
		m := hmac.New(sha256.New, []byte(secret))
		m.Write([]byte(text))
		signature = m.Sum(nil)
	case "none":
	default:
		panic("oidcprovider: unknown algorithm " + algorithm)
	}

	return text + "." + encode(signature)
}
