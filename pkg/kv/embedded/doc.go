// Package embedded runs an etcd server inside the process: the only member of its cluster, or one of several.
//
// The package guarantees:
//
//   - A data directory is used by one process at a time, and only this user can read it.
//   - [Start] changes no data of another cluster or of another member, and announces no member with the wrong data.
//   - Other members and clients reach the server only at the addresses of [Config]; members authenticate each other if
//     [Peers] has certificates.
//   - After [Server.Close], nothing of the server is left running.
//
// The package does not guarantee that the server runs until Close. etcd ends the process if it cannot write to its disk.
// For all other reasons to stop, [Server.Done] is closed.
//
// The package has no keys of its own.
package embedded
