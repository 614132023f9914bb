// Package secret encrypts values under keys that only nodes hold, and reads the
// files with those keys.
//
// A Ring seals with its first key and opens with any. The values of a secret are
// sealed together, with AES-256-GCM and a random nonce; what is sealed is bound to
// namespace, name and generation, so that whoever can write to etcd but has no key
// can neither read a value, nor change one, nor have one secret stand for another.
// What such a writer can do is put back a former record, or remove one.
//
// What is sealed tells how long the values are together, up to a multiple of
// padding. That a key seals at most some 2^32 times is taken for granted: a secret
// is written by hand.
//
// A key file (KeyFile) holds a key in each line: "carillon-key-1", a colon, and 32
// bytes as base64. Only its owner may read it, who is root or the daemon's user.
// It is looked at before each use: what is in it now counts. No error, and nothing
// else here that is printed, has a value or a key in it.
package secret
