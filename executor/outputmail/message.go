package outputmail

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"mime"
	"mime/quotedprintable"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// maxBody is how much of the output a mail contains.
	maxBody = 1 << 20
	// maxHeader is the maximum length of the command in the subject, and of other texts in headers. A line of a mail has at
	// most maxLine bytes.
	maxHeader = 500
	maxLine   = 998
)

// composeEnd returns the arguments of sendmail and the mail about an end. The subject, the body and most headers are those of cron.
func (m *Mailer) composeEnd(e *End) (args []string, text []byte, err error) {
	a, p := &e.Attempt, e.Attempt.Action.Process

	name, home, err := m.cfg.Programs.Account(p)
	if err != nil {
		return nil, nil, err
	}

	body, more, err := m.readOutput(a)
	if err != nil {
		return nil, nil, err
	}

	switch {
	case len(body) == 0:
		body = fmt.Appendf(nil, "[carillon: the run printed nothing that is stored; it ended as %s%s]\n", e.Run.State, howEnded(&e.Run))
	case more:
		body = fmt.Appendf(body, "\n[carillon: the mail is cut after %d bytes; to read all of the output: carillon logs -n %s %s]\n", maxBody, a.Namespace, a.ID)
	}

	// The variables of the task, over those that each process has. Those of a request, of secrets and of files are left out.
	env := map[string]string{"SHELL": "/bin/sh", "PATH": "/usr/bin:/bin", "HOME": home, "LOGNAME": name}
	maps.Copy(env, p.Env)

	h := headers{}
	h.addEnvelope(a.Output.MailFrom, name, a.Output.Mail)
	h.add("Subject", encodeHeader(fmt.Sprintf("Cron <%s@%s> %s", name, m.host, commandText(p))))
	body, eightBit := h.addContent(env["CONTENT_TYPE"], env["CONTENT_TRANSFER_ENCODING"], body)
	h.add("X-Carillon-Run", a.Namespace+"/"+a.Task+" "+a.ID)

	for _, k := range slices.Sorted(maps.Keys(env)) {
		h.add("X-Cron-Env", "<"+cutHeader(k+"="+env[k])+">")
	}

	return sendmailArgs(a.Output.MailFrom, a.Output.Mail, eightBit), append(append(h.text, '\n'), body...), nil
}

// howEnded describes the end of a run that printed nothing.
func howEnded(r *task.Run) string {
	switch {
	case r.ExitCode != nil:
		return fmt.Sprintf(": exit code %d", *r.ExitCode)
	case r.Signal != "":
		return ": " + r.Signal
	}

	return ""
}

// composeCounts is composeEnd for the mail about the ends of a window that were not mailed.
func (m *Mailer) composeCounts(c *counted) (args []string, text []byte, err error) {
	name, limit := m.cfg.Node, fmt.Sprintf("a node sends at most %d mails with output a minute", perNode)
	what, to, read := "tasks on node "+m.cfg.Node, []string(nil), "carillon logs TASK"
	if c.task != "" {
		if name, _, err = m.cfg.Programs.Account(c.process); err != nil {
			return nil, nil, err
		}

		what, to, limit = c.namespace+"/"+c.task, c.mail, fmt.Sprintf("a node sends at most %d mails with the output of a task a minute", perTask)
		read = fmt.Sprintf("carillon logs -n %s %s --since %s", c.namespace, c.task, c.from.UTC().Format(time.RFC3339))
	}

	h := headers{}
	if c.task == "" {
		name = "carillon"
	}
	h.addEnvelope(c.sender, name, to)
	h.add("Subject", encodeHeader(fmt.Sprintf("Cron <%s@%s> %d more runs of %s with output", name, m.host, c.runs, what)))
	body, _ := h.addContent("", "", fmt.Appendf(nil, "%d more runs of %s ended between %s and %s. Their output was not mailed: %s.\nTo read it: %s\n",
		c.runs, what, c.from.UTC().Format(time.RFC3339), c.to.UTC().Format(time.RFC3339), limit, read))

	return sendmailArgs(c.sender, c.mail, false), append(append(h.text, '\n'), body...), nil
}

// sendmailArgs returns the arguments of sendmail. Without -t, it takes recipients only from its arguments.
func sendmailArgs(from string, to []string, eightBit bool) []string {
	args := []string{"-i"}
	if eightBit {
		args = append(args, "-B8BITMIME")
	}
	if from != "" {
		args = append(args, "-f", from)
	}

	return append(append(args, "--"), to...)
}

// headers builds the headers of a mail.
type headers struct{ text []byte }

// add adds a header. The value contains no line break that does not continue the header.
func (h *headers) add(name, value string) { h.text = fmt.Appendf(h.text, "%s: %s\n", name, value) }

// addEnvelope adds the sender and the recipients; none means that they are not disclosed to each other.
func (h *headers) addEnvelope(from, user string, to []string) {
	h.add("From", `"Carillon" <`+cmp.Or(from, user)+">")

	list := strings.Join(to, ", ")
	switch {
	case len(to) == 0:
		list = "undisclosed-recipients:;"
	case len(list) > 70:
		list = strings.Join(to, ",\n ")
	}
	h.add("To", list)
}

// addContent adds the headers that every mail has, and returns the encoded body, and whether it contains bytes beyond ASCII. A task can
// set the type as it does for cron. The body is encoded only if lines are too long for a mail, or contain NUL.
func (h *headers) addContent(contentType, encoding string, body []byte) (encoded []byte, eightBit bool) {
	encoding = cutHeader(encoding)
	if encoding == "" {
		encoding = "8bit"
		if !fitsMail(body) {
			var b bytes.Buffer
			w := quotedprintable.NewWriter(&b)
			_, _ = w.Write(body) // a bytes.Buffer has no errors
			_ = w.Close()
			body, encoding = bytes.ReplaceAll(b.Bytes(), []byte("\r\n"), []byte("\n")), "quoted-printable"
		}
	}

	h.add("MIME-Version", "1.0")
	h.add("Content-Type", cmp.Or(cutHeader(contentType), "text/plain; charset=UTF-8"))
	h.add("Content-Transfer-Encoding", encoding)
	h.add("Auto-Submitted", "auto-generated")
	h.add("Precedence", "bulk")

	return body, bytes.IndexFunc(body, func(c rune) bool { return c >= utf8.RuneSelf }) >= 0
}

// fitsMail reports whether a body can be a part of a mail as it is.
func fitsMail(body []byte) bool {
	for line := range bytes.Lines(body) {
		if len(line) > maxLine || bytes.IndexByte(line, 0) >= 0 {
			return false
		}
	}

	return true
}

// commandText returns the first line of the command of a process. A crontab with another shell than sh has become a command with
// "-c", and cron shows only the line.
func commandText(p *task.Process) string {
	text := p.Shell
	switch {
	case text != "":
	case len(p.Command) == 3 && p.Command[1] == "-c":
		text = p.Command[2]
	default:
		text = strings.Join(p.Command, " ")
	}

	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")

	return line
}

// cutHeader returns a text as it can be a part of a header: one line without control characters, of limited length.
func cutHeader(text string) string {
	text = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(text, "\uFFFD"))

	if len(text) > maxHeader {
		text = strings.ToValidUTF8(text[:maxHeader], "") + "…"
	}

	return text
}

// encodeHeader encodes a text for a header if it is not ASCII (RFC 2047), in lines that are short enough.
func encodeHeader(text string) string {
	return strings.ReplaceAll(mime.QEncoding.Encode("utf-8", cutHeader(text)), "?= =?", "?=\n =?")
}
