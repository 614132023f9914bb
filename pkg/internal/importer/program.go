package importer

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// shellCommand is one command of a line for the shell, without its redirections.
type shellCommand struct {
	words    []string
	operator string // what follows the command: ";", "&", "&&", "||", "|" or ""
	end      int    // the position of the operator in the line
}

// splitCommands splits a line for the shell into its commands. It knows quotes and substitutions, and is a guess for all
// other syntax.
func splitCommands(line string) (list []shellCommand) {
	s := &commandSplitter{text: line}
	for s.at < len(s.text) {
		s.readNext()
	}
	s.endCommand("")

	return s.list
}

// commandSplitter holds the state of splitCommands.
type commandSplitter struct {
	text    string
	at      int
	word    strings.Builder
	started bool // a word has begun
	target  bool // the next word is the target of a redirection
	words   []string
	list    []shellCommand
}

// readNext reads one character, or what belongs together.
func (s *commandSplitter) readNext() {
	rest := s.text[s.at:]
	c := rest[0]

	switch {
	case c == '\\' && len(rest) > 1:
		s.add(rest[1:2], 2)
	case c == '\'' || c == '"' || c == '`':
		s.readQuoted(c)
	case strings.HasPrefix(rest, "$("):
		end := closingParenthesis(rest[1:]) + 1
		s.add(rest[:end], end)
	case c == '#' && !s.started:
		s.at = len(s.text) // a comment
	case c == ' ' || c == '\t':
		s.endWord()
		s.at++
	case c == '>' || c == '<' || strings.HasPrefix(rest, "&>"):
		s.readRedirection()
	case strings.HasPrefix(rest, "&&") || strings.HasPrefix(rest, "||"):
		s.at += 2
		s.endCommand(rest[:2])
	case strings.ContainsRune(";&|\n", rune(c)):
		s.at++
		s.endCommand(string(c))
	case c == '(' || c == ')':
		s.at++
		s.endCommand("")
	default:
		s.add(rest[:1], 1)
	}
}

// add appends text to the word, which has n bytes of the line.
func (s *commandSplitter) add(text string, n int) {
	s.word.WriteString(text)
	s.started = true
	s.at += n
}

// readQuoted reads what is in quotes.
func (s *commandSplitter) readQuoted(quote byte) {
	s.started = true
	for s.at++; s.at < len(s.text) && s.text[s.at] != quote; s.at++ {
		if quote != '\'' && s.text[s.at] == '\\' && s.at+1 < len(s.text) {
			s.at++
		}
		s.word.WriteByte(s.text[s.at])
	}
	s.at++
}

// readRedirection skips the operator of a redirection. A number directly before it belongs to it.
func (s *commandSplitter) readRedirection() {
	if strings.Trim(s.word.String(), "0123456789") == "" {
		s.word.Reset()
		s.started = false
	}
	s.endWord()

	s.at += len(s.text[s.at:]) - len(strings.TrimLeft(s.text[s.at:], "<>&"))
	s.target = true
}

// endWord ends a word.
func (s *commandSplitter) endWord() {
	if s.started && !s.target {
		s.words = append(s.words, s.word.String())
	}
	if s.started {
		s.target = false
	}
	s.word.Reset()
	s.started = false
}

// endCommand ends a command.
func (s *commandSplitter) endCommand(operator string) {
	s.endWord()
	s.target = false
	if len(s.words) > 0 {
		s.list = append(s.list, shellCommand{s.words, operator, s.at - len(operator)})
	} else if n := len(s.list); n > 0 && s.list[n-1].operator == "" {
		s.list[n-1].operator = operator // after a parenthesis
	}
	s.words = nil
}

