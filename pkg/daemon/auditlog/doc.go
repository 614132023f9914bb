// Package auditlog is a node's part in keeping the audit records of the cluster. [Late] keeps the records that a full
// etcd could not store beside their changes, until etcd accepts them. [Sink] copies all records of the cluster to a file
// or to syslog. [Sweeper], which the leader runs, removes old records from etcd, and tokens that expired long ago.
//
// Guaranteed: [Late.Keep] returns when its record is on disk. A sink neither repeats nor omits records over restarts of
// the node. Not guaranteed: after a crash or a failed write a sink may repeat some records, and it omits those that were
// removed from etcd before it read them. If the disk refuses a late record, or too many of them wait, only the log has
// it.
//
// The package reads and deletes keys below audit/ and access/tokens/. In the data directory it has one file for late records, and one
// for the position of each sink.
package auditlog
