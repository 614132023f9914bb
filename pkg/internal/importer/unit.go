package importer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
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

	// DropIns are the drop-ins of the unit that File does not contain.
	DropIns []string
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

// unitHeader matches the line before each unit in the output of systemctl cat. The lines before drop-ins name a .conf file.
var unitHeader = regexp.MustCompile(`(?m)^# (/\S+/systemd/\S+\.(?:timer|service))$`)

// ReadUnits parses a unit file, or the output of systemctl cat for one or several units. In such output, drop-ins follow their
// unit. If the file is not named like a unit, its units have the names in the output.
func ReadUnits(file, text string) []Unit {
	headers := unitHeader.FindAllStringSubmatchIndex(text, -1)
	named := strings.HasSuffix(file, ".timer") || strings.HasSuffix(file, ".service")
	if len(headers) == 0 || headers[0][0] > 0 || len(headers) == 1 && named {
		return []Unit{ReadUnit(file, text)}
	}

	units := make([]Unit, len(headers))
	for i, h := range headers {
		end := len(text)
		if i+1 < len(headers) {
			end = headers[i+1][0]
		}
		units[i] = ReadUnit(path.Base(text[h[2]:h[3]]), text[h[0]:end])
	}

	return units
}

// ReadUnit parses a unit file. Like systemd, it skips lines that are not valid.
func ReadUnit(file, text string) Unit {
	u := Unit{File: file}
	if m := catHeader.FindStringSubmatch(text); m != nil {
		u.catPath = m[1]
	}

	section, pending, begun, n := "", "", 0, 0
	for line := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		n++
		line = strings.TrimRight(line, "\r\n")

		trimmed := strings.TrimSpace(line)
		if trimmed == "" && pending == "" || trimmed != "" && (trimmed[0] == '#' || trimmed[0] == ';') {
			continue // a comment may be inside of a setting that continues
		}

		if pending == "" {
			begun = n
		}

		// A backslash that another one escapes does not continue the line.
		if trailing := len(line) - len(strings.TrimRight(line, `\`)); trailing%2 == 1 {
			pending += line[:len(line)-1] + " "
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

// isEmptied reports whether the value in force of a setting is empty, but set.
func (u Unit) isEmptied(section, key string) bool {
	name, value := u.lastOf(section, key)
	return name != "" && value == ""
}

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
	// split into words. conditions is the number of parts that end the run, or let it continue, by themselves.
	var parts []string
	conditions := 0
	plain, splits := len(s.defaults) == 0, false
	add := func(key, after string) error {
		list, err := s.readCommands(key)
		if err != nil {
			return err
		}

		for _, e := range list {
			if e.privileged {
				s.addNote("%s: the prefix + or !, which gives the command more privileges, is not supported", key)
			}
			if e.name != "" {
				s.addNote("%s=@…: the program is not started under the name %s", key, quoteShort(e.name))
			}

			line := e.shellLine()
			switch {
			case e.forgiven:
				line = "{ " + line + " || true; }"
			case after != "":
				line += after
			}
			if key == "ExecCondition" {
				conditions++
			}

			command = e.plainWords()
			plain = plain && command != nil && after == "" && !e.forgiven
			splits = splits || slices.ContainsFunc(e.words, e.isSingleVariable)
			parts = append(parts, line)
		}

		return nil
	}

	// Each step runs only if the previous one succeeded. If ExecCondition ends with an exit code from 1 to 254, the rest
	// is skipped without an error. 255 is an error.
	for _, k := range [][2]string{{"ExecCondition", " || { [ $? -lt 255 ] && exit 0; exit 255; }"}, {"ExecStartPre", ""}, {"ExecStart", ""}, {"ExecStartPost", ""}} {
		if err := add(k[0], k[1]); err != nil {
			return nil, "", err
		}
	}

	if !s.unit.hasSetting("Service", "ExecStart") {
		return nil, "", errors.New("ExecStart is missing")
	}

	s.commands = len(parts)

	if len(s.split) > 0 {
		s.addNote("systemd interprets quotes in the value of %s, and the task splits it at white space only", strings.Join(s.split, ", "))
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
		case i <= conditions:
			shell += "\n" + p
		default:
			shell += " &&\n" + p
		}
	}

	return nil, shell, nil
}

// readCommands returns the commands of an Exec setting, with the words that systemd gives them.
func (s *service) readCommands(key string) (list []exec, err error) {
	for _, v := range s.unit.allValues("Service", key) {
		commands, err := readExec(v.value, s.expander)
		if err == nil {
			for i := range commands {
				s.replaceVariables(key, &commands[i])
			}
		} else {
			err = fmt.Errorf("%s=%s: %w", key, v.value, err)
		}

		list = append(list, commands...)
		if err != nil {
			return nil, err
		}
	}

	if key == "ExecStart" && len(list) > 1 && !s.isOneshot() {
		return nil, errors.New("several commands in ExecStart= require Type=oneshot: systemd refuses the unit")
	}

	return list, nil
}

// replaceVariables replaces the references whose value is certain, and adds notes about those that the unit does not
// determine.
func (s *service) replaceVariables(key string, e *exec) {
	if e.literal {
		return
	}

	// References that are not to a variable are empty in systemd, even those that a shell would understand.
	var words []word
	for _, w := range e.words {
		for _, m := range variablePattern.FindAllString(w.text, -1) {
			if m != "$$" && variableName(m) == "" {
				s.addNote("%s: systemd replaces %s by nothing, also within quotes: write $%s for the shell", key, quoteShort(m), m)
			}
		}
		w.text = variablePattern.ReplaceAllStringFunc(w.text, func(m string) string {
			if m != "$$" && variableName(m) == "" {
				return ""
			}
			return m
		})

		name := ""
		if e.isSingleVariable(w) {
			if name = w.text[1:]; !shellName.MatchString(name) {
				s.addNote("%s: systemd omits the argument %s, because no variable has such a name: write ${NAME} within a word", key, quoteShort(w.text))
				continue
			}
		}

		// The value of a variable that is an argument of its own is split into words, and may contain quotes.
		value, known := s.process.Env[name]
		switch {
		case name == "" || !strings.ContainsAny(value, `"'\`) && len(s.process.EnvFrom) == 0:
			words = append(words, w)
		case known && len(s.process.EnvFrom) == 0:
			for _, text := range splitValue(value) {
				words = append(words, word{text: strings.ReplaceAll(text, "$", "$$"), quoted: true})
			}
		default:
			if !slices.Contains(s.split, w.text) {
				s.split = append(s.split, w.text)
			}
			words = append(words, w)
		}
	}
	e.words = words

	// Without files, all variables are known, except for those that the service manager has.
	if len(s.process.EnvFrom) > 0 {
		return
	}
	var unset, ofUser []string
	for _, name := range e.variables() {
		_, set := s.process.Env[name]
		switch {
		case set || slices.Contains(unset, name) || slices.Contains(ofUser, name):
		case !slices.Contains(presetVariables, name):
			unset = append(unset, name)
		case s.isSystem() && s.value("User") == "":
			ofUser = append(ofUser, name)
		}
	}
	if len(ofUser) > 0 {
		s.addNote("%s uses variables that systemd does not set without User=: %s; the task has those of %s", key, strings.Join(ofUser, ", "), s.process.User)
	}
	if len(unset) > 0 {
		s.addNote("%s uses variables that the unit does not set: %s; if the service manager sets them, add them to env", key, strings.Join(unset, ", "))
	}
}

