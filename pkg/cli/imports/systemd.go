package imports

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/internal/importer"
)

// systemdCommand returns "carillon import systemd".
func systemdCommand(f *factory.Factory) *cobra.Command {
	i := newImportSession(f)
	cmd := &cobra.Command{
		Use:   "systemd UNIT-FILE|DIR...",
		Short: "Import systemd timers as tasks",
		Long: "Convert systemd timers and the services that they start to tasks, and apply them. The service of a timer is\n" +
			"looked up in the files that you pass and next to the timer. Calendar events become cron expressions, if there\n" +
			"is an equivalent; OnUnitActiveSec becomes @every. Persistent, RandomizedDelaySec, commands, user, environment\n" +
			"and limits are converted. The command reports settings without an equivalent. Drop-ins are not read.\n\n" +
			"The command reports what it cannot import with its line, imports the rest, and exits with 8.",
		Example: `  carillon import systemd /usr/lib/systemd/system/fstrim.timer --dry-run
  carillon import systemd /etc/systemd/system --shadow
  carillon import systemd backup.timer backup.service --node db-1
  carillon task list -l imported=systemd`,
		Args: factory.Args(1, -1, "the timer"),
	}
	i.bindFlags(cmd, "default: this host's", "default: this host's")
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		if err := i.fillDefaults(cmd, true); err != nil {
			return err
		}

		files, err := listFiles(paths, func(name string) bool {
			return strings.HasSuffix(name, ".timer") || strings.HasSuffix(name, ".service")
		})

		if err != nil {
			return err
		}

		var units []importer.Unit
		err = i.eachFile(cmd.Context(), addServices(files), func(name, text string) { units = append(units, importer.ReadUnit(name, text)) })
		if err != nil {
			return err
		}

		i.addResult(importer.Systemd(units, i.Options))

		return i.printOrApply(cmd.Context())
	}

	return cmd
}

// addServices adds the services in the directories of timers.
func addServices(files []string) []string {
	all := slices.Clone(files)
	for _, f := range files {
		if !strings.HasSuffix(f, ".timer") {
			continue
		}

		beside, err := filepath.Glob(filepath.Join(filepath.Dir(f), "*.service"))
		if err != nil {
			continue
		}

		for _, s := range beside {
			if info, err := os.Stat(s); err == nil && info.Mode().IsRegular() && !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
	}

	return all
}
