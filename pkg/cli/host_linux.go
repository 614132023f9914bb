package cli

import (
	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/backup"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/sendmail"
)

// addHostCommands adds commands for hosts of nodes. To read a backup, backup needs an etcd.
func addHostCommands(f *factory.Factory, root *cobra.Command) {
	send := sendmail.Command(f)
	factory.WithoutConfig(send)
	factory.AddGroup(root, groupNouns, backup.Command(f))
	factory.AddGroup(root, groupOther, send)
}
