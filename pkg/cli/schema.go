package cli

import (
	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
)

func (a *app) schemaCommand() *cobra.Command {
	return only(&cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of task files, for editors",
		Long: "Print the JSON Schema (draft 2020-12) of task files. Editors that know it complete fields and values,\n" +
			"explain them, and mark mistakes. With yaml-language-server a file names it in its first line:\n\n" +
			"  # yaml-language-server: $schema=carillon.schema.json",
		Example:           `  carillon schema > carillon.schema.json`,
		Args:              args(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			b, err := manifest.Schema()
			if err != nil {
				return err
			}
			return a.Print(string(b))
		},
	}, output.FormatTable, output.FormatJSON)
}
