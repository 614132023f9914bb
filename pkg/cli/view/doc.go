// Package view formats runs, ticks, freezes and facts of nodes for all commands: tables and texts that several
// commands use. It changes nothing. The only thing it asks the server is whether something is frozen.
package view
