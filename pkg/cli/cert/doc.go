// Package cert implements "carillon cert". It creates a CA and certificates of nodes and users, and shows the
// contents of certificates. It works only with files and needs no server.
package cert
