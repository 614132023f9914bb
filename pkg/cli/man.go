package cli

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/task"
)

// manCommand writes the manual pages, from the same tree as --help. It does not use cobra's generator, because
// that interprets help as Markdown, where "*/5 * * * *" is emphasis and a table is a paragraph, and because it
// omits the topics.
func manCommand(root *cobra.Command) *cobra.Command {
	dir := ""
	cmd := &cobra.Command{
		Use:     "man --dir DIR",
		Short:   "Write manual pages of all commands and topics",
		Long:    "Write a manual page for each command (section 1) and each topic (section 7) into a directory, which the command creates.\nThe date of the pages is SOURCE_DATE_EPOCH, or today.",
		Example: "  carillon man --dir ~/.local/share/man",
		Hidden:  true, // for packagers
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if dir == "" {
				return failure.Usage("--dir is required")
			}

			day := time.Now().UTC()
			if s := os.Getenv("SOURCE_DATE_EPOCH"); s != "" {
				n, err := strconv.ParseInt(s, 10, 64)
				if err != nil {
					return failure.Usage("SOURCE_DATE_EPOCH %s: is not a number of seconds", task.Quote(s))
				}
				day = time.Unix(n, 0).UTC()
			}

			return writeManual(root, dir, day.Format(time.DateOnly))
		},
	}

	cmd.Flags().StringVar(&dir, "dir", "", "write the pages to man1 and man7 below this `DIR`")

	return cmd
}

// writeManual writes the page of a command, and those of its subcommands.
func writeManual(cmd *cobra.Command, dir, date string) error {
	section := "1"
	if cmd.IsAdditionalHelpTopicCommand() {
		section = "7"
	} else if cmd.HasParent() && !cmd.IsAvailableCommand() && cmd.Name() != "help" {
		return nil
	}

	dirOfSection := filepath.Join(dir, "man"+section)
	if err := os.MkdirAll(dirOfSection, 0o755); err != nil {
		return err
	}

	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	if err := os.WriteFile(filepath.Join(dirOfSection, name+"."+section), []byte(manPage(cmd, name, section, date)), 0o644); err != nil {
		return err
	}

	for _, c := range cmd.Commands() {
		if err := writeManual(c, dir, date); err != nil {
			return err
		}
	}

	return nil
}

// manPage returns the page of a command.
func manPage(cmd *cobra.Command, name, section, date string) string {
	var p strings.Builder
	heading := func(s string) { fmt.Fprintf(&p, ".SH %s\n", s) }
	fmt.Fprintf(&p, ".TH %s %s %s carillon \"Carillon\"\n", roffQuoted(strings.ToUpper(name)), section, date)
	heading("NAME")
	fmt.Fprintf(&p, "%s \\- %s\n", escapeRoff(name), escapeRoff(cmd.Short))

	if section == "1" {
		heading("SYNOPSIS")
		line := cmd.UseLine()
		if cmd.HasAvailableSubCommands() {
			if factory.IsRunAlone(cmd) {
				fmt.Fprintf(&p, ".B %s\n.br\n", escapeRoff(line))
			}
			line = cmd.CommandPath() + " COMMAND"
		}

		fmt.Fprintf(&p, ".B %s\n", escapeRoff(line))
	}

	heading("DESCRIPTION")
	p.WriteString(roffText(cmp.Or(cmd.Long, cmd.Short+".")))

	if cmd.HasAvailableSubCommands() {
		heading("COMMANDS")

		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				fmt.Fprintf(&p, ".TP\n.B %s\n%s\n", escapeRoff(c.Name()), escapeRoff(c.Short))
			}
		}
	}

	if section == "1" {
		cmd.InitDefaultHelpFlag()
		roffFlags(&p, "OPTIONS", cmd.NonInheritedFlags())
		if !cmd.HasAvailableSubCommands() && cmd.GroupID != groupDaemon {
			roffFlags(&p, "GLOBAL OPTIONS", cmd.InheritedFlags())
		}
	}

	if cmd.Example != "" {
		heading("EXAMPLES")
		p.WriteString(roffText(cmd.Example))
	}

	heading("SEE ALSO")
	p.WriteString(escapeRoff(strings.Join(seeAlso(cmd), ", ")) + "\n")

	return p.String()
}

// seeAlso returns the related pages: of the parent, of the subcommands, and of the topics.
func seeAlso(cmd *cobra.Command) (pages []string) {
	page := func(c *cobra.Command) {
		section := "(1)"
		if c.IsAdditionalHelpTopicCommand() {
			section = "(7)"
		}
		pages = append(pages, strings.ReplaceAll(c.CommandPath(), " ", "-")+section)
	}

	if cmd.HasParent() {
		page(cmd.Parent())
	}

	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() || c.IsAdditionalHelpTopicCommand() {
			page(c)
		}
	}

	return pages
}

// hostDefaults describes defaults that depend on the host.
var hostDefaults = map[string]string{"name": "that of the host", "slots": "8 for each CPU, at least 16"}

// roffFlags writes the flags of a page.
func roffFlags(p *strings.Builder, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}

	fmt.Fprintf(p, ".SH %s\n", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" {
			return
		}

		value, about := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}

		if value != "" {
			name += " " + value
		}

		otherwise := f.DefValue
		if s, ok := hostDefaults[f.Name]; ok && otherwise != "" {
			otherwise = s
		}

		switch otherwise {
		case "", "false", "0", "0s", "[]":
		default:
			about += " (default: " + otherwise + ")"
		}

		fmt.Fprintf(p, ".TP\n.B %s\n%s\n", escapeRoff(name), escapeRoff(about))
	})
}

// roffText converts help to paragraphs. A paragraph that is indented or has columns is kept unchanged; others
// are filled.
func roffText(text string) string {
	var p strings.Builder

	for paragraph := range strings.SplitSeq(strings.Trim(text, "\n"), "\n\n") {
		if strings.Contains(paragraph, "  ") {
			fmt.Fprintf(&p, ".PP\n.nf\n%s\n.fi\n", escapeRoff(paragraph))
		} else {
			fmt.Fprintf(&p, ".PP\n%s\n", escapeRoff(paragraph))
		}
	}

	return p.String()
}

// roffEscapes escapes characters with a special meaning in roff.
var roffEscapes = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`)

// escapeRoff escapes a text, so that roff prints it literally.
func escapeRoff(text string) string {
	lines := strings.Split(roffEscapes.Replace(text), "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") {
			lines[i] = `\&` + l
		}
	}

	return strings.Join(lines, "\n")
}

// roffQuoted quotes and escapes an argument of a roff request.
func roffQuoted(s string) string { return `"` + escapeRoff(s) + `"` }
