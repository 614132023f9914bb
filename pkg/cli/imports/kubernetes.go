package imports

import (
	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/apply"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/internal/importer"
)

func kubernetesCommand(f *factory.Factory) *cobra.Command {
	i := newImporting(f)
	cmd := &cobra.Command{
		Use:   "kubernetes FILE|DIR|-...",
		Short: "Make tasks of Kubernetes' CronJobs",
		Long: "Make tasks of Kubernetes' CronJobs (batch/v1, batch/v1beta1), in YAML or JSON, and apply them: schedule,\n" +
			"time zone, suspend, concurrency policy, deadlines, limits and retries. A container with a command runs as\n" +
			"a process of the node, without its image: what that leaves out is named. One without a command cannot be\n" +
			"taken; with --shadow it can, since a shadow starts nothing.\n\n" +
			"The namespace is the CronJob's, unless -n names one. What cannot be taken is told with its line; the\n" +
			"rest is imported, and the exit code is 8.",
		Example: `  kubectl get cronjobs -A -o yaml | carillon import kubernetes - --shadow
  carillon import kubernetes manifests/ --dry-run
  helm template . | carillon import kubernetes - --node worker-1
  carillon task list -A -l imported=kubernetes`,
		Args: factory.Args(1, -1, "the manifest"),
	}
	i.bind(cmd, "default: any", "default: UTC")
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		if err := i.settle(cmd, false); err != nil {
			return err
		}

		files, err := apply.TaskFiles(paths)
		if err != nil {
			return err
		}

		err = i.each(cmd.Context(), files, func(name, text string) { i.add(importer.Kubernetes(name, text, i.Options)) })
		if err != nil {
			return err
		}

		return i.finish(cmd.Context())
	}

	return cmd
}
