package cli

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/failure"
)

// Each synonym names a command that exists, and is not a command itself.
func TestSynonyms_NameCommands(t *testing.T) {
	root := Tree(&cobra.Command{Use: "agent", Run: func(*cobra.Command, []string) {}})
	find := func(path string) (*cobra.Command, []string) {
		c, rest, err := root.Find(strings.Fields(path)[1:])
		if err != nil {
			return nil, nil
		}
		return c, rest
	}

	for path, words := range synonyms {
		if c, _ := find(path); c == nil || c.CommandPath() != path {
			t.Errorf("%s is not a command", path)
		}

		for word, other := range words {
			if c, rest := find(other); c == nil || len(rest) > 0 || c.CommandPath() != other {
				t.Errorf("%s %s: %s is not a command", path, word, other)
			}
			if c, _ := find(path + " " + word); c != nil && c.CommandPath() != path {
				t.Errorf("%s %s is a command", path, word)
			}
		}
	}
}

// What people type who know other tools leads to the command, and never to its opposite.
func TestUnknownCommand_SuggestsWhatWasMeant(t *testing.T) {
	root := Tree()

	for line, want := range map[string]string{
		"status": "carillon cluster status", "describe": "carillon task get", "ls": "carillon task list", "job": "carillon task", "doctor": "carillon audit",
		"trigger": "carillon task trigger", "history": "carillon task history", "drain": "carillon node drain", "rollout": "", "context": "carillon config list",
		"undelete": "carillon task undelete", "enable": "carillon task resume", "crontab": "carillon import crontab",
		"task status": "carillon task get", "task creat": "carillon task create", "task unpause": "carillon task resume", "task enable": "carillon task resume",
		"task disable": "carillon task pause", "task run": "carillon task trigger", "task rename": "carillon task copy", "task clone": "carillon task copy",
		"task restore": "carillon task undelete", "task undelet": "carillon task undelete", "task new": "carillon task create", "task import": "carillon import",
		"task restart": "carillon run rerun", "task validate": "carillon schedule lint", "task undiff": "", "task wait": "carillon task get",
		"run nightly-backup": "carillon task trigger nightly-backup", "run kill": "carillon run cancel", "run log": "carillon run logs", "run Backup!": "", "run delete": "", "run rm": "", "run watch": "carillon run get",
		"node uncordon": "carillon node resume", "node undrain": "carillon node resume", "node status": "carillon node list", "node disable": "carillon node cordon",
		"secret put": "carillon secret set", "secret create": "carillon secret set", "secret update": "carillon secret set", "secret show": "carillon secret get", "secret rm": "carillon secret delete", "secret edit": "carillon secret set",
		"namespace set": "carillon namespace update", "namespace add": "carillon namespace create", "namespace use": "", "token new": "carillon token create",
		"config get": "carillon config show", "config view": "carillon config show", "config use-context": "carillon config use", "config ls": "carillon config list",
		"schedule list": "carillon next", "schedule test": "carillon schedule next", "schedule validate": "carillon schedule lint", "schedule describe": "carillon schedule explain",
		"cluster info": "carillon cluster status", "cluster unfreez": "carillon cluster unfreeze", "access add": "carillon access grant", "access rm": "carillon access revoke", "alert mute": "carillon alert silence",
	} {
		words := strings.Fields(line)
		cmd, _, _ := root.Find(words[:len(words)-1])
		hint := "did you mean: " + want
		if want == "" {
			hint = "see " + cmd.CommandPath() + " --help"
		}

		var e *failure.Error
		if err := unknownCommand(cmd, words[len(words)-1]); !errors.As(err, &e) || e.Hint != hint {
			t.Errorf("%s: %v, want the hint %q", line, e, hint)
		}
	}
}

// The same for flags.
func TestUnknownFlag_SuggestsWhatWasMeant(t *testing.T) {
	root := Tree()

	for line, want := range map[string]string{
		"task create --cron": "did you mean: --schedule", "task create --tz": "did you mean: --timezone", "task create --every": "did you mean: --schedule",
		"task create --name": "write the name without a flag: carillon task create TASK", "task create --node": "did you mean: --selector 'node = NAME'", "task create --cwd": "did you mean: --dir",
		"task create --command": "did you mean: --set action.process.command=…", "task create --env-file": "see carillon task create --help", "task create --image": "see carillon task create --help",
		"task trigger --timeout": "did you mean: --wait=DURATION", "task trigger --follow": "did you mean: --wait", "task list --timeout": "did you mean: --request-timeout", "task list --name": "write the name without a flag: ", "cluster status --name": "see carillon cluster status --help",
		"node drain --timeout": "did you mean: --within", "task pause --for": "did you mean: --until", "run list --for": "did you mean: --since", "alert silence --for": "did you mean: --until", "task delete --force": "did you mean: --yes", "logs --lines": "did you mean: --tail", "events --tail": "see carillon events --help",
		"task list --selectr": "did you mean: --selector", "task list --all": "did you mean: --all-namespaces", "apply --file": "did you mean: --filename",
	} {
		path, flag, _ := strings.Cut(line, " --")
		cmd, _, _ := root.Find(strings.Fields(path))

		var e *failure.Error
		if err := cmd.FlagErrorFunc()(cmd, errors.New("unknown flag: --"+flag)); !errors.As(err, &e) || !strings.HasPrefix(e.Hint, want) {
			t.Errorf("%s: %v, want the hint %q", line, e.Hint, want)
		}
	}
}

// The client for other systems says which of its commands exist only on Linux.
func TestOnHost_CommandsExistOnLinux(t *testing.T) {
	root := Tree(&cobra.Command{Use: "agent"}, &cobra.Command{Use: "dev"})
	for _, path := range onHost {
		words := strings.Fields(path)[1:]
		cmd, rest, err := root.Find(words)
		if exists := err == nil && len(rest) == 0 && cmd.CommandPath() == path; exists != (runtime.GOOS == "linux" || words[0] == "agent" || words[0] == "dev") {
			t.Errorf("%s: exists: %v", path, exists)
		}

		parent, _, _ := root.Find(words[:len(words)-1])
		if err := unknownCommand(parent, words[len(words)-1]); err.Error() != path+" runs only on Linux" {
			t.Errorf("%s: %v", path, err)
		}
	}
}
