// Package failure is the errors of the command line: each has an exit code that tells a
// script what kind of failure it was, a code and a field for -o json, and a hint for people.
//
// It makes errors and reads them; package factory prints them. Every exit code of the
// program is a constant here and is explained by "carillon help exit-codes".
package failure
