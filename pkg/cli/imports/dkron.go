package imports

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/internal/importer"
)

// dkronCommand returns "carillon import dkron".
func dkronCommand(f *factory.Factory) *cobra.Command {
	i := newImportSession(f)
	cmd := &cobra.Command{
		Use:   "dkron FILE|DIR|-...",
		Short: "Import Dkron jobs as tasks",
		Long: "Convert Dkron jobs (JSON, as GET /v1/jobs returns them and backups contain them) to tasks, and apply them: jobs\n" +
			"with the executors shell and http, their schedule, time zone, state, concurrency, retries, tags and metadata.\n\n" +
			"As in Dkron, a job runs on all nodes that have its tags, or on the number that a tag names. A node needs the tags\n" +
			"as labels. With --any-node or --node, each run is on one node.\n\n" +
			"The command reports jobs that it cannot import with their line, such as those that run after another job, imports\n" +
			"the rest, and exits with 8.",
		Example: `  curl -s http://dkron:8080/v1/jobs | carillon import dkron - --dry-run
  carillon import dkron jobs.json --shadow       # ticks are recorded, nothing starts
  carillon import dkron jobs.json --any-node --timezone Europe/Berlin
  carillon task list -l imported=dkron`,
		Args: factory.Args(1, -1, "the export"),
	}
	i.bindFlags(cmd, "default: those with the job's tags", "default: UTC")
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		if err := i.fillDefaults(cmd, false); err != nil {
			return err
		}
		i.AnyNode = i.anyNode

		files, err := listFiles(paths, func(name string) bool { return strings.HasSuffix(name, ".json") })
		if err != nil {
			return err
		}

		err = i.eachFile(cmd.Context(), files, func(name, text string) { i.addResult(importer.Dkron(name, text, i.Options)) })
		if err != nil {
			return err
		}

		return i.printOrApply(cmd.Context())
	}

	return cmd
}