// closingParenthesis returns the number of bytes up to the end of the parentheses that text begins with.
func closingParenthesis(text string) int {
	depth := 0
	for i, c := range text {
		switch c {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}

	return len(text)
}

// launcher is a program that starts another one, which it is given after its flags.
type launcher struct {
	valued   string // the flags whose value is the next word
	operands int    // the number of words before the other program that are not flags
}

var launchers = map[string]launcher{
	"if": {}, "then": {}, "else": {}, "elif": {}, "do": {}, "while": {}, "until": {}, "{": {}, "!": {}, "exec": {}, "command": {},
	"builtin": {}, "time": {valued: "-o -f"}, "nohup": {}, "setsid": {}, "chronic": {}, "cronic": {}, "unbuffer": {}, "caffeinate": {},
	"nice": {valued: "-n --adjustment"}, "ionice": {valued: "-c -n --class --classdata"}, "chrt": {operands: 1},
	"taskset": {operands: 1}, "timeout": {valued: "-k -s --kill-after --signal", operands: 1},
	"sudo": {valued: "-u -g -p -C -h -r -t -T -U -D -R --user --group"}, "doas": {valued: "-u -C"},
	"runuser": {valued: "-u -g -G --user --group"}, "env": {valued: "-u -C --unset --chdir"},
	"flock":       {valued: "-w -E --wait --timeout --conflict-exit-code", operands: 1},
	"systemd-cat": {valued: "-t -p --identifier --priority --stderr-priority"}, "systemd-inhibit": {},
	"systemd-run": {valued: "-p -u --property --unit --slice --uid --gid --description"}, "stdbuf": {valued: "-i -o -e"},
	"setlock": {operands: 1}, "setpriv": {}, "softlimit": {valued: "-m -d -s -l -a -o -p -f -c -r -t"},
}

var (
	// auxiliaryCommands only test, prepare or wait for something.
	auxiliaryCommands = strings.Fields("test [ [[ cd true false : sleep usleep export umask set ulimit . source trap exit wait cat echo printf date which type fi done")

	posixShells       = strings.Fields("sh bash dash ash ksh mksh zsh busybox")
	interpreters      = regexp.MustCompile(`^(sh|bash|dash|ash|ksh|mksh|zsh|php|perl|ruby|node|python)[0-9.]*$`)
	assignmentPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
)

// guessProgram returns the name of the program that a command line is about. It is a guess, so that people
// recognize the names. It only needs to be the same whenever the line is the same.
func guessProgram(line string) string {
	fallback := ""

	for _, c := range splitCommands(line) {
		if name := programOf(c.words); name != "" {
			return name
		}
		if fallback == "" {
			fallback = programName(c.words[0])
		}
	}

	if fallback == "" {
		return "job"
	}

	return fallback
}

// programName returns the last part of a path as a part of a name.
func programName(word string) string {
	base, _, _ := strings.Cut(path.Base(word), " ")
	return clipSlug(base, 40)
}

// programOf returns the name of the program that a command is about, or "" if it is only auxiliary.
func programOf(words []string) string {
	for len(words) > 0 {
		name := path.Base(words[0])
		l, launches := launchers[name]

		switch {
		case assignmentPattern.MatchString(words[0]):
			words = words[1:]
		case slices.Contains(auxiliaryCommands, name):
			return ""
		case name == "su" || name == "runuser" || name == "flock" || interpreters.MatchString(name):
			inner, rest := innerCommand(name, words[1:])
			if inner != "" {
				return guessProgram(inner)
			}
			if !launches {
				return interpretedProgram(name, rest)
			}
			words = l.skip(words[1:])
		case launches:
			words = l.skip(words[1:])
		default:
			return programName(words[0])
		}
	}

	return ""
}

// skip removes the flags and the operands of a launcher.
func (l launcher) skip(words []string) []string {
	operands := l.operands
	for len(words) > 0 {
		switch w := words[0]; {
		case w == "--":
			words = words[1:]
			return words[min(operands, len(words)):]
		case strings.HasPrefix(w, "-") && len(w) > 1:
			n := 1
			if slices.Contains(strings.Fields(l.valued), w) {
				n = 2
			}
			words = words[min(n, len(words)):]
		case operands > 0:
			operands--
			words = words[1:]
		default:
			return words
		}
	}

	return nil
}

// innerCommand returns the command line that a shell, su or flock gets with -c.
func innerCommand(name string, words []string) (line string, rest []string) {
	for i, w := range words {
		isC := w == "-c" || w == "--command" || strings.HasPrefix(w, "-") && !strings.HasPrefix(w, "--") && strings.HasSuffix(w, "c") && slices.Contains(posixShells, name)
		if isC && i+1 < len(words) {
			return words[i+1], nil
		}
		if !strings.HasPrefix(w, "-") && slices.Contains(posixShells, name) {
			break // the flags of a script
		}
	}

	return "", words
}

// interpretedProgram returns the name of the script or module that an interpreter runs.
func interpretedProgram(name string, words []string) string {
	for i, w := range words {
		switch {
		case w == "-m" && i+1 < len(words):
			return programName(words[i+1])
		case w == "-e" || w == "-r" || w == "-c":
			if i+1 < len(words) && strings.Contains(words[i+1], "sleep") {
				return ""
			}
			return programName(name)
		case !strings.HasPrefix(w, "-"):
			return programName(w)
		}
	}

	return programName(name)
}
