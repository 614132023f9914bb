package importer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/textproto"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/carillonhq/carillon/pkg/task"
)

// setShell converts the executor shell.
func (d *dkronConversion) setShell(s *task.Spec) error {
	p := &task.Process{Dir: d.config("cwd")}
	command := d.config("command")

	// Only with shell does the command see a shell. Otherwise Dkron splits it into words.
	if useShell, err := strconv.ParseBool(d.config("shell")); err == nil && useShell {
		p.Shell = command
	} else if p.Command, err = dkronWords(command); err != nil {
		return fmt.Errorf("command: %w", err)
	}

	if p.Shell == "" && len(p.Command) == 0 {
		return errors.New("has no command")
	}

	if err := d.setShellEnv(p, command); err != nil {
		return err
	}
	if err := d.setShellUser(p); err != nil {
		return err
	}
	if err := d.setPayload(p); err != nil {
		return err
	}

	if text := d.config("timeout"); text != "" {
		timeout, err := time.ParseDuration(text)
		if err != nil || timeout < 0 {
			return fmt.Errorf("timeout: Dkron rejects %s", quoteShort(text))
		}
		s.Timeout = task.Duration(timeout)
	}

	if text := d.config("mem_limit"); text != "" {
		size, err := dkronMemory(text)
		if err != nil {
			return fmt.Errorf("mem_limit: %w", err)
		}
		p.Limits.Memory = size
		d.addNote("mem_limit: the kernel enforces limits.memory, which requires control groups; Dkron checks it each second")
	}

	s.Action.Process = p
	d.noteConfig("shell", "command", "env", "cwd", "timeout", "mem_limit", "su", "payload")

	return nil
}

// setShellEnv converts the variables: NAME=value, separated by commas. Dkron also sets ENV_JOB_NAME.
func (d *dkronConversion) setShellEnv(p *task.Process, command string) error {
	env := map[string]string{}

	for pair := range strings.SplitSeq(d.config("env"), ",") {
		name, value, ok := strings.Cut(pair, "=")
		switch {
		case pair == "":
		case !ok || name == "":
			d.addNote("env: %s is omitted, because it is not NAME=value; values cannot contain commas in Dkron", quoteShort(pair))
		default:
			env[name] = value
		}
	}

	if strings.Contains(command, "ENV_JOB_NAME") {
		env["ENV_JOB_NAME"] = d.Name
	}

	if len(env) > 0 {
		p.Env = env
	}

	return task.CheckEnv("env", env)
}

// setShellUser converts the user, and the group after a colon.
func (d *dkronConversion) setShellUser(p *task.Process) error {
	su := d.config("su")
	if su == "" {
		return nil
	}

	var ok bool
	p.User, p.Group, ok = strings.Cut(su, ":")
	if p.User == "" || ok && (p.Group == "" || strings.Contains(p.Group, ":")) {
		return fmt.Errorf("su: %s is not USER or USER:GROUP", quoteShort(su))
	}

	d.addNote("su: it also has the supplementary groups of the user, unlike in Dkron; to have none, set action.process.groups: []")

	return nil
}

// setPayload converts the standard input.
func (d *dkronConversion) setPayload(p *task.Process) error {
	payload, err := base64.StdEncoding.DecodeString(d.config("payload"))
	switch {
	case err != nil:
		return errors.New("payload: Dkron rejects it, because it is not base64")
	case len(payload) == 0:
		return nil
	case !utf8.Valid(payload):
		return errors.New("payload: is not text; store it in a file and set action.process.stdin.file")
	case len(payload) > task.MaxStdinText:
		return fmt.Errorf("payload: is longer than %d bytes; store it in a file and set action.process.stdin.file", task.MaxStdinText)
	}

	p.Stdin = &task.Stdin{Text: string(payload)}

	return nil
}

