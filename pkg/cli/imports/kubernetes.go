package imports

import (
	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/apply"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/internal/importer"
)

// kubernetesCommand returns "carillon import kubernetes".
func kubernetesCommand(f *factory.Factory) *cobra.Command {
	i := newImportSession(f)
	cmd := &cobra.Command{
		Use:   "kubernetes FILE|DIR|-...",
		Short: "Import Kubernetes CronJobs as tasks",
		Long: "Convert Kubernetes CronJobs (batch/v1 and batch/v1beta1, YAML or JSON) to tasks, and apply them: schedule,\n" +
			"time zone, suspend, concurrency policy, deadlines, limits and retries. The command of a container runs as a\n" +
			"process of the node, without its image; the command reports what is lost. A container without a command cannot\n" +
			"be imported, except with --shadow, because shadow tasks start no process.\n\n" +
			"The namespace is that of the CronJob, unless you pass -n. The command reports what it cannot import with its\n" +
			"line, imports the rest, and exits with 8.",
		Example: `  kubectl get cronjobs -A -o yaml | carillon import kubernetes - --shadow
  carillon import kubernetes manifests/ --dry-run
  helm template . | carillon import kubernetes - --node worker-1
  carillon task list -A -l imported=kubernetes`,
		Args: factory.Args(1, -1, "the manifest"),
	}
	i.bindFlags(cmd, "default: any", "default: UTC")
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		if err := i.fillDefaults(cmd, false); err != nil {
			return err
		}

		files, err := apply.TaskFiles(paths)
		if err != nil {
			return err
		}

		err = i.eachFile(cmd.Context(), files, func(name, text string) { i.addResult(importer.Kubernetes(name, text, i.Options)) })
		if err != nil {
			return err
		}

		return i.printOrApply(cmd.Context())
	}

	return cmd
}
