// Package task defines Carillon's domain types: tasks, entries, runs and their states, policies, validation and
// errors.
//
// It imports only the standard library, performs no I/O, and reads no clock: callers pass the time.
package task
