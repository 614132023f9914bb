// Package spool stores the output of attempts, in one file for each attempt, and reads it back.
//
//	<dir>/spool/<namespace>/<task>/<run>.<attempt>.log      the output, as it was printed
//	                                               .log.zst the same, compressed after the attempt's end
//	                                               .times   when its parts arrived, if that is not in the file's inode
//	                                               .keep    the output expires at this file's modification time
//	                                               .raw     the output must not be compressed
//	                                               .http    the output is the response of an HTTP action
//	                                               .mail    a mail with the output was sent, or was about to be
//	                                 <run>.<attempt>.former-<time>.log …  of an attempt that a restore of etcd has lost
//
// An attempt writes to Pipes, from which an Output copies to the file. Readers may open an output at any time, also
// while it is written, and Watch notifies them when there is more. Run compresses and removes outputs of attempts that
// have ended.
//
// Guarantees:
//
//   - An attempt is never blocked by a full disk, a limit or a slow reader. Output that is not stored is still read and
//     counted, and its end is kept in memory for the attempt's record.
//   - The first bytes of each output are stored, up to a limit, without holes: after the first failure nothing more
//     is written. If the limit was reached, a line at the end of the file says so.
//   - A reader finds an output either as it was printed or compressed, never a part of it. A crash at any moment leaves
//     one of them or both, and at most a temporary file that the next compression overwrites.
//   - MarkMailed succeeds at most once for an attempt while its mark is kept, also after a crash of the host. The mark is
//     removed with the output or, without output, when it is too old.
//   - The output of an attempt that has not ended is never removed. Outputs that have ended are removed when they are
//     too old, and the oldest of them when they use too much disk space. Responses of HTTP actions use at most a quarter
//     of that space, so that they do not displace the output of processes.
//
// Not guaranteed: outputs are not synced to disk while they are written, so a crash of the host may lose their
// end. If the index of times cannot be written, the output has no times.
//
// The package uses no etcd key. Its memory is bounded: a buffer for each pipe while there is something to read, and a
// few KiB for each running attempt.
package spool
