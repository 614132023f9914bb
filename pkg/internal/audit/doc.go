// Package audit checks a live cluster from outside: by what etcd holds, and never by
// what a daemon says.
//
//	live cluster ──▶ Auditor ──▶ task.Audit: findings ──▶ Repair
//
// It guarantees that a finding is not a state that merely passes: what is wrong in the
// first read is a finding only if a second read, a few seconds later, sees the same
// records at the same revisions. It holds at most a page of records at once, and only
// reads. What Repair deletes goes through store, in transactions that compare everything
// that was read: a repair that comes too late does nothing.
//
// An audit is a few judges over one reader and one snapshot. The reader reads all records
// at one revision, in stages; each judge is responsible for the records of one group,
// and what it reads into the snapshot the judges of later stages compare with.
//
// It cannot see how records came about, nor what happened between the two reads. Package
// check judges whole histories, in tests.
//
// It reads all keys of the cluster's prefix, and deletes those of the findings that say so.
package audit
