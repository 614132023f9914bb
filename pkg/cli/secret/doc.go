// Package secret is "carillon secret": names and versions of secrets, and the keys that encrypt
// them. A value is read from a file, the standard input or a prompt, and never printed.
package secret
