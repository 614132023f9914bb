package httpaction

import (
	"github.com/carillonhq/carillon/executor/process"
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
	kindTLS                        // the certificate of the target could not be verified
	kindHost                       // the node could not do its part
	kindTooLate                    // the executor refused the start
	kindNoRules                    // the policy of the node cannot be read
	kindKilled                     // the executor ordered the end
)

// finalReasons are the reasons of failures that another attempt does not mend. They are not free.
var finalReasons = map[failureKind]string{
	kindPolicy: task.ReasonPolicy, kindURL: task.ReasonURL, kindSecret: task.ReasonSecret, kindTLS: task.ReasonTLS, kindHost: task.ReasonHost,
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
	repeatable bool // the first request may be sent again although it is not known what became of it
}

// Parts of messages.
const (
	unknownFate = "the request had been sent, and it is not known what its target made of it"
	notSent     = process.NotSentPrefix
)

// resultOf returns the result of an attempt without a complete response. It is the whole rule about what is known:
//
//	nothing written   killed, too late, no rules      not started: the token is unused
//	                  policy, url, secret, tls, host  failed with that reason
//	                  all others                      failed, unsent
//	written           cancelled                       cancelled
//	                  daemon stopped                  failed if repeatable, otherwise lost
//	                  node silent, record gone        lost
//	                  all others, not repeatable      lost, unanswered
//	                  policy, url, secret, tls, host  failed with that reason
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

// unwrittenResult returns the result of an attempt of which nothing was written.
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
