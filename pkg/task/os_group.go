package task

import "strings"

// AdminGroup is the OS group whose members administer the cluster through the unix socket of a node, without a token.
const AdminGroup = "carillon"

// rootGroups are the OS groups whose members can become root on a usual host, or can do what only root should: they
// read or write disks, memory or password hashes, may use sudo, or control a daemon that starts processes as root.
var rootGroups = map[string]bool{
	"root": true, AdminGroup: true,
	"disk": true, "kmem": true, "shadow": true, "staff": true,
	"sudo": true, "wheel": true, "admin": true,
	"docker": true, "lxd": true, "incus-admin": true, "libvirt": true,
}

// IsRootGroup reports whether the members of an OS group with this name are root in effect. The list of names is not
// complete: a host can give any group such rights. Case does not matter, because some user databases ignore it.
func IsRootGroup(name string) bool { return rootGroups[strings.ToLower(name)] }
