package importer

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// settings are the variables of a crontab that are in force at a line.
type settings struct {
	env   map[string]string
	zone  string
	delay task.Duration // RANDOM_DELAY

	mailTo   *string // MAILTO; nil: it is not set, so cron mails to the user
	mailFrom string  // MAILFROM
}

// parseAssignment parses NAME = VALUE. Both may be quoted. It returns false if the line is something else. As in
// cron, nothing is expanded.
func parseAssignment(line string) (name, value string, ok bool) {
	name, rest, quoted := cutQuoted(line)
	if !quoted {
		at := strings.IndexAny(line, "= \t")
		if at <= 0 {
			return "", "", false
		}
		name, rest = line[:at], line[at:]
	}

	rest = strings.TrimLeft(rest, " \t")
	if name == "" || !strings.HasPrefix(rest, "=") {
		return "", "", false
	}

	rest = strings.TrimSpace(rest[1:])
	if v, more, quoted := cutQuoted(rest); quoted {
		return name, v, strings.TrimSpace(more) == ""
	}
	if rest != "" && (rest[0] == '"' || rest[0] == '\'') {
		return "", "", false // the quote is not closed
	}

	return name, rest, true
}

// cutQuoted cuts a quoted text off the beginning of a line.
func cutQuoted(line string) (text, rest string, ok bool) {
	if line == "" || line[0] != '"' && line[0] != '\'' {
		return "", line, false
	}
	return strings.Cut(line[1:], line[:1])
}

// applySetting applies a setting to the lines below it.
func (r *crontabReader) applySetting(at Place, name, value string) {
	v := &r.vars

	switch name {
	case "CRON_TZ":
		zone := strings.TrimPrefix(value, ":")
		if zone == "" {
			zone = r.Timezone
		} else if _, err := schedule.Location(zone); err != nil {
			r.result.addRefusal(at, "CRON_TZ: %v; the lines below keep the zone above", err)
			return
		}

		v.zone = zone

		return
	case "RANDOM_DELAY":
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 || n > 24*60 {
			r.result.addRefusal(at, "RANDOM_DELAY: %s is not a number of minutes up to 1440", quoteShort(value))
			return
		}

		v.delay = task.Duration(time.Duration(n) * time.Minute)

		return
	case "LOGNAME":
		return // cron ignores it
	case "MAILTO":
		if v.mailTo = &value; value != "" && !r.advised {
			r.advised = true
			r.result.addNote(at, "MAILTO becomes output.mail; to be notified of jobs that fail or do not run, and only of these, set alerts: {notify: [RECEIVER]}")
		}
		return
	case "MAILFROM":
		v.mailFrom = value
		return
	case "TZ":
		r.result.addNote(at, "TZ is only a variable of the commands, as in cron; to set the time zone of schedules, use CRON_TZ or --timezone")
	}

	if strings.HasPrefix(name, "CARILLON_") {
		r.result.addRefusal(at, "%s: names that begin with CARILLON_ are set by Carillon", name)
		return
	}

	v.env = maps.Clone(v.env) // the jobs above keep the former map
	if v.env == nil {
		v.env = map[string]string{}
	}

	v.env[name] = value
}

// cronPath is the PATH of cron, which is also Carillon's default.
const cronPath = "/usr/bin:/bin"

// processAction returns the action of a line: the command up to the first %, executed by the shell in force. The
// rest of the line is the command's standard input.
func (s settings) processAction(user, command string) (p task.Process, notes []string, err error) {
	// Leave out what Carillon sets in the same way by default.
	env := maps.Clone(s.env)
	shell := env["SHELL"]
	if shell == "" || shell == "/bin/sh" {
		delete(env, "SHELL")
		shell = "/bin/sh"
	}

	if env["PATH"] == cronPath {
		delete(env, "PATH")
	}

	if home := env["HOME"]; path.IsAbs(home) {
		p.Dir = home
	} else if _, set := env["HOME"]; set {
		delete(env, "HOME")
		notes = append(notes, "HOME is not an absolute path; the home directory of the user is used")
	}

	line, input, fed := splitStdin(command)
	if strings.TrimSpace(line) == "" {
		return p, nil, errors.New("no command before the %")
	}

	if fed {
		p.Stdin = &task.Stdin{Text: input}
	}
	if cutsCommand(command) {
		notes = append(notes, cutNote(line))
	}

	p.User, p.Env = user, env
	if len(env) == 0 {
		p.Env = nil
	}

	if shell == "/bin/sh" {
		p.Shell = line
	} else {
		p.Command = []string{shell, "-c", line}
	}

	return p, notes, nil
}

