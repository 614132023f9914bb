// Package audit checks a live cluster from outside: what etcd holds, and never a daemon's word.
//
//	live cluster ──▶ Auditor ──▶ task.Audit: findings ──▶ Repair
//
// It guarantees that a finding is no state that merely passes: what is wrong at the first look is a finding
// only if a second look, a few seconds later, sees the same records at the same revisions. It reads at most a
// page of records at once, and only reads. What Repair deletes goes through store, in transactions that
// compare all that was read: a repair that comes late does nothing.
//
// It cannot see how records came about, nor what happened between the two looks. Package check judges whole
// histories, in tests.
//
// It reads all keys of the cluster's prefix, and writes those of the findings that say so.
package audit