// dkronWords splits a command as Dkron does without a shell: at spaces, outside quotes. A backslash quotes the next
// character, except in single quotes; \t and \n are a tab and a line break. Nothing is expanded. What is in backquotes or
// $(…) is one word, as it is.
func dkronWords(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	var quote rune // ', ", ` or ) while a quotation is open
	escaped, started := false, false

	for _, c := range line {
		switch {
		case escaped:
			switch c {
			case 't':
				c = '\t'
			case 'n':
				c = '\n'
			}
			escaped, started = false, true
			word.WriteRune(c)
		case c == '\\' && quote != '\'':
			escaped = true
		case quote != 0:
			if c != quote || quote == '`' || quote == ')' {
				word.WriteRune(c)
			}
			if c == quote {
				quote = 0
			}
		case strings.ContainsRune(" \t\r\n", c):
			if started {
				words = append(words, word.String())
			}
			word.Reset()
			started = false
		case c == '\'' || c == '"':
			quote, started = c, true
		case strings.ContainsRune(";&|<>", c):
			return nil, fmt.Errorf("without shell, Dkron ignores what follows the %c; set shell, or remove it", c)
		case c == '(' && strings.HasSuffix(word.String(), "$"):
			quote = ')'
			word.WriteRune(c)
		case c == '(' || c == ')':
			return nil, fmt.Errorf("without shell, Dkron rejects %c", c)
		default:
			if c == '`' {
				quote = c
			}
			started = true
			word.WriteRune(c)
		}
	}

	if escaped || quote != 0 {
		return nil, errors.New("Dkron rejects it, because a quotation is not closed")
	}
	if started {
		words = append(words, word.String())
	}

	return words, nil
}

// memoryForm matches an amount of memory: a number with or without a unit.
var memoryForm = regexp.MustCompile(`^([0-9.]+)(|B|BYTES|KB?|MB?|GB?|TB?)$`)

// dkronMemory converts an amount of memory. Its units are powers of 1024.
func dkronMemory(text string) (task.Size, error) {
	m := memoryForm.FindStringSubmatch(strings.ToUpper(strings.TrimSpace(text)))
	if m == nil {
		return 0, fmt.Errorf("Dkron rejects %s", quoteShort(text))
	}

	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, fmt.Errorf("Dkron rejects %s", quoteShort(text))
	}

	if at := strings.IndexAny("KMGT", m[2][:min(1, len(m[2]))]); at >= 0 {
		n *= math.Pow(1024, float64(at+1))
	}

	const most = 1 << 50
	if n < 1 || n > most {
		return 0, fmt.Errorf("%s is not between 1 byte and 1024 TB", quoteShort(text))
	}

	return task.Size(n), nil
}

// dkronHTTPTimeout is the timeout of a request in Dkron that has none, or none that is a number.
const dkronHTTPTimeout = 30 * time.Second

// setHTTP converts the executor http.
func (d *dkronConversion) setHTTP(s *task.Spec) error {
	if d.config("url") == "" {
		return errors.New("has no url")
	}
	if d.config("method") == "" {
		return errors.New("has no method")
	}

	h := &task.HTTP{
		Method:    strings.ToUpper(d.config("method")),
		URL:       escapeTemplate(d.config("url")),
		Body:      d.config("body"),
		Redirects: task.MaxRedirects, // Dkron follows up to ten
	}

	// These would be read as references to secrets.
	for _, field := range []string{"url", "body"} {
		if strings.HasPrefix(d.config(field), task.SecretRefPrefix) {
			return fmt.Errorf("%s: a value that begins with %s is not supported", field, task.SecretRefPrefix)
		}
	}

	if err := d.checkHTTPFiles(h); err != nil {
		return err
	}
	if err := d.setHTTPHeaders(h); err != nil {
		return err
	}
	if err := d.setHTTPExpect(h); err != nil {
		return err
	}

	d.setHTTPTimeout(s)
	if d.Retries > 0 && !h.MayRepeat() {
		d.addNote("a %s that was sent but not answered is lost, and not repeated; to repeat it, as Dkron does, set action.http.idempotent: true", h.Method)
	}

	s.Action.HTTP = h
	d.noteConfig("method", "url", "headers", "body", "timeout", "expectCode", "expectBody",
		"tlsNoVerifyPeer", "tlsCertificateFile", "tlsCertificateKeyFile", "tlsRootCAsFile")

	return nil
}

// escapeTemplate returns a template that stands for the text itself.
func escapeTemplate(text string) string { return strings.ReplaceAll(text, "${", "$${") }

