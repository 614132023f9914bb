// Package status reads what attempts report while they run: progress, results, and a checkpoint.
//
// An attempt appends lines to its status file, whose path is in its environment:
//
//	0.4 text         progress as a fraction of 1, or
//	40% text         in percent; the text is optional
//	name=value       a result
//	checkpoint text  a text that the next attempt receives
//
// A Monitor reads the files of all running attempts once a second, and once more when an attempt ends. It keeps the
// reports in memory only. The executor writes checkpoints, and the results at the end, to the attempt's record.
//
// Guaranteed: whatever an attempt does with its file, reading it takes bounded time, memory and disk space, and reveals
// nothing that the attempt's user could not have read. Only a regular file of that user with one link is read.
// Lines that are too many, too long or malformed are counted as bad lines.
//
// Not guaranteed: if a file is written faster than it is read, lines are skipped; the last lines count.
package status
