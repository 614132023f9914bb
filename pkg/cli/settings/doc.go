// Package settings determines how a command reaches the server: its URL, a token, TLS files and a namespace. A
// flag takes precedence over the environment, which takes precedence over the user's configuration, a file of
// contexts. The package also changes that file.
//
// The configuration is read once. The credentials of a context are used only for that context's own server. The
// file is replaced atomically, and only its owner can read it. The package makes no connections and prints
// nothing.
package settings
