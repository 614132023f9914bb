//go:build !linux

package secret

import (
	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
)

// hostCommands returns nothing, because nodes run only on Linux.
func hostCommands(*factory.Factory) []*cobra.Command { return nil }