// checkHTTPFiles refuses what would make the target untrusted or unreachable: certificates in files of the node, and
// servers that are not verified.
func (d *dkronConversion) checkHTTPFiles(h *task.HTTP) error {
	if strings.HasPrefix(strings.ToLower(h.URL), "http:") {
		return nil // without TLS, they have no effect
	}

	for _, f := range []struct{ key, field string }{{"tlsCertificateFile", "cert"}, {"tlsRootCAsFile", "ca"}} {
		if d.config(f.key) != "" {
			return fmt.Errorf("%s: files of the node are not supported: store the certificate in a secret, and set action.http.tls.%s", f.key, f.field)
		}
	}

	if skip, err := strconv.ParseBool(d.config("tlsNoVerifyPeer")); err == nil && skip {
		return errors.New("tlsNoVerifyPeer: servers are always verified: store the certificate of its CA in a secret, and set action.http.tls.ca")
	}

	return nil
}

// setHTTPHeaders converts the headers: a JSON list of "Name: value", as text.
func (d *dkronConversion) setHTTPHeaders(h *task.HTTP) error {
	text := d.config("headers")
	if text == "" {
		return nil
	}

	var lines []string
	if err := json.Unmarshal([]byte(text), &lines); err != nil {
		return fmt.Errorf("headers: %s is not a JSON list of texts", quoteShort(text))
	}

	headers := map[string]string{}
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		canonical := textproto.CanonicalMIMEHeaderKey(name)

		switch {
		case line == "":
			continue
		case !ok:
			return errors.New("headers: an item has no colon, which makes Dkron fail")
		case strings.Contains(value, ":"):
			d.addNote("the header %s is sent in full; Dkron cuts it off at the second colon", quoteShort(name))
		}

		if err := task.CheckHeaderName("headers", name); err != nil {
			d.addNote("the header %s is omitted: %v", quoteShort(name), err)
			continue
		}
		if isCredential(canonical) {
			d.addNote("the header %s is part of the task, which others can read; better use a secret: ${secret:NAME/KEY}", quoteShort(name))
		}

		headers[canonical] = escapeTemplate(value)
	}

	if len(headers) > 0 {
		h.Headers = headers
	}

	return nil
}

// credentialHeader matches the names of headers that usually contain credentials.
var credentialHeader = regexp.MustCompile(`(?i)^(authorization|cookie)$|token|secret|password|api-?key`)

// isCredential reports whether a header probably contains credentials.
func isCredential(name string) bool { return credentialHeader.MatchString(name) }

// statusForm matches a status code.
var statusForm = regexp.MustCompile(`^[2-5][0-9][0-9]$`)

// setHTTPExpect converts what counts as success. Without expectCode, any response does.
func (d *dkronConversion) setHTTPExpect(h *task.HTTP) error {
	codes := d.config("expectCode")
	if codes == "" {
		h.Expect.Status = []string{"2xx", "3xx", "4xx", "5xx"}
		d.addNote("no expectCode: any response counts as success, as in Dkron, even an error; better set action.http.expect.status")
	}

	seen := map[string]bool{}
	for code := range strings.SplitSeq(codes, ",") {
		code = strings.TrimSpace(code)
		switch {
		case code == "" || seen[code]:
		case !statusForm.MatchString(code):
			return fmt.Errorf("expectCode: %s is not a status code from 200 to 599", quoteShort(code))
		default:
			seen[code] = true
			h.Expect.Status = append(h.Expect.Status, code)
		}
	}

	// Dkron searches the body for the expression, as Carillon does.
	h.Expect.Body = d.config("expectBody")
	if _, err := regexp.Compile(h.Expect.Body); err != nil {
		return fmt.Errorf("expectBody: Dkron never accepts a response, because %w", err)
	}

	return nil
}

// setHTTPTimeout converts the timeout, which is in seconds.
func (d *dkronConversion) setHTTPTimeout(s *task.Spec) {
	timeout := dkronHTTPTimeout
	if n, err := strconv.Atoi(d.config("timeout")); err == nil {
		timeout = time.Duration(min(n, 1<<30)) * time.Second
	} else if text := d.config("timeout"); text != "" {
		d.addNote("timeout: Dkron uses %s, because %s is not a number of seconds", dkronHTTPTimeout, quoteShort(text))
	}

	s.Timeout = task.Duration(timeout)
	if timeout <= 0 || s.Timeout > task.MaxHTTPTimeout {
		s.Timeout = task.MaxHTTPTimeout
		d.addNote("timeout: a request has at most %s", task.MaxHTTPTimeout)
	}
}
