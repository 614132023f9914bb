// Package certs provides what Carillon needs for TLS: certificates and CAs from PEM files that take effect when the
// files are replaced, the configurations of both ends, and a small CA for users who have none.
//
// Files are read before each handshake, so a replaced file takes effect with the next connection. Open connections
// are not affected. A new pair takes effect when certificate and key match. Until then, and permanently if they
// never match, the previous pair is used. The same applies to the CA. Look reports such problems.
//
// All ends use TLS 1.3 only, because they are Carillon's own, or etcd's. Sessions are not resumed, so that each
// connection is checked against the current CA.
package certs
