package importer

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Unit is a unit file of systemd: its settings in order.
type Unit struct {
	File     string
	settings []setting
}

// setting is one setting with its section. line is where it begins.
type setting struct {
	section, key, value string
	line                int
}

// ReadUnit parses a unit file. Like systemd, it skips lines that are not valid.
func ReadUnit(file, text string) Unit {
	u := Unit{File: file}
	section, pending, begun, n := "", "", 0, 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\r\n")

		trimmed := strings.TrimSpace(line)
		if trimmed == "" && pending == "" || trimmed != "" && (trimmed[0] == '#' || trimmed[0] == ';') {
			continue // a comment may be inside of a setting that continues
		}

		if pending == "" {
			begun = n
		}

		if more, goesOn := strings.CutSuffix(line, `\`); goesOn {
			pending += more + " "
			continue
		}

		whole := strings.TrimSpace(pending + line)
		pending = ""

		if strings.HasPrefix(whole, "[") {
			section = strings.Trim(whole, "[]")
			continue
		}

		key, value, ok := strings.Cut(whole, "=")
		if !ok {
			continue
		}

		u.settings = append(u.settings, setting{section, strings.TrimSpace(key), strings.TrimSpace(value), begun})
	}

	return u
}

// allValues returns the values of a setting that accumulates. An empty value discards those before it.
func (u Unit) allValues(section, key string) (list []setting) {
	for _, s := range u.settings {
		if s.section == section && s.key == key {
			if s.value == "" {
				list = nil
				continue
			}
			list = append(list, s)
		}
	}

	return list
}

// lastValue returns the value in force of a setting that does not accumulate.
func (u Unit) lastValue(section, key string) string {
	for _, s := range slices.Backward(u.settings) {
		if s.section == section && s.key == key {
			return s.value
		}
	}

	return ""
}

// boolValue returns the value of a boolean setting.
func (u Unit) boolValue(section, key string) bool {
	return slices.Contains([]string{"1", "yes", "y", "true", "t", "on"}, strings.ToLower(u.lastValue(section, key)))
}

// unknownSettings returns the names of the settings of a section that are not in known.
func (u Unit) unknownSettings(section string, known ...string) (names []string) {
	for _, s := range u.settings {
		if s.section == section && s.value != "" && !slices.Contains(known, s.key) && !slices.Contains(names, s.key) {
			names = append(names, s.key)
		}
	}

	slices.Sort(names)

	return names
}

// buildCommand combines everything that a service starts, in order, into one action: a command, or a line for the
// shell if there are several commands, or variables.
func (t *timer) buildCommand(u Unit, x expander) (command []string, shell string, err error) {
	// plain remains true while the only command needs no shell. splits becomes true if the value of a variable is
	// split into words.
	var parts []string
	plain, splits := true, false
	add := func(key, after string) error {
		for _, v := range u.allValues("Service", key) {
			e, err := readExec(v.value, x)
			if err != nil {
				return fmt.Errorf("%s=%s: %w", key, v.value, err)
			}

			if e.privileged {
				t.addNote("%s: the prefix + or !, which gives the command more privileges, is not supported", key)
			}

			line := e.shellLine()
			if after != "" {
				line += after
			} else if e.forgiven {
				line = "{ " + line + " || true; }"
			}

			command = e.plainWords()
			plain = plain && command != nil && after == "" && !e.forgiven
			splits = splits || slices.ContainsFunc(e.words, e.isSingleVariable)
			parts = append(parts, line)
		}

		return nil
	}

	// Each step runs only if the previous one succeeded. If ExecCondition fails, the rest is skipped without an
	// error.
	for _, k := range [][2]string{{"ExecCondition", " || exit 0"}, {"ExecStartPre", ""}, {"ExecStart", ""}, {"ExecStartPost", ""}} {
		if err := add(k[0], k[1]); err != nil {
			return nil, "", err
		}
	}

	if len(u.allValues("Service", "ExecStart")) == 0 {
		return nil, "", errors.New("ExecStart is missing")
	}

	// A single command without variables does not need a shell.
	if plain && len(parts) == 1 {
		return command, "", nil
	}

	if splits {
		shell = "set -f\n" // split the values of variables into words, without pathname expansion
	}

	for i, p := range parts {
		switch {
		case i == 0:
			shell += p
		case strings.HasSuffix(parts[i-1], " || exit 0"):
			shell += "\n" + p
		default:
			shell += " &&\n" + p
		}
	}

	return nil, shell, nil
}

// exec is one command of a unit.
type exec struct {
	words      []word
	forgiven   bool // -: its failure is ignored
	privileged bool // + or !
	literal    bool // :, no variables
}

// readExec parses the value of an Exec setting.
func readExec(text string, x expander) (e exec, err error) {
	named := false

	// Prefix characters can be combined in any order.
	for text != "" && strings.ContainsRune("@-:+!|", rune(text[0])) {
		switch text[0] {
		case '-':
			e.forgiven = true
		case ':':
			e.literal = true
		case '@':
			named = true
		case '+', '!':
			e.privileged = true
		}

		text = text[1:]
	}

	words, err := splitWords(text)
	if err != nil {
		return e, err
	}

	for i := range words {
		if words[i].text, err = x.expandSpecifiers(words[i].text); err != nil {
			return e, err
		}
	}

	// With @, the second word is argv[0] of the program.
	if named && len(words) > 1 {
		words = append(words[:1], words[2:]...)
	}

	if len(words) == 0 {
		return e, errors.New("no command")
	}

	for _, w := range words {
		if w.text == ";" && !w.quoted {
			return e, errors.New("several commands separated by ; are not supported: use one ExecStart for each")
		}
	}

	e.words = words

	return e, nil
}

// variablePattern matches references to variables, and the escape $$.
var variablePattern = regexp.MustCompile(`\$\$|\$\{[A-Za-z_][A-Za-z0-9_]*\}|\$[A-Za-z_][A-Za-z0-9_]*`)

// plainWords returns the words of a command, or nil if it contains variables.
func (e exec) plainWords() (list []string) {
	for _, w := range e.words {
		for _, m := range variablePattern.FindAllString(w.text, -1) {
			if m != "$$" && !e.literal {
				return nil
			}
		}

		list = append(list, w.escapeDollars(e.literal))
	}

	return list
}

// shellLine returns the command as a line for the shell that treats variables as systemd does: $NAME as a whole
// word is split into words, ${NAME} is not.
func (e exec) shellLine() string {
	var out []string
	for _, w := range e.words {
		switch {
		case e.isSingleVariable(w):
			out = append(out, w.text)
		case e.literal || !variablePattern.MatchString(w.text):
			out = append(out, shellQuote(w.text))
		default:
			out = append(out, w.withVariables())
		}
	}

	return strings.Join(out, " ")
}

// isSingleVariable reports whether a word is one variable whose value is split into words.
func (e exec) isSingleVariable(w word) bool {
	return !e.literal && strings.HasPrefix(w.text, "$") && w.text != "$$" && variablePattern.FindString(w.text) == w.text && !strings.HasPrefix(w.text, "${")
}

// word is a word of a command.
type word struct {
	text   string
	quoted bool
}

// escapeDollars replaces $$ by $.
func (w word) escapeDollars(literal bool) string {
	if literal {
		return w.text
	}
	return strings.ReplaceAll(w.text, "$$", "$")
}

// withVariables returns a word for the shell in which only ${NAME} is expanded.
func (w word) withVariables() string {
	var b strings.Builder
	last := 0
	for _, at := range variablePattern.FindAllStringIndex(w.text, -1) {
		m := w.text[at[0]:at[1]]
		if m != "$$" && !strings.HasPrefix(m, "${") {
			continue // inside of a word it is text
		}

		if at[0] > last {
			b.WriteString(shellQuote(w.text[last:at[0]]))
		}

		if m == "$$" {
			b.WriteString("'$'")
		} else {
			b.WriteString(`"` + m + `"`)
		}

		last = at[1]
	}

	if last < len(w.text) {
		b.WriteString(shellQuote(w.text[last:]))
	}

	return b.String()
}

// harmlessPattern matches words that the shell does not change.
var harmlessPattern = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellQuote quotes a word for the shell if necessary.
func shellQuote(s string) string {
	if harmlessPattern.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// escapeBytes maps the characters of C escapes to their values.
var escapeBytes = map[byte]byte{'a': 7, 'b': 8, 'f': 12, 'n': 10, 'r': 13, 't': 9, 'v': 11, '\\': '\\', '"': '"', '\'': '\'', 's': ' '}

// splitWords splits a line as systemd does: with quotes around whole words, and with C escapes.
func splitWords(text string) (words []word, err error) {
	var b strings.Builder
	var quote byte
	within, quoted := false, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			if i++; i == len(text) {
				return nil, errors.New("ends with a backslash")
			}

			e, ok := escapeBytes[text[i]]
			if !ok {
				return nil, fmt.Errorf(`the escape \%c is not supported`, text[i])
			}

			b.WriteByte(e)
			within = true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			b.WriteByte(c)
		case c == '"' || c == '\'':
			quote, within, quoted = c, true, true
		case c == ' ' || c == '\t':
			if within {
				words = append(words, word{b.String(), quoted})
			}
			b.Reset()
			within, quoted = false, false
		default:
			b.WriteByte(c)
			within = true
		}
	}

	if quote != 0 {
		return nil, errors.New("contains an unterminated quote")
	}

	if within {
		words = append(words, word{b.String(), quoted})
	}

	return words, nil
}
