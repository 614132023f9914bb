package importer

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// commandNotes returns notes about a command whose meaning differs under Carillon, or that has a better form there.
func commandNotes(command string) (notes []string) {
	commands := splitCommands(command)

	for _, note := range []string{
		backgroundNote(commands), conditionNote(commands), sleepNote(commands), lockNote(commands),
	} {
		if note != "" {
			notes = append(notes, note)
		}
	}

	if strings.HasSuffix(command, `\`) {
		notes = append(notes, `the \ at the end is part of the command: cron does not continue lines`)
	}

	return notes
}

// backgroundNote is about processes that outlive the command.
func backgroundNote(commands []shellCommand) string {
	for _, c := range commands {
		if c.operator == "&" {
			return "processes in the background (&) are killed when the command ends: remove the &, or add wait"
		}
		if slices.ContainsFunc(c.words, func(w string) bool {
			return slices.Contains([]string{"nohup", "setsid", "disown", "daemonize"}, path.Base(w))
		}) {
			return "processes that outlive the command are killed, despite " + c.words[0]
		}
	}

	return ""
}

// conditionPrograms are programs that say no with their exit code.
var conditionPrograms = strings.Fields("[ [[ test which type command grep egrep fgrep pgrep pidof mountpoint ! cmp diff")

// conditionNote is about a condition that fails the run if it is false.
func conditionNote(commands []shellCommand) string {
	// Only the last list of commands determines the exit code.
	begin := 0
	for i, c := range commands {
		if slices.Contains([]string{";", "&", "\n"}, c.operator) && i+1 < len(commands) {
			begin = i + 1
		}
	}

	last := commands[min(begin, len(commands)):]
	if len(last) < 2 || last[0].operator != "&&" || !slices.Contains(conditionPrograms, path.Base(last[0].words[0])) {
		return ""
	}
	if slices.ContainsFunc(last, func(c shellCommand) bool { return c.operator == "||" }) {
		return ""
	}

	return fmt.Sprintf("the run fails if the condition (%s … &&) is false: use if … then … fi, or append || true", last[0].words[0])
}

// sleepingScript matches a script for perl or python that only sleeps.
var sleepingScript = regexp.MustCompile(`\bsleep\b`)

// sleepNote is about time that a run spends waiting.
func sleepNote(commands []shellCommand) string {
	for _, c := range commands {
		name := path.Base(c.words[0])
		script := interpreters.MatchString(name) && len(c.words) > 2 && (c.words[1] == "-e" || c.words[1] == "-c") && sleepingScript.MatchString(c.words[2])
		if name == "sleep" || script && !slices.Contains(posixShells, name) {
			return "while the run sleeps, it occupies a slot of its node: use jitter, or a schedule with seconds"
		}
	}

	return ""
}

// lockNote is about locks that a policy replaces.
func lockNote(commands []shellCommand) string {
	for _, c := range commands {
		at := slices.IndexFunc(c.words, func(w string) bool { return path.Base(w) == "flock" })
		if at < 0 {
			continue
		}
		if slices.ContainsFunc(c.words[at:], func(w string) bool { return w == "-n" || w == "--nonblock" || w == "-xn" || w == "-nx" || w == "-en" }) {
			return "flock -n: the run fails if the lock is taken: use overlap: skip instead"
		}
		return "flock: use overlap: queue or skip instead, which also holds on several nodes"
	}

	return ""
}

// scheduleNotes returns notes about a schedule that people often mean otherwise.
func scheduleNotes(fields []string) (notes []string) {
	if fields[2][0] != '*' && fields[4][0] != '*' {
		notes = append(notes, "runs on these days of the month and also on these days of the week, as in cron")
	}
	return notes
}

// commandWords are commands with which a line begins that lacks the column of the user.
var commandWords = strings.Fields("sleep cd curl wget echo test find rsync python python3 php perl bash sh cat touch rm cp mv tar run-parts docker flock nice sudo env date")

// checkUser returns a note about a user that this host does not have, and an error if it is rather a command.
func (o Options) checkUser(name string) (note string, err error) {
	if o.Home == nil || o.Home(name) != "" {
		return "", nil
	}
	if slices.Contains(commandWords, name) {
		return "", ignoredByCron("the user %s does not exist on this host: is the user column missing? Then cron ignores the line", quoteShort(name))
	}

	return fmt.Sprintf("the user %s does not exist on this host", quoteShort(name)), nil
}
