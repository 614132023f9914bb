// Package task holds the words of Carillon: tasks, the entries that firing
// needs of them, runs and their states, policies, validation and errors.
//
// It is the ground floor. It imports the standard library only, does no I/O,
// and knows no clock: whoever calls passes the time in.
package task
