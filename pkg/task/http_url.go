package task

import (
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// maxURL is the maximum length of the URL of an action in bytes, before its templates are expanded.
const maxURL = 4096

// URLSecret returns NAME/KEY if the whole URL comes from a secret.
func (h *HTTP) URLSecret() (ref string, ok bool) { return strings.CutPrefix(h.URL, SecretRefPrefix) }

// checkURL checks the URL of an action: a template, or a reference to a secret.
func checkURL(field, s string) error {
	if ref, ok := strings.CutPrefix(s, SecretRefPrefix); ok {
		return checkSecretRef(field, ref)
	}

	switch {
	case s == "":
		return Invalid(CodeRequired, field, "is required")
	case len(s) > maxURL:
		return Invalid(CodeTooLong, field, "is %d bytes long; at most %d are allowed", len(s), maxURL)
	}

	t, err := ParseTemplate(s)
	if err != nil {
		return templateError(field, err)
	}

	if err := checkURLPlaces(field, t); err != nil {
		return err
	}

	// The values of references will be escaped, so a letter can represent any of them.
	plain, _ := t.Expand(func(string) (string, error) { return "x", nil })
	_, err = ParsePlainURL(field, plain)

	return err
}

// checkURLPlaces checks that references occur only in path segments and in the values of the query.
func checkURLPlaces(field string, t Template) error {
	before := "" // the URL up to the current part, with "x" for each reference

	for _, p := range t {
		if p.Ref == "" {
			before += p.Text
			continue
		}

		_, rest, _ := strings.Cut(before, "://")
		at := strings.IndexAny(rest, "/?")
		query := strings.LastIndexAny(rest, "?&")

		switch {
		case at < 0:
			return Invalid(CodeBadValue, field, "%s is in the scheme, host or port; templates are allowed only in path segments and in values of the query", Quote("${"+p.Ref+"}"))
		case strings.Contains(rest, "?") && !strings.Contains(rest[query:], "="):
			return Invalid(CodeBadValue, field, "%s is in a name of the query; templates are allowed only in path segments and in values of the query", Quote("${"+p.Ref+"}"))
		}

		before += "x"
	}

	return nil
}

// ParsePlainURL parses a URL without templates: http or https, with a host, without credentials and a fragment. An
// error does not contain the URL's credentials.
func ParsePlainURL(field, s string) (*url.URL, error) {
	if i := strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\\' }); i >= 0 {
		return nil, Invalid(CodeBadValue, field, "contains %s, which a URL must contain in its escaped form: %%%02X", strconv.QuoteToASCII(s[i:i+1]), s[i])
	}
	if strings.Contains(s, "#") {
		return nil, Invalid(CodeBadValue, field, "contains a fragment (#…), which is never sent; write %%23 for a # in the path or in the query")
	}

	u, err := url.Parse(s)
	if err != nil {
		var parse *url.Error // contains the whole URL, which the message must not
		if errors.As(err, &parse) {
			err = parse.Err
		}
		return nil, Invalid(CodeBadValue, field, "is not a URL: %s", err)
	}

	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, Invalid(CodeBadValue, field, "must begin with http:// or https://")
	case u.User != nil:
		return nil, Invalid(CodeBadValue, field, "contains credentials; use auth, which reads them from a secret")
	case u.Opaque != "" || u.Hostname() == "":
		return nil, Invalid(CodeBadValue, field, "%s has no host", Quote(s))
	}

	if err := checkHostPort(field, u); err != nil {
		return nil, err
	}

	return u, nil
}

// checkHostPort checks the host and the port of a URL.
func checkHostPort(field string, u *url.URL) error {
	host := u.Hostname()

	if strings.HasPrefix(u.Host, "[") {
		if a, err := netip.ParseAddr(host); err != nil || a.Zone() != "" {
			return Invalid(CodeBadValue, field, "%s is not an IPv6 address without a zone", Quote(host))
		}
	} else if len(host) > 253 || !isHostName(host) {
		return Invalid(CodeBadValue, field, "%s is not a host: a name in its ASCII form, or an address", Quote(host))
	}

	port := u.Port()
	if port == "" && !strings.HasSuffix(u.Host, ":") {
		return nil
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return Invalid(CodeOutOfRange, field, "port %s is not between 1 and 65535", Quote(port))
	}

	return nil
}

// isHostName reports whether a host is a name in its ASCII form, or an IPv4 address: labels of letters, digits, "_" and
// "-" with single dots between them, which do not begin or end with "-". A dot may follow the last label. It is on the
// path of every HTTP attempt, so it is not a regular expression.
func isHostName(host string) bool {
	for label := range strings.SplitSeq(strings.TrimSuffix(host, "."), ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}

		for i := range len(label) {
			switch c := label[i]; {
			case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
			default:
				return false
			}
		}
	}

	return true
}