// maxMailTo is how many recipients output.mail can have.
const maxMailTo = 10

// mailOutput sets to whom a job's output is mailed: to MAILTO, or to the user if owner is set and MAILTO is not. Cron mails
// nothing if MAILTO is empty, or contains a character that could be more than a part of an address.
func (s settings) mailOutput(o *task.Output, user string, owner bool) (notes []string) {
	var to string
	switch {
	case s.mailTo != nil:
		to = *s.mailTo
	case owner:
		to = user
	}
	if to == "" {
		return nil
	}

	for address := range strings.SplitSeq(to, ",") {
		if err := task.CheckMailAddress("MAILTO", address); err != nil {
			o.Mail = nil
			return []string{fmt.Sprintf("MAILTO: %s is not imported, because cron mails nothing to it, or expands it: each part must be an address or a user", quoteShort(to))}
		}
		if !slices.Contains(o.Mail, address) {
			o.Mail = append(o.Mail, address)
		}
	}

	if len(o.Mail) > maxMailTo {
		notes = append(notes, fmt.Sprintf("MAILTO has %d recipients, of which only the first %d get mail: use the address of a list", len(o.Mail), maxMailTo))
		o.Mail = o.Mail[:maxMailTo]
	}

	switch err := task.CheckMailAddress("MAILFROM", s.mailFrom); {
	case s.mailFrom == "":
	case err != nil:
		notes = append(notes, fmt.Sprintf("MAILFROM: %s is not imported: it is not an address", quoteShort(s.mailFrom)))
	default:
		o.MailFrom = s.mailFrom
	}

	return notes
}

// splitStdin splits a command from its standard input at the first % without a backslash before it. Further ones
// are line ends, and \% is a %.
func splitStdin(text string) (command, input string, fed bool) {
	var b strings.Builder
	escaped := false
	for i := 0; i < len(text); i++ {
		// escaped means that the previous character was a backslash that is not written yet.
		switch c := text[i]; {
		case escaped && c == '%':
			b.WriteByte('%')
			escaped = false
		case escaped:
			b.WriteByte('\\')

			// In the input, a second backslash may escape the next character. In the command it does not.
			if escaped = fed && c == '\\'; !escaped {
				b.WriteByte(c)
			}
		case c == '\\':
			escaped = true
		case c == '%' && !fed:
			command, fed = b.String(), true
			b.Reset()
		case c == '%':
			b.WriteByte('\n')
		default:
			b.WriteByte(c)
		}
	}

	if escaped {
		b.WriteByte('\\')
	}

	if !fed {
		return b.String(), "", false
	}

	if input = b.String(); input != "" && !strings.HasSuffix(input, "\n") {
		input += "\n"
	}

	return command, input, input != ""
}

// cutsCommand reports whether a command contains a % without a backslash before it.
func cutsCommand(command string) bool {
	return strings.Contains(strings.ReplaceAll(command, `\%`, ""), "%")
}

// cutNote returns the note about a command that ends at a %.
func cutNote(line string) string {
	note := `cron ends the command at the %, and the rest is its standard input; write \% for a %`
	if strings.Count(line, "'")%2 == 1 || strings.Count(line, `"`)%2 == 1 || strings.Count(line, "(") != strings.Count(line, ")") {
		note += ": the command is incomplete, and fails in cron, too"
	}
	return note
}
