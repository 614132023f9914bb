// Package datadir keeps what a daemon must remember in its data directory: the state
// of the node over restarts (state.json), and the key with which it signs (node.key).
//
// A daemon opens the directory with Open and holds its lock until Close, so that at
// most one daemon runs on a directory. All processes that used it before have ended:
// their leases can be revoked, and their attempts be adopted or reported as lost.
//
// Files are written next to their place, synced and renamed: after a crash each of them
// has either its former contents or the new ones. An error of a write leaves the state in
// memory and on disk unchanged where it decides what the node does (SetWanted,
// SetHistory). The package refuses a directory or a key that other users can write to.
package datadir
