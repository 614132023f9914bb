// Package status reads what attempts report of themselves while they run: progress, results, a checkpoint.
//
// An attempt appends lines to its status file, whose path is in its environment:
//
//	0.4 text         progress: a part of 1, or
//	40% text         percent; the text may be left out
//	name=value       a result
//	checkpoint text  what the next attempt is given
//
// A Monitor reads the files of all attempts that run here, once a second and once more when an attempt ends. All is in
// memory only: the executor writes checkpoints, and what is left at the end, into the attempt's record.
//
// What is guaranteed: whatever an attempt does with its file, it costs a bounded time, memory and disk, and shows
// nothing that the attempt's user could not have read. Only a plain file of that user, with no other name, is read. Of
// what is too much, too long or not understood there is a count of bad lines.
//
// What is not: a file that is written faster than it is read loses what is in between; the last lines count.
package status
