package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

// authorizationLag is how long before the time of its audit record a write was authorised at most. Ends by time are judged
// that much earlier.
const authorizationLag = 100 * time.Millisecond

// checkRights checks that the access records allowed a caller what its audit record says (G27).
func (j *accessJudge) checkRights(t *access.Table, a *task.AuditRecord, key string, needs []access.Need) {
	breach := func(format string, args ...any) {
		j.addViolation("G27", key, "%s by %s: %s", a.Operation, a.Subject, fmt.Sprintf(format, args...))
	}

	at := a.Time.Add(-authorizationLag)
	caller := access.Caller{Subject: a.Subject, Token: a.Token}
	if strings.HasPrefix(a.Subject, access.KindUnix+":") {
		caller = access.Caller{Subject: access.RootSubject}
	}

	if caller.Token != "" {
		token, exists := t.Token(caller.Token)
		switch {
		case !exists:
			breach("its token %s does not exist", caller.Token)
			return
		case token.Subject != caller.Subject:
			breach("its token %s is one of %s", caller.Token, token.Subject)
			return
		case !token.Until.IsZero() && !at.Before(token.Until.Time):
			breach("its token %s had expired at %s", caller.Token, formatTime(token.Until.Time))
			return
		}

		if fault := faultOfParent(t, &token, at); fault != "" {
			breach("%s", fault)
			return
		}
	}

	switch {
	case t.Disabled(caller.Subject):
		breach("the subject is disabled")
		return
	case caller.Subject != access.RootSubject && !sessionOperations[a.Operation] && !loginOperations[a.Operation] && !holdsLiveBinding(t, subjectsOf(t, caller), at):
		breach("no binding that lasts names the subject")
		return
	}

	for _, need := range needs {
		if !t.Allows(caller, need, at) {
			where := need.Namespace
			if where == "" {
				where = "the cluster"
			}

			breach("it may not %s %s in %s (labels %v)", need.Verb, need.Kind, where, need.Labels)
			return
		}
	}
}

// subjectsOf returns the subject of a caller, and the groups of the caller's session.
func subjectsOf(t *access.Table, caller access.Caller) []string {
	token, _ := t.Token(caller.Token)
	return append([]string{caller.Subject}, token.Groups...)
}

// holdsLiveBinding reports whether a binding that has not ended, of a role that exists, names one of some subjects.
func holdsLiveBinding(t *access.Table, subjects []string, at time.Time) bool {
	return slices.ContainsFunc(t.Bindings(), func(b task.Binding) bool {
		named := slices.ContainsFunc(b.Subjects, func(s string) bool { return slices.Contains(subjects, s) })
		role, exists := t.Role(b.Role)

		return named && exists && role.UID == b.RoleUID && (b.Until.IsZero() || at.Before(b.Until.Time))
	})
}
