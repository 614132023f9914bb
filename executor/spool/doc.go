// Package spool keeps what attempts print, in one file each, and reads it back.
//
//	<dir>/spool/<namespace>/<task>/<run>.<attempt>.log      the output, as it was printed
//	                                               .log.zst the same, compressed after the attempt's end
//	                                               .times   when its parts came, if that is not in the file's inode
//	                                               .keep    its task wants it removed at this file's modification time
//	                                               .raw     it is not to be compressed
//
// An attempt writes to Pipes, which an Output empties into the file. Readers open an output at any time, also while it
// is written, and Watch tells them when there is more. Run compresses and removes what has ended.
//
// What is guaranteed:
//
//   - A writer is never blocked by a disk that is full, by a limit or by a slow reader: what is not kept is read all
//     the same, counted, and its end kept in memory for the attempt's record.
//   - Of each attempt the first bytes are kept, up to a limit, and what is kept has no holes: after the first failure
//     nothing more is written. A line at the end of the file says so if the limit was reached.
//   - A reader finds an output either as it was printed or compressed, never half of one. A crash at any moment leaves
//     the one or the other, or both, and at most a temporary file that the next compression overwrites.
//   - The output of an attempt that has not ended is never removed. Outputs that have ended are removed when they are
//     too old, and the oldest of them when they take too much disk.
//
// What is not: outputs are not synced to disk while they are written, so a crash of the host may lose the end of
// them. The index of times is a help for readers: when it cannot be written, the output has no times.
//
// It touches no etcd key. Memory is bounded: a buffer for each pipe while there is something to read, and some KiB for
// each attempt that runs.
package spool
