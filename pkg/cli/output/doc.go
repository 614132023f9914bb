// Package output prints the results of commands: lists and single objects in the formats of -o, tables that fit
// a terminal, colors, times and durations, and texts without control characters.
//
// A Printer holds the global flags about output. It writes only to its two streams: data to stdout, everything
// else to stderr. The package defines the appearance of run states, and otherwise does not depend on tasks,
// servers or commands. Output is shortened only on a terminal.
package output
