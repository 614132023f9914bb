package importer

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/textproto"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

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
