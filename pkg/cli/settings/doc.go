// Package settings finds what a command needs to reach a server: its URL, a token, files of
// TLS and a namespace. A flag beats the environment, which beats the user's configuration,
// a file of contexts that this package also changes.
//
// The configuration is read once. What a context has to let its user in is chosen for the
// context's own server only. The file is written whole or not at all, and only its owner can
// read it. The package makes no connection and prints nothing.
package settings
