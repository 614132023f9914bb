//go:build !linux

package main

import (
	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli"
)

// nodeCommands returns nothing, because nodes run only on Linux.
func nodeCommands(*cli.IO) []*cobra.Command { return nil }
