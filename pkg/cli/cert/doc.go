// Package cert is "carillon cert": a CA, certificates of nodes and users, and what is in a
// certificate. It works with files only and asks no server.
package cert
