// Package audit checks a live cluster from outside: it reads what etcd stores, and never relies on what a daemon
// reports.
//
//	live cluster ──▶ Auditor ──▶ task.Audit: findings ──▶ Repair
//
// A finding is not a transient state. A fault in the first read is a finding only if a second read, a few
// seconds later, finds the same records at the same revisions. An audit holds at most a page of records at once,
// and only reads. Repair deletes records through store, in transactions that compare everything that was read, so a
// repair that comes too late has no effect.
//
// An audit consists of judges that share a reader and a snapshot. The reader reads all records at one revision, in
// stages. Each judge is responsible for the records of one group. It stores in the snapshot what the judges of
// later stages compare with.
//
// An audit cannot see how records came about, nor what happened between its two reads. Package check judges whole
// histories, in tests.
//
// The package reads all keys of the cluster's prefix. It deletes only keys of findings that offer a repair.
package audit
