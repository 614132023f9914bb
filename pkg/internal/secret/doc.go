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
