package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
)

// versionInfo contains the versions of this program and of the server.
type versionInfo struct {
	Version string          `json:"version"`
	Go      string          `json:"go"`
	Server  *client.Version `json:"server"`
}

// versionCommand returns "carillon version".
func versionCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program and of the server",
		Example: "  carillon version\n  carillon version -o json",
		Args:    factory.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versionInfo{Version: programVersion(f), Go: runtime.Version()}
			c, err := f.ConnectFor(min(f.LookupTimeout, f.Timeout))
			var server client.Version
			if err == nil {
				server, err = c.Version(cmd.Context())
			}

			if err == nil {
				v.Server = &server
			}

			// An unreachable server is not a failure, because the version of the program is known.
			return output.EmitOne(&f.Printer, v, v.Version, func(d *output.Details) {
				d.Field("Client", "%s (%s)", v.Version, v.Go)

				if err != nil {
					f.Note("server: %s", output.OneLine(err.Error()))
					return
				}

				d.Field("Server", "%s (%s) on node %s, cluster %s", server.Version, server.Go, server.Node, server.Cluster)
			})
		},
	}
}

// programVersion returns the version of this program.
func programVersion(f *factory.Factory) string {
	if f.Version != "" {
		return f.Version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}

	return "(devel)"
}
