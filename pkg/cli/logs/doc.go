// Package logs implements "carillon logs". It prints the output of runs, also while they are active, of many
// runs at once, and across lost connections.
//
// A Merger has one RunOutput for each run, and never splits a line of one output by another output. The output
// of ended runs is printed in the order of the times of their lines. Followed output is held back for a moment,
// so that lines from several nodes appear in order.
package logs
