package kv

// VersionFault returns the reason why Carillon does not accept an etcd of this version (see CheckVersion), or nil if
// it accepts it. The version has to be checked not only at the start: while Carillon runs, etcd may be replaced by an
// older version, or a member with another version may be added.
func VersionFault(version string) error { return checkVersion(version) }
