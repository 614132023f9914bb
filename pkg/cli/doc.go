// Package cli implements the carillon command: a tree of cobra commands that parse their arguments, call the
// client, and print the result. It makes no decisions about tasks. Packages task and schedule and the server
// report what is wrong with a task; the command line shows this with the field, the value, the rule, and what
// to do about it.
//
// All commands follow these rules. Data goes to stdout, and nothing else does. Errors go to stderr, with -o
// json as one JSON object each. The exit code tells a script the kind of failure (see "carillon help
// exit-codes"). Output is shortened only on a terminal. The program asks questions only if a user can answer
// them.
//
// Main is the only entry point. It reads no global state except the environment (through IO.Env) and the files
// that flags name, so tests run the real command tree within their own process.
//
// This package contains the root command, help and man pages. Each resource has a package below it, whose
// commands take a factory.Factory. Resources share packages with one purpose each: factory,
// failure, output, settings, selection, batch, view, watch and complete.
package cli
