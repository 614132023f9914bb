package task

import (
	"maps"
	"net/textproto"
	"slices"
	"strings"
)

// ownHeaders are the headers that Carillon or the protocol sets.
var ownHeaders = []string{
	"Host", "Connection", "Keep-Alive", "Content-Length", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Http2-Settings", "Expect",
	"Accept-Encoding", "Idempotency-Key", "Traceparent",
}

// ownHeaderPrefixes are the prefixes of such headers.
var ownHeaderPrefixes = []string{"Proxy-", "Carillon-", "X-Carillon-"}

// CheckHeaderName checks the name of a request header that a user sets.
func CheckHeaderName(field, name string) error {
	if name == "" {
		return Invalid(CodeRequired, field, "contains a header without a name")
	}
	if strings.ContainsFunc(name, func(r rune) bool { return !isTokenRune(r) }) || len(name) > 256 {
		return Invalid(CodeBadName, field, "%s is not the name of a header: letters, digits and !#$%%&'*+-.^_`|~, at most 256 bytes", Quote(name))
	}

	canonical := textproto.CanonicalMIMEHeaderKey(name)
	if slices.Contains(ownHeaders, canonical) || slices.ContainsFunc(ownHeaderPrefixes, func(p string) bool { return strings.HasPrefix(canonical, p) }) {
		return Invalid(CodeBadName, field, "%s is set by Carillon or by the protocol", Quote(name))
	}

	return nil
}

// isTokenRune reports whether a character may occur in the name of a header (RFC 9110).
func isTokenRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r < 0x7f && strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// validateHeaders checks the request headers.
func (h *HTTP) validateHeaders(field string) error {
	if len(h.Headers) > MaxHeaders {
		return Invalid(CodeTooMany, field, "has %d headers; at most %d are allowed", len(h.Headers), MaxHeaders)
	}

	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		if err := CheckHeaderName(field, name); err != nil {
			return err
		}

		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if other, is := seen[canonical]; is {
			return Invalid(CodeDuplicate, field+"."+name, "is the same header as %s", Quote(other))
		}
		seen[canonical] = name

		if err := h.checkAuthHeader(field+"."+name, canonical); err != nil {
			return err
		}
		if err := checkHeaderValue(field+"."+name, h.Headers[name]); err != nil {
			return err
		}
	}

	return nil
}

// checkAuthHeader refuses a header that auth sets.
func (h *HTTP) checkAuthHeader(field, canonical string) error {
	switch {
	case h.Auth == nil:
		return nil
	case canonical == "Authorization":
		return Invalid(CodeBadValue, field, "cannot be combined with action.http.auth")
	case h.Auth.Signature != "" && strings.HasPrefix(canonical, "Webhook-"):
		return Invalid(CodeBadValue, field, "is set by action.http.auth.signature")
	}

	return nil
}

// checkHeaderValue checks the value of a header, and its templates.
func checkHeaderValue(field, value string) error {
	if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return Invalid(CodeBadValue, field, "contains a line break or another control character")
	}
	if value != strings.TrimSpace(value) {
		return Invalid(CodeBadValue, field, "%s begins or ends with a space, which a header value cannot", Quote(value))
	}

	return checkTemplate(field, value)
}
