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

// failureKind is what prevented a complete response.
type failureKind int

const (
	kindNetwork failureKind = iota // name resolution, connection, TLS handshake, or the connection broke
	kindTimeout                    // the attempt has reached its timeout
	kindPolicy                     // the policy of the node, or a target that is never allowed
	kindURL                        // a template or a redirect gave a URL that must not be requested
	kindSecret                     // a value of a secret could not be read
	kindValues                     // a step of a workflow has no value for a reference
	kindTLS                        // the certificate of the target could not be verified
	kindHost                       // the node could not do its part
	kindTooLate                    // the executor refused the start
	kindNoRules                    // the policy of the node cannot be read
	kindKilled                     // the executor ordered the end
)

// finalReasons are the reasons of failures that another attempt does not mend. They are not free.
var finalReasons = map[failureKind]string{
	kindPolicy: task.ReasonPolicy, kindURL: task.ReasonURL, kindSecret: task.ReasonSecret, kindValues: task.ReasonValues, kindTLS: task.ReasonTLS, kindHost: task.ReasonHost,
}

// failure is the error that ends an attempt without a complete response. Its message contains no value of a secret, and
// no more of a URL than scheme and host.
type failure struct {
	kind    failureKind
	message string
	cause   process.Cause // of kindKilled
	// own means that the settings of the attempt may be the reason, so that other attempts may reach the target.
	own bool
}

func (f *failure) Error() string { return f.message }

// attemptFacts are what is known about an attempt that has failed.
type attemptFacts struct {
	written    bool // a part of a request may have left this host, on any hop
	repeatable bool // the first request may be sent again although its outcome is unknown
}

// Parts of messages.
const (
	unknownFate = "the request had been sent, and it is not known what its target made of it"
	notSent     = process.NotSentPrefix
)

// resultOf returns the result of an attempt without a complete response. It is the whole rule about what is known:
//
//	nothing written   killed, too late, no rules      not started: the token is unused
//	                  one of finalReasons             failed with that reason
//	                  all others                      failed, unsent
//	written           cancelled                       cancelled
//	                  daemon stopped                  failed if repeatable, otherwise lost
//	                  node silent, record gone        lost
//	                  all others, not repeatable      lost, unanswered
//	                  one of finalReasons             failed with that reason
//	                  timeout                         timed out, unanswered
//	                  network, too late, no rules     failed, unanswered
func resultOf(f *failure, facts attemptFacts) process.Result {
	r := process.Result{State: task.Failed, Message: f.message}

	switch {
	case !facts.written:
		return unwrittenResult(f)
	case f.kind == kindKilled:
		return killedResult(f, facts)
	case !facts.repeatable:
		r.State, r.Reason = task.Lost, task.ReasonUnanswered
		r.Message = joinMessages(f.message, unknownFate)
	case finalReasons[f.kind] != "":
		r.Reason = finalReasons[f.kind]
	case f.kind == kindTimeout:
		r.State, r.Reason = task.TimedOut, task.ReasonUnanswered
	default:
		r.Reason = task.ReasonUnanswered
	}

	return r
}

// unwrittenResult returns the result of an attempt that wrote nothing.
func unwrittenResult(f *failure) process.Result {
	r := process.Result{State: task.Failed, Message: f.message}

	switch {
	case f.kind == kindKilled, f.kind == kindTooLate:
		r.Reason, r.NotStarted = task.ReasonStart, true
	case f.kind == kindNoRules:
		// Another node may be able to start it.
		r.Reason, r.NotStarted, r.HandBack = task.ReasonPolicy, true, true
	case finalReasons[f.kind] != "":
		r.Reason = finalReasons[f.kind]
	default:
		r.Reason, r.Unsent, r.TargetUnknown = task.ReasonUnsent, true, f.own
		r.Message = notSent + f.message
	}

	return r
}

// killedResult returns the result of an attempt that was killed after something was written.
func killedResult(f *failure, facts attemptFacts) process.Result {
	r := process.Result{}
	r.SetCause(f.cause, 0)
	r.Message = unknownFate

	switch f.cause {
	case process.CauseShutdown:
		if !facts.repeatable {
			r.State = task.Lost
		}
		r.Message = joinMessages("the daemon stopped before the response arrived", unknownFate)
	case process.CauseSilent:
		r.Message = joinMessages("the node had lost contact with etcd, so another node may start the next attempt", unknownFate)
	case process.CauseGone:
		r.Message = joinMessages("its record no longer exists", unknownFate)
	}

	return r
}

// joinMessages joins two clauses.
func joinMessages(a, b string) string { return a + "; " + b }

// explain returns why an attempt has no complete response.
func (a *attempt) explain(ctx context.Context, err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok && f.kind == kindNoRules {
		return f
	}
	if refused := a.gate.refusedStart(); refused != nil {
		return &failure{kind: kindTooLate, message: refused.Error()}
	}

	closed := a.gate.closedFor()
	if errors.Is(closed, errKilled) {
		<-ctx.Done() // the gate may know of the kill before watchOrders has noted its cause
	}

	switch {
	case a.killed.Load() != int32(process.CauseNone):
		return &failure{kind: kindKilled, message: "cancelled before the start", cause: process.Cause(a.killed.Load())}
	case errors.Is(err, errDiskLimit):
		return &failure{kind: kindHost, message: errDiskLimit.Error()}
	case errors.Is(context.Cause(ctx), errTimeout), errors.Is(err, errTimeout), errors.Is(closed, errPastDue):
		what := "no complete response within "
		if a.gate.began().IsZero() {
			what = "no connection within "
		}
		return &failure{kind: kindTimeout, message: a.subject() + what + task.Duration(a.timeout).String(), own: true}
	case errors.Is(err, errKeepBody):
		return &failure{kind: kindHost, message: err.Error()}
	}

	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if refusal, ok := errors.AsType[*policy.Refusal](err); ok {
		return &failure{kind: kindPolicy, message: a.subject() + refusal.Error()}
	}
	if why, is := certificateError(err); is {
		return &failure{kind: kindTLS, message: a.subject() + why}
	}

	return &failure{kind: kindNetwork, message: a.subject() + a.describeError(err), own: isAlert(err)}
}

// isAlert reports whether the target has ended the TLS handshake, for example because of the client's certificate.
func isAlert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

// subject returns the target as the beginning of a message.
func (a *attempt) subject() string {
	if a.url == nil {
		return ""
	}
	return targetOf(a.url) + ": "
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
func (a *attempt) describeError(err error) string {
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

	return cleanText(withoutJargon(a.mask.Apply(err.Error())))
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