// exec is one command of a unit.
type exec struct {
	words      []word
	name       string // @: the argv[0] of the program
	forgiven   bool   // -: its failure is ignored
	privileged bool   // + or !
	literal    bool   // :, no variables
}

// readExec parses the value of an Exec setting: commands that are separated by a semicolon.
func readExec(text string, x expander) (list []exec, err error) {
	words, err := splitWords(text, true)
	if err != nil {
		return nil, err
	}

	for len(words) > 0 {
		end := slices.IndexFunc(words, func(w word) bool { return w.text == ";" && !w.quoted })
		if end < 0 {
			end = len(words)
		}

		if end > 0 {
			e, err := newExec(slices.Clone(words[:end]), x)
			if err != nil {
				return nil, err
			}
			list = append(list, e)
		}
		words = words[min(end+1, len(words)):]
	}

	if len(list) == 0 {
		return nil, errors.New("no command")
	}

	return list, nil
}

// newExec returns the command that consists of words.
func newExec(words []word, x expander) (e exec, err error) {
	// Prefix characters can be combined in any order.
	program, named := words[0].text, false
	for program != "" && strings.ContainsRune("@-:+!|", rune(program[0])) {
		switch program[0] {
		case '-':
			e.forgiven = true
		case ':':
			e.literal = true
		case '@':
			named = true
		case '+', '!':
			e.privileged = true
		case '|':
			return e, errors.New("the prefix |, which starts the login shell of the user, is not supported: name the shell")
		}

		program = program[1:]
	}
	words[0].text = program

	for i := range words {
		if words[i].text, err = x.expandSpecifiers(words[i].text); err != nil {
			return e, err
		}
	}

	switch program = words[0].text; {
	case program == "":
		return e, errors.New("no command")
	case strings.HasPrefix(program, "$") || strings.Contains(program, "/") && program[0] != '/':
		return e, fmt.Errorf("%s is not a program: systemd requires an absolute path, or a name without a variable", quoteShort(program))
	}

	// With @, the second word is argv[0] of the program.
	if named && len(words) > 1 {
		e.name = words[1].text
		words = append(words[:1], words[2:]...)
	}
	e.words = words

	return e, nil
}

