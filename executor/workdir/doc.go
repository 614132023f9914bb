// Package workdir provides each attempt with a working directory that belongs to its user, is empty when the attempt
// begins, and is emptied when it has ended.
//
//	<root>/<instance>/<n>/            0700, of the attempt's user
//	                      status      the status file, which the attempt may write
//	                      scratch/    the directory in CARILLON_SCRATCH
//	                      tmp/ …      the directories that replace /tmp and /var/tmp; see PrivateName
//
// A Pool manages the directories of one daemon. Most attempts leave nothing, so empty directories are kept for the next
// attempt of the same user. The daemon holds a lock on <instance> while it lives. RemoveAbandoned removes directories
// without such a lock, which a dead daemon has left.
//
// Guarantees:
//
//   - No attempt finds files of another attempt in its directory.
//   - Cleaning, which may run as root, removes nothing outside these directories: it works on descriptors, does not
//     follow links or enter other mounts, and only handles directories that no other user could have created there.
//   - If the disk does not respond or is full, attempts run without a directory.
//
// Not guaranteed: the size of a directory is not limited. A directory that cannot be emptied in time is quarantined: it
// is logged, retried every minute, and not given to another attempt.
package workdir
