// Package version contains the version of the program. It is apart from package daemon, because the command line without nodes has a version, too.
package version

import "runtime/debug"

// version is set when a release is built: -ldflags "-X …/pkg/internal/version.version=v1.2.3".
var version = ""

// Get returns Carillon's version: that of the release, or of the module, or dev.
func Get() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}

	return "dev"
}
