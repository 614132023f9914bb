package imports

import (
	"os/user"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/internal/importer"
)

// crontabCommand returns "carillon import crontab".
func crontabCommand(f *factory.Factory) *cobra.Command {
	i := newImportSession(f)
	var system bool
	var owner string
	cmd := &cobra.Command{
		Use:   "crontab FILE|DIR|-...",
		Short: "Import crontabs as tasks",
		Long: "Convert crontabs, as Vixie cron and compatible programs read them, to tasks, and apply them. The path determines\n" +
			"the format: /etc/crontab and /etc/cron.d have a user column, /var/spool/cron/crontabs/ann is the crontab of ann,\n" +
			"and any other file is yours, unless you pass --system or --user.\n\n" +
			"The tasks behave as under cron: they run as that user, on this host, in its time zone (or CRON_TZ), may overlap,\n" +
			"and do not catch up. Lines with the same command become one task with several schedules. Task names are derived\n" +
			"from the file and the command, so importing a file again changes nothing.\n\n" +
			"The command reports lines that it cannot import, such as @reboot, imports the rest, and exits with 8.",
		Example: `  crontab -l | carillon import crontab -
  carillon import crontab /etc/crontab /etc/cron.d --dry-run
  carillon import crontab /etc/cron.d/* --shadow       # ticks are recorded, nothing starts
  carillon import crontab /var/spool/cron/crontabs/ann --node web-1
  carillon task list -l imported=crontab,imported-from=ann`,
		Args: factory.Args(1, -1, "the crontab"),
	}
	i.bindFlags(cmd, "default: this host's", "default: this host's")
	cmd.Flags().BoolVar(&system, "system", false, "read files that have a user column")
	cmd.Flags().StringVar(&owner, "user", "", "read the files as the crontab of the user with this `NAME`")
	_ = cmd.RegisterFlagCompletionFunc("user", cobra.NoFileCompletions)
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		if system && owner != "" {
			return failure.Usage("--system and --user cannot be used together")
		}

		err := factory.RefuseEmpty(cmd, "user")
		if err == nil {
			err = i.fillDefaults(cmd, true)
		}

		if err != nil {
			return err
		}

		files, err := listFiles(paths, cronReads.MatchString)
		if err != nil {
			return err
		}

		err = i.eachFile(cmd.Context(), files, func(name, text string) {
			form, known := importer.FormOf(name)
			switch {
			case system:
				form = importer.Form{System: true}
			case owner != "":
				form = importer.Form{User: owner}
			case !known:
				form = importer.Form{User: currentUser()}
				i.Note("%s: read as the crontab of %s; if it has a user column, add --system", name, form.User)
			}

			i.addResult(importer.Crontab(name, text, form, i.Options))
		})

		if err != nil {
			return err
		}

		return i.printOrApply(cmd.Context())
	}

	return cmd
}

// cronReads matches the names of files that cron reads in a directory. They contain no dots, unlike the files
// that package upgrades leave behind.
var cronReads = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// currentUser returns the name of the current user, or "".
func currentUser() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}
