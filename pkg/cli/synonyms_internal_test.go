package cli

import (
	"errors"
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
	taskCommand, _, _ := root.Find([]string{"task"})

	for _, c := range []struct {
		cmd        *cobra.Command
		word, want string
	}{
		{root, "status", "did you mean: carillon cluster status"},
		{root, "describe", "did you mean: carillon task get"},
		{root, "ls", "did you mean: carillon task list"},
		{taskCommand, "status", "did you mean: carillon task get"},
		{taskCommand, "creat", "did you mean: carillon task create"},
		{taskCommand, "unpause", "did you mean: carillon task resume"},
		{taskCommand, "undiff", "see carillon task --help"},
	} {
		var e *failure.Error
		if err := unknownCommand(c.cmd, c.word); !errors.As(err, &e) || e.Hint != c.want {
			t.Errorf("%s %s: %v, want the hint %q", c.cmd.CommandPath(), c.word, err, c.want)
		}
	}
}
