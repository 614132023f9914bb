package daemon

import "runtime/debug"

// version is set when a release is built: -ldflags "-X …/pkg/daemon.version=v1.2.3".
var version = ""

// Version is Carillon's version: that of the release, or of the module, or dev.
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}

	return "dev"
}
