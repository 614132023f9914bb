package kv

// VersionFault says why an etcd of this version is refused (see CheckVersion); nil if it will do. An etcd may be replaced
// by an older one, or a member added, while Carillon runs.
func VersionFault(version string) error { return checkVersion(version) }