// variablePattern matches what systemd takes for a reference to a variable within a word, and the escape $$.
var variablePattern = regexp.MustCompile(`\$\$|\$\{[^}:]*\}`)

// variableName returns the name in a reference of the form ${NAME}, or "" if no variable can have it.
func variableName(reference string) string {
	if name := strings.Trim(reference, "${}"); shellName.MatchString(name) && reference == "${"+name+"}" {
		return name
	}
	return ""
}

// variables returns the names of the variables to which a command refers.
func (e exec) variables() (names []string) {
	if e.literal {
		return nil
	}

	for _, w := range e.words {
		if e.isSingleVariable(w) {
			names = append(names, w.text[1:])
			continue
		}
		for _, m := range variablePattern.FindAllString(w.text, -1) {
			if name := variableName(m); name != "" {
				names = append(names, name)
			}
		}
	}

	return names
}

// plainWords returns the words of a command, or nil if it contains variables.
func (e exec) plainWords() (list []string) {
	if len(e.variables()) > 0 {
		return nil
	}

	for _, w := range e.words {
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
	return !e.literal && strings.HasPrefix(w.text, "$") && !strings.HasPrefix(w.text, "$$") && !strings.HasPrefix(w.text, "${")
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
		if at[0] > last {
			b.WriteString(shellQuote(w.text[last:at[0]]))
		}

		if m := w.text[at[0]:at[1]]; m == "$$" {
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

// errUnknownEscape is the error for a backslash that does not begin an escape. In commands, systemd keeps it.
var errUnknownEscape = errors.New("unknown escape")

// readEscape returns the text of a C escape, whose backslash comes before text, and how many bytes it has.
func readEscape(text string) (value string, n int, err error) {
	if text == "" {
		return "", 0, fmt.Errorf("ends with a backslash: %w", errUnknownEscape)
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
			return "", 0, fmt.Errorf(`\%c is not followed by the digits of a character: %w`, text[0], errUnknownEscape)
		case digits <= 3 && code < utf8.RuneSelf:
			return string([]byte{byte(code)}), skip + digits, nil
		case digits > 3 && utf8.ValidRune(rune(code)):
			return string(rune(code)), skip + digits, nil
		}

		return "", 0, fmt.Errorf(`the escape \%s is not supported: write the character`, text[:skip+digits])
	}

	return "", 0, fmt.Errorf(`\%c: %w`, text[0], errUnknownEscape)
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

// splitWords splits a line as systemd does, with quotes and C escapes. In a command, a backslash that does not begin an
// escape remains, and \; is an argument instead of the end of the command.
func splitWords(text string, command bool) (words []word, err error) {
	var b strings.Builder
	var quote byte
	within, quoted := false, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case command && !within && strings.HasPrefix(text[i:], `\;`) && strings.TrimLeft(text[i+2:min(i+3, len(text))], " \t") == "":
			words = append(words, word{";", true})
			i++
		case c == '\\':
			escaped, n, err := readEscape(text[i+1:])
			if command && errors.Is(err, errUnknownEscape) {
				escaped, err = text[i:min(i+2, len(text))], nil
				n = len(escaped) - 1
			}
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

// splitValue splits the value of a variable that is an argument of its own. It removes quotes, and backslashes before
// other characters.
func splitValue(text string) (words []string) {
	var b strings.Builder
	var quote rune
	within, escaped := false, false
	for _, c := range text {
		switch {
		case escaped:
			b.WriteRune(c)
			escaped = false
		case c == '\\':
			escaped, within = true, true
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, within = c, true
		case quote == 0 && strings.ContainsRune(" \t\n\r", c):
			if within {
				words = append(words, b.String())
			}
			b.Reset()
			within = false
		default:
			b.WriteRune(c)
			within = true
		}
	}

	if within {
		words = append(words, b.String())
	}

	return words
}
