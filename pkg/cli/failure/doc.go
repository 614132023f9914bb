// Package failure defines the errors of the command line. Each has an exit code that tells scripts the kind of
// failure, a code and a field for -o json, and a hint for people.
//
// It creates and inspects errors; package factory prints them. Every exit code of the program is a constant
// here and is described by "carillon help exit-codes".
package failure
