// Package logs is "carillon logs": the output of runs, also while they write it, of many runs at
// once and over lost connections.
//
// A Merger has one RunOutput for each run and never tears a line. Runs that are over are printed
// in the order of their lines' times; output that is followed waits for a moment, so that lines
// of several nodes come out in order, and no longer.
package logs
