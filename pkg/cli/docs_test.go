//go:build linux

package cli_test

import (
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/docs"
	"github.com/carillonhq/carillon/pkg/cli"
	"github.com/carillonhq/carillon/pkg/daemon"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
)

// commandInText finds the commands that a page names in its text, between backquotes.
var commandInText = regexp.MustCompile("`(carillon [^`]+)`")

// commandsOf returns the command lines of carillon on a page: those in its text, and those in its blocks of console input.
func commandsOf(page string) (all []string) {
	block, language := false, ""
	continued := ""
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		if trimmed := strings.TrimSpace(line); strings.HasPrefix(trimmed, "```") {
			block, language, continued = !block, strings.TrimPrefix(trimmed, "```"), ""
			continue
		}

		if !block {
			for _, m := range commandInText.FindAllStringSubmatch(line, -1) {
				all = append(all, m[1])
			}
			continue
		}
		if language != "" && language != "console" && language != "sh" {
			continue
		}

		line, continued = continued+strings.TrimSpace(line), ""
		if before, ok := strings.CutSuffix(line, `\`); ok {
			continued = before
			continue
		}
		line = strings.TrimPrefix(line, "$ ")
		for _, part := range regexp.MustCompile(`\|\|?|&&|;`).Split(line, -1) {
			part = strings.TrimPrefix(strings.TrimSpace(part), "sudo ")
			if strings.HasPrefix(part, "carillon ") {
				all = append(all, part)
			}
		}
	}

	return all
}

// wordsOf returns the words of a command line as a shell splits them, up to a comment or a redirection.
func wordsOf(line string) (words []string) {
	word, begun, quote := "", false, rune(0)
	flush := func() {
		if begun {
			words = append(words, word)
		}
		word, begun = "", false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word += string(r)
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == ' ':
			flush()
		case !begun && (r == '#' || r == '>' || r == '<'):
			return words
		default:
			word, begun = word+string(r), true
		}
	}
	flush()

	return words
}

// TestDocs_CommandsExist: every command that a page shows exists, with the flags that the page gives it.
func TestDocs_CommandsExist(t *testing.T) {
	checked := 0
	root := cli.Tree(daemon.Commands()...)
	err := fs.WalkDir(docs.Files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) != ".md" {
			return err
		}
		page, err := fs.ReadFile(docs.Files, name)
		if err != nil {
			return err
		}

		for _, line := range commandsOf(string(page)) {
			words := wordsOf(line)[1:]
			if len(words) == 0 || strings.Contains(line, "…") || words[0] == "help" || words[0] == "COMMAND" || words[0] == "(CLI)," {
				continue
			}
			for i, w := range words { // a flag of the text, such as [--yes]
				words[i] = strings.Trim(w, "[]")
			}

			cmd, rest, err := root.Find(words)
			if err != nil || !cmd.HasParent() {
				t.Errorf("%s: %s: there is no such command (%v)", name, line, err)
				continue
			}
			if cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") && !cmd.Runnable() {
				t.Errorf("%s: %s: %s has no command %s", name, line, cmd.CommandPath(), rest[0])
			}
			if cmd.DisableFlagParsing {
				continue
			}
			// A text may name a flag without its value.
			if err := cmd.ParseFlags(rest); err != nil && !strings.Contains(err.Error(), "help requested") && !strings.HasPrefix(err.Error(), "flag needs an argument") {
				t.Errorf("%s: %s: %v", name, line, err)
			}
			checked++
		}

		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 400 {
		t.Errorf("only %d commands were found", checked)
	}
}

// TestDocs_RecipesAreTasks checks that each file of the recipes decodes and is valid.
func TestDocs_RecipesAreTasks(t *testing.T) {
	page, err := fs.ReadFile(docs.Files, "recipes.md")
	if err != nil {
		t.Fatal(err)
	}

	tasks := 0
	for i, part := range strings.Split(string(page), "```yaml\n") {
		if i == 0 {
			continue
		}
		text, _, _ := strings.Cut(part, "```")
		objects, err := manifest.Read("recipes.md", []byte(text), "default")
		if err != nil {
			t.Errorf("%v:\n%s", err, text)
		}
		for _, o := range objects {
			if o.Err != nil {
				t.Errorf("%v:\n%s", o.Err, text)
			}
			tasks++
		}
	}
	if tasks < 12 {
		t.Errorf("only %d tasks", tasks)
	}
}
