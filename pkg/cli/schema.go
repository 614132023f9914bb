package cli

import (
	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
)

// schemaCommand returns "carillon schema".
func schemaCommand(f *factory.Factory) *cobra.Command {
	return factory.LimitFormats(&cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of task files",
		Long: "Print the JSON Schema (draft 2020-12) of task files. Editors that know it complete fields and values,\n" +
			"explain them, and mark mistakes. With yaml-language-server a file names it in its first line:\n\n" +
			"  # yaml-language-server: $schema=carillon.schema.json",
		Example:           `  carillon schema > carillon.schema.json`,
		Args:              factory.Args(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			b, err := manifest.Schema()
			if err != nil {
				return err
			}
			return f.Print(string(b))
		},
	}, output.FormatTable, output.FormatJSON)
}
