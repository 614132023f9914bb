// Package certs is what Carillon needs of TLS: certificates and CAs from PEM
// files that take effect when the files are replaced, the configurations of both
// ends, and a small CA for those who have none.
//
// Files are looked at before each handshake, so a replaced one counts for the
// next connection; connections that are open stay as they are. A new pair counts
// when certificate and key fit each other: until then, and for good if they never
// do, the former one is used. The same holds for the CA. Whoever asks by Look is
// told.
//
// All ends speak TLS 1.3 and nothing older: they are Carillon's own, or etcd's.
// Sessions are not resumed: each connection is judged by the CA that is there.
package certs
