// Package secret implements "carillon secret": secrets, and the keys that encrypt them. Values are read from
// files, standard input or a prompt, and are never printed.
package secret
