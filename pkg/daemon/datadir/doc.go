// Package datadir stores in the data directory what a daemon must keep over restarts: the state
// of the node (state.json), and the key with which it signs requests (node.key).
//
// A daemon opens the directory with Open and holds its lock until Close, so at
// most one daemon runs on a directory. The lock proves that all processes that used it before have ended, so
// their leases can be revoked and their instances be reported as cleared. It proves nothing about the processes of
// another copy of the directory; [State.Begin] detects that the directory may be a copy.
//
// Files are written under another name, synced and renamed. After a crash each of them
// has either its former contents or the new ones. If SetWanted or SetHistory fails, the state in
// memory and on disk is unchanged. The package rejects a directory or a key to which other users can write.
package datadir
