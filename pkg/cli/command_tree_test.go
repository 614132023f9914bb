//go:build linux

package cli_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli"
	"github.com/carillonhq/carillon/pkg/daemon"
)

// scripts are the directories whose scripts run commands as users type them: against an API, against a node,
// and as the program itself.
var scripts = []string{"testdata/script/*.txtar", "../daemon/testdata/*/*.txtar", "../../cmd/carillon/testdata/*/*.txtar"}

// use records how scripts use a command.
type use struct{ plain, json, failing bool }

// TestTree_EveryCommandHasAScript: every command is run by a script, with -o json if it has that format, and
// once with a failure. To fix this test, add a line to a script.
func TestTree_EveryCommandHasAScript(t *testing.T) {
	root := cli.Tree(daemon.Commands()...)
	uses := map[*cobra.Command]*use{}

	for _, pattern := range scripts {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d scripts, %v", pattern, len(files), err)
		}

		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}

			text, _, _ := strings.Cut(string(b), "\n-- ")
			for line := range strings.Lines(text) {
				note(root, uses, line)
			}
		}
	}

	walk(root, func(c *cobra.Command) {
		u := use{}
		if known := uses[c]; known != nil {
			u = *known
		}

		if !u.plain {
			t.Errorf("%s: no script runs it", c.CommandPath())
		}

		if !u.json && slices.Contains(cli.FormatsOf(c), "json") {
			t.Errorf("%s: no script runs it with -o json", c.CommandPath())
		}

		if !u.failing {
			t.Errorf("%s: it fails in no script", c.CommandPath())
		}
	})
}

// TestTree_EveryCommandHasExamples, and a description, also of each of its flags. Its help shows them.
func TestTree_EveryCommandHasExamples(t *testing.T) {
	walk(cli.Tree(daemon.Commands()...), func(c *cobra.Command) {
		switch name := c.Parent().Name(); {
		case c.Short == "":
			t.Errorf("%s: no words for it", c.CommandPath())
		case !c.HasExample() && name != "completion" && c.Name() != "help":
			t.Errorf("%s: no examples", c.CommandPath())
		case c.HasExample() && !strings.Contains(c.Example, "carillon "):
			t.Errorf("%s: its examples do not run it", c.CommandPath())
		}

		help := c.UsageString()
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			switch {
			case f.Hidden || f.Deprecated != "":
			case f.Usage == "":
				t.Errorf("%s: --%s has no description", c.CommandPath(), f.Name)
			case !strings.Contains(help, "--"+f.Name+" ") && !strings.Contains(help, "--"+f.Name+"\n"):
				t.Errorf("%s: its help does not show --%s", c.CommandPath(), f.Name)
			}
		})
	})
}

// walk calls do for every command that can be run.
func walk(cmd *cobra.Command, do func(*cobra.Command)) {
	for _, c := range cmd.Commands() {
		switch {
		case c.Hidden, c.IsAdditionalHelpTopicCommand():
		case c.HasSubCommands():
			walk(c, do)
		default:
			do(c)
		}
	}
}

// note records the command in a script's line, if there is one.
func note(root *cobra.Command, uses map[*cobra.Command]*use, line string) {
	words := fields(line)
	failing := false
	for len(words) > 0 && (words[0] == "!" || words[0] == "?" || strings.HasPrefix(words[0], "[")) {
		failing = failing || words[0] == "!"
		words = words[1:]
	}

	if len(words) > 0 && (words[0] == "exec" || words[0] == "await") {
		words = words[1:]
	}

	if len(words) == 0 || !slices.Contains([]string{"carillon", "background", "eventually"}, words[0]) {
		return
	}

	words = words[1:]
	if at := slices.Index(words, "--"); at >= 0 { // a command of testscript, or a pattern
		words = words[:at]
	}

	cmd, _, err := root.Find(words)
	if err != nil || cmd == nil {
		return
	}

	u := uses[cmd]
	if u == nil {
		u = &use{}
		uses[cmd] = u
	}

	json, plain := false, true
	for i, w := range words {
		format := ""

		switch {
		case (w == "-o" || w == "--output") && i+1 < len(words):
			format = words[i+1]
		case strings.HasPrefix(w, "--output="):
			format = strings.TrimPrefix(w, "--output=")
		case strings.HasPrefix(w, "-o"):
			format = strings.TrimPrefix(w, "-o")
		case w == "--help" || w == "-h":
			return
		}

		json = json || strings.HasPrefix(format, "json")
		plain = plain && format == ""
	}

	u.plain = u.plain || plain && !failing
	u.json = u.json || json
	u.failing = u.failing || failing
}

// fields splits a line as testscript does: at spaces outside single quotes.
func fields(line string) []string {
	var words []string
	word, quoted, begun := "", false, false
	for _, r := range strings.TrimSpace(line) {
		switch {
		case r == '#' && !quoted && !begun:
			return words
		case r == '\'':
			quoted, begun = !quoted, true
		case (r == ' ' || r == '\t') && !quoted:
			if begun {
				words = append(words, word)
			}
			word, begun = "", false
		default:
			word, begun = word+string(r), true
		}
	}

	if begun {
		words = append(words, word)
	}

	return words
}
