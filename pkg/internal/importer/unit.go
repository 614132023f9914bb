package importer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Unit is a unit file of systemd: its settings in order.
type Unit struct {
	File     string
	Path     string // the absolute path, if File is relative
	settings []setting
	catPath  string // the path in the first line of the output of systemctl cat
}

// origin returns the path of the unit on the host where it is used, as far as it is known.
func (u Unit) origin() string { return cmp.Or(u.catPath, u.Path, u.File) }

// setting is one setting with its section. line is where it begins.
type setting struct {
	section, key, value string
	line                int
}

// catHeader matches the first line of the output of systemctl cat.
var catHeader = regexp.MustCompile(`^# (/\S+/systemd/\S+)\n`)

// ReadUnit parses a unit file. Like systemd, it skips lines that are not valid.
func ReadUnit(file, text string) Unit {
	u := Unit{File: file}
	if m := catHeader.FindStringSubmatch(text); m != nil {
		u.catPath = m[1]
	}

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
	_, value := u.lastOf(section, key)
	return value
}

// lastOf returns the value in force of a setting that has several names, and the name that the unit uses.
func (u Unit) lastOf(section string, keys ...string) (key, value string) {
	for _, s := range slices.Backward(u.settings) {
		if s.section == section && slices.Contains(keys, s.key) {
			return s.key, s.value
		}
	}

	return "", ""
}

// hasSetting reports whether a setting has a value.
func (u Unit) hasSetting(section, key string) bool { return u.lastValue(section, key) != "" }

// boolValue returns the value of a boolean setting.
func (u Unit) boolValue(section, key string) bool { return isTrue(u.lastValue(section, key)) }

// isTrue reports whether a value is one of those that mean yes.
func isTrue(value string) bool {
	return slices.Contains([]string{"1", "yes", "y", "true", "t", "on"}, strings.ToLower(value))
}

// settingNames returns the names of the settings of a section that have a value.
func (u Unit) settingNames(section string) (names []string) {
	for _, s := range u.settings {
		if s.section == section && u.hasSetting(section, s.key) && !slices.Contains(names, s.key) {
			names = append(names, s.key)
		}
	}

	slices.Sort(names)

	return names
}

// buildCommand combines everything that a service starts, in order, into one action: a command, or a line for the
// shell if there are several commands, or variables.
func (s *service) buildCommand() (command []string, shell string, err error) {
	// plain remains true while the only command needs no shell. splits becomes true if the value of a variable is
	// split into words.
	var parts []string
	plain, splits := len(s.defaults) == 0, false
	add := func(key, after string) error {
		for _, v := range s.unit.allValues("Service", key) {
			e, err := readExec(v.value, s.expander)
			if err != nil {
				return fmt.Errorf("%s=%s: %w", key, v.value, err)
			}

			if e.privileged {
				s.addNote("%s: the prefix + or !, which gives the command more privileges, is not supported", key)
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

	if !s.unit.hasSetting("Service", "ExecStart") {
		return nil, "", errors.New("ExecStart is missing")
	}

	// A single command without variables does not need a shell.
	if plain && len(parts) == 1 {
		return command, "", nil
	}

	// Variables that a file of env_from may have set keep the value of the file, as in systemd.
	for _, name := range slices.Sorted(maps.Keys(s.defaults)) {
		shell += fmt.Sprintf("[ -n \"${%s+set}\" ] || export %s=%s\n", name, name, shellQuote(s.defaults[name]))
	}

	if splits {
		shell += "set -f\n" // split the values of variables into words, without pathname expansion
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

// readEscape returns the text of a C escape, whose backslash comes before text, and how many bytes it has.
func readEscape(text string) (value string, n int, err error) {
	if text == "" {
		return "", 0, errors.New("ends with a backslash")
	}
	if c, ok := escapeBytes[text[0]]; ok {
		return string([]byte{c}), 1, nil
	}

	digits, base, skip := 0, 16, 1
	switch c := text[0]; {
	case c == 'x':
		digits = 2
	case c == 'u':
		digits = 4
	case c == 'U':
		digits = 8
	case c >= '0' && c <= '7':
		digits, base, skip = 3, 8, 0
	}

	if digits > 0 && len(text) >= skip+digits {
		code, err := strconv.ParseUint(text[skip:skip+digits], base, 32)
		switch {
		case err != nil || code == 0:
		case digits <= 3 && code < utf8.RuneSelf:
			return string([]byte{byte(code)}), skip + digits, nil
		case digits > 3 && utf8.ValidRune(rune(code)):
			return string(rune(code)), skip + digits, nil
		}
	}

	return "", 0, fmt.Errorf(`the escape \%c is not supported`, text[0])
}

// unescapeText replaces the C escapes of a text.
func unescapeText(text string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			b.WriteByte(text[i])
			continue
		}

		value, n, err := readEscape(text[i+1:])
		if err != nil {
			return "", err
		}

		b.WriteString(value)
		i += n
	}

	return b.String(), nil
}

// splitWords splits a line as systemd does: with quotes around whole words, and with C escapes.
func splitWords(text string) (words []word, err error) {
	var b strings.Builder
	var quote byte
	within, quoted := false, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			escaped, n, err := readEscape(text[i+1:])
			if err != nil {
				return nil, err
			}

			b.WriteString(escaped)
			within = true
			i += n
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
