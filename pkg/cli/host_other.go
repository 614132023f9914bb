//go:build !linux

package cli

import (
	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
)

// addHostCommands adds nothing, because nodes run only on Linux.
func addHostCommands(*factory.Factory, *cobra.Command) {}
