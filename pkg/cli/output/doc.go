// Package output prints what commands found: lists and single things in the formats of -o,
// tables that fit a terminal, colours, times and durations in words, and texts without
// anything that a terminal would obey.
//
// A Printer holds the global flags about output. It writes to its two streams only: data to
// the standard output, everything else to the standard error. It knows what tasks' states
// look like, and nothing else of tasks, servers or commands. Nothing is cut short unless a
// terminal reads it.
package output
