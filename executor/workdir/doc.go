// Package workdir keeps the directories of attempts: one for each, empty when the attempt begins, its user's own, and
// empty again when it has ended.
//
//	<root>/<instance>/<n>/            0700, of the attempt's user
//	                      status      the status file, which the attempt may write
//	                      scratch/    the directory in CARILLON_SCRATCH
//	                      tmp/ …      what stands in for /tmp and /var/tmp: see PrivateName
//
// A Pool has the directories of one daemon. Most attempts leave nothing, so empty directories are kept for the next
// attempt of the same user. A lock on <instance>, held while the daemon lives, tells its directories from those that a
// dead daemon has left, which RemoveAbandoned removes.
//
// What is guaranteed:
//
//   - Nothing of one attempt is in the directory of another.
//   - What is removed is removed as root, and never outside: by descriptors alone, without following links, without
//     entering other mounts, and only below directories that no other user could have put there.
//   - A disk that does not answer, or takes no more, costs attempts their directories, not their start.
//
// What is not: the size of a directory is not limited. What cannot be emptied, or not soon, is quarantined: it is
// logged, tried again every minute, and given to no other attempt.
package workdir
