package httpaction

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/policy"
	"github.com/carillonhq/carillon/pkg/task"
)

// explain returns why an attempt has no complete response.
func (t *attempt) explain(ctx context.Context, err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok && f.kind == kindNoRules {
		return f
	}
	if refused := t.gate.refusedStart(); refused != nil {
		return &failure{kind: kindTooLate, message: refused.Error()}
	}

	closed := t.gate.closedFor()
	if errors.Is(closed, errKilled) {
		<-ctx.Done() // the gate may know of the kill before watchOrders has noted its cause
	}

	switch {
	case t.killed.Load() != int32(process.CauseNone):
		return &failure{kind: kindKilled, message: "cancelled before the start", cause: process.Cause(t.killed.Load())}
	case errors.Is(err, errDiskLimit):
		return &failure{kind: kindHost, message: errDiskLimit.Error()}
	case errors.Is(context.Cause(ctx), errTimeout), errors.Is(err, errTimeout), errors.Is(closed, errPastDue):
		what := "no complete response within "
		if t.gate.began().IsZero() {
			what = "no connection within "
		}
		return &failure{kind: kindTimeout, message: t.subject() + what + task.Duration(t.timeout).String(), own: true}
	case errors.Is(err, errKeepBody):
		return &failure{kind: kindHost, message: err.Error()}
	}

	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if refusal, ok := errors.AsType[*policy.Refusal](err); ok {
		return &failure{kind: kindPolicy, message: t.subject() + refusal.Error()}
	}
	if why, is := certificateError(err); is {
		return &failure{kind: kindTLS, message: t.subject() + why}
	}

	return &failure{kind: kindNetwork, message: t.subject() + t.describeError(err), own: isAlert(err)}
}

// isAlert reports whether the target has ended the TLS handshake, for example because of the client's certificate.
func isAlert(err error) bool {
	op, is := errors.AsType[*net.OpError](err)
	return is && op.Op == "remote error"
}

// subject returns the target as the beginning of a message.
func (t *attempt) subject() string {
	if t.url == nil {
		return ""
	}
	return targetOf(t.url) + ": "
}

// certificateError returns why the certificate of a target could not be verified. is is false for other errors.
func certificateError(err error) (why string, is bool) {
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return e.Err.Error(), true
	}

	// Without a connection of TLS, the verification returns its own errors.
	if e, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return e.Error(), true
	}
	if e, ok := errors.AsType[x509.HostnameError](err); ok {
		return e.Error(), true
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		return e.Error(), true
	}

	return "", false
}

// describeError describes an error of the network to people. Errors of net/http may contain what the target has sent, so
// the text is masked, and then shortened and cleaned: a part of a secret could not be recognized.
func (t *attempt) describeError(err error) string {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return "cannot resolve the name: " + dns.Err
	}

	op, isOp := errors.AsType[*net.OpError](err)
	errno, isErrno := errors.AsType[syscall.Errno](err)
	var timeout net.Error

	switch {
	case isOp && op.Op == "dial" && isErrno:
		return "cannot connect: " + errno.Error()
	case isOp && op.Op == "dial" && errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("cannot connect: no answer within %s", dialLimit)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, errOtherConn), errors.Is(err, errStaleConn),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return "the connection was closed before a complete response arrived"
	case isErrno:
		return errno.Error()
	}

	return cleanText(withoutJargon(t.mask.Apply(err.Error())))
}

// withoutJargon returns an error of net/http about a response in words for people who do not know net/http.
func withoutJargon(text string) string {
	text, malformed := strings.CutPrefix(text, "net/http: HTTP/1.x transport connection broken: ")
	text = strings.TrimPrefix(text, "net/http: ")

	switch {
	case strings.Contains(text, "server response headers exceeded"):
		return fmt.Sprintf("the headers of the response are larger than %s", task.Size(maxHeaderBytes))
	case malformed, text == "invalid byte in chunk length", text == "malformed chunked encoding":
		return "the response is not valid HTTP: " + text
	}

	return text
}

// cleanText makes a text that others have written fit for a message.
func cleanText(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))

	if len(s) > maxErrorBytes {
		s = strings.ToValidUTF8(s[:maxErrorBytes], "") + "…"
	}

	return s
}
