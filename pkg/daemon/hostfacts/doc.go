// Package hostfacts measures what a node tells of its host: processors, load, memory
// and disk, and which of the node's own limits are passed.
//
// Where a control group leaves less than the machine has, that counts. What cannot be
// measured is not known, and never an error: a limit on it stays as it was. A file
// system that hangs holds up one call, and nobody waits long for it.
package hostfacts
