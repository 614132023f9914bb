// Package cli is the carillon command: a tree of cobra commands that parse what
// was typed, call the client and print. It decides nothing about tasks; what is
// wrong with one is said by package task, package schedule or the server, and
// shown here with the field, the value, the rule and what to do about it.
//
// Its habits: data goes to the standard output and nothing else does; errors go
// to the standard error, as one JSON object each with -o json; the exit code
// tells a script which kind of failure it was (see "carillon help exit-codes");
// nothing is cut short unless a terminal reads it; nothing is asked unless a
// person is there to answer.
//
// Main is the whole surface. It reads no global but the environment (through
// IO.Env) and the files that flags name, so that tests run the real tree in
// their own process.
//
// The package has the root command, help and man pages. Each noun has a package
// below it, whose commands take a factory.Factory; what nouns share are packages
// with one idea each: factory, failure, output, settings, selection, batch, view,
// watch and complete.
package cli
