// Package backup reads and writes backups of a cluster. A backup is a snapshot of etcd, compressed with zstd, and a manifest that
// describes it. It has one of three forms:
//
//   - In a directory, ID.db.zst and its manifest ID.json. The ID is the time of the backup in UTC. The manifest is written last, so a
//     backup that was not stored completely has no manifest, and List reports it as incomplete.
//   - A single file or stream, which begins with the manifest in a skippable frame of zstd. `zstd -d` unpacks such a file, too.
//   - A snapshot that etcdctl has made. It has no manifest, and its only proof is the SHA-256 that etcd appends.
//
// Guarantees:
//
//   - Unpack returns no error only if the compressed file and the snapshot have the sizes and the SHA-256 of the manifest.
//   - A manifest ends with a checksum of itself, so a damaged manifest is not mistaken for another one.
//   - A write goes to a temporary file, which is synced, read back and then renamed.
//
// A backup contains everything below the prefix, also hashes of tokens and encrypted secrets, so its files have the mode 0600. It does
// not contain the keys of secrets, certificates, or files of hosts.
package backup
