package check

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// How long a session and a login link may last at most.
const (
	maxSessionAge     = 8 * time.Hour
	maxRootSessionAge = time.Hour
	maxLinkAge        = 10 * time.Minute
)

// sessionOperations need no right, but only a token, a session or a login link.
var sessionOperations = map[string]bool{"create-session": true, "delete-session": true, "create-login-link": true, "use-login-link": true}

// faultOfParent returns why a session or a login link was not valid at a time, because of its parent. It is "" if it was
// valid, or if the token has no parent.
func faultOfParent(t *access.Table, token *task.Token, at time.Time) string {
	if token.Parent == "" {
		return ""
	}

	parent, exists := t.Token(token.Parent)
	switch {
	case !exists:
		return fmt.Sprintf("the parent %s of its %s %s does not exist", token.Parent, token.Kind, token.ID)
	case t.TokenCreated(token.Parent) >= t.TokenCreated(token.ID):
		return fmt.Sprintf("the parent %s of its %s %s was created again after it", token.Parent, token.Kind, token.ID)
	case parent.Subject != token.Subject || parent.Kind != task.TokenKindToken:
		return fmt.Sprintf("the parent %s of its %s %s is not a token of the same subject", token.Parent, token.Kind, token.ID)
	case !parent.Until.IsZero() && !at.Before(parent.Until.Time):
		return fmt.Sprintf("the parent %s of its %s %s had expired at %s", token.Parent, token.Kind, token.ID, formatTime(parent.Until.Time))
	}

	return ""
}

// checkSessions checks the sessions and login links that an audit record lists as created: their creator may create them,
// they reach no further than their parent, and a login link becomes one session and does nothing else (G27).
func (j *accessJudge) checkSessions(t *access.Table, a *task.AuditRecord, key string, changes []objectChange) {
	breach := func(format string, args ...any) {
		j.addViolation("G27", key, "%s by %s: %s", a.Operation, a.Subject, fmt.Sprintf(format, args...))
	}

	used, _ := t.Token(a.Token)
	if used.Kind == task.TokenKindLink && a.Operation != "use-login-link" {
		breach("its token %s is a login link", a.Token)
	}

	made := 0
	for _, o := range a.Objects {
		i := slices.IndexFunc(changes, func(c objectChange) bool { return c.object == objectOf(o) })
		if o.Kind != "token" || o.Change != "put" || i < 0 {
			continue
		}

		session, err := record.Decode[record.Token](changes[i].after)
		if err != nil || session.Kind == task.TokenKindToken {
			continue
		}

		made++
		if fault := faultOfSession(t, &session.Token, a, used); fault != "" {
			breach("%s %s: %s", session.Kind, o.Name, fault)
		}
	}

	if loginOperations[a.Operation] && made != 1 {
		breach("a login has created %d sessions", made)
	}
	if a.Operation != "use-login-link" {
		return
	}

	isLinkDeleted := slices.ContainsFunc(changes, func(c objectChange) bool { return c.kind == "token" && c.name == a.Token && c.deleted })
	if made != 1 || !isLinkDeleted {
		breach("the login link %s becomes %d sessions, and is deleted: %v", a.Token, made, isLinkDeleted)
	}
}

// faultOfSession returns what is wrong with a new session or login link; "" if nothing is. used is the credential with which
// it was created.
func faultOfSession(t *access.Table, s *task.Token, a *task.AuditRecord, used task.Token) string {
	if loginOperations[a.Operation] {
		return faultOfLogin(t, s, a)
	}
	if s.Subject == access.RootSubject {
		return faultOfRoot(s, a, used)
	}

	parent, age := a.Token, maxSessionAge

	switch {
	case a.Operation == "create-session" && s.Kind == task.TokenKindSession:
	case a.Operation == "create-login-link" && s.Kind == task.TokenKindLink:
		age = maxLinkAge
	case a.Operation == "use-login-link" && s.Kind == task.TokenKindSession:
		parent = used.Parent
	default:
		return "this operation does not create it"
	}

	p, exists := t.Token(parent)
	switch {
	case !exists || s.Parent != parent || p.Kind != task.TokenKindToken:
		return fmt.Sprintf("its parent is %q, and %q was used", s.Parent, parent)
	case s.Subject != p.Subject || !reflect.DeepEqual(s.Scope, p.Scope) || !slices.Equal(s.CIDRs, p.CIDRs):
		return "it differs from its parent in subject, scope or addresses"
	case s.Until.IsZero() || s.Until.After(a.Time.Add(age+time.Second)):
		return fmt.Sprintf("it ends at %s, which is too late", formatTime(s.Until.Time))
	case !p.Until.IsZero() && s.Until.After(p.Until.Time):
		return "it ends after its parent"
	}

	return ""
}

// faultOfRoot returns what is wrong with a new session or login link of root; "" if nothing is. Root creates a link over the
// socket of a node, without a token, and only that node turns it into a session.
func faultOfRoot(s *task.Token, a *task.AuditRecord, used task.Token) string {
	age := maxRootSessionAge

	switch {
	case a.Operation == "create-login-link" && s.Kind == task.TokenKindLink && a.Token == "" && a.Subject == access.KindUnix+":uid=0":
		age = maxLinkAge
	case a.Operation == "use-login-link" && s.Kind == task.TokenKindSession && used.Subject == access.RootSubject && used.Node == s.Node:
	default:
		return "root did not create it with a login link"
	}

	switch {
	case s.Parent != "" || s.Node != a.Node:
		return fmt.Sprintf("it has the parent %q and the node %q, and node %q created it", s.Parent, s.Node, a.Node)
	case s.Until.IsZero() || s.Until.After(a.Time.Add(age+time.Second)):
		return fmt.Sprintf("it ends at %s, which is too late", formatTime(s.Until.Time))
	}

	return ""
}

// loginOperations create a session for somebody who has signed in with an identity provider, and has no other credential.
var loginOperations = map[string]bool{"finish-web-login": true, "poll-device-login": true}

// faultOfLogin returns what is wrong with the session that a login has created; "" if nothing is.
func faultOfLogin(t *access.Table, s *task.Token, a *task.AuditRecord) string {
	name, isUser := strings.CutPrefix(s.Subject, access.KindUser+":")
	provider, _, hasProvider := strings.Cut(name, "/")
	isForeign := func(group string) bool {
		return !strings.HasPrefix(group, access.KindGroup+":"+provider+"/")
	}

	switch {
	case a.Token != "" || s.Kind != task.TokenKindSession || s.Parent != "" || s.Scope != nil:
		return "it is not the session of a login"
	case s.Subject != a.Subject || !isUser || !hasProvider:
		return fmt.Sprintf("it is one of %s", s.Subject)
	case slices.ContainsFunc(s.Groups, isForeign):
		return fmt.Sprintf("it has groups of another provider: %v", s.Groups)
	case s.Until.IsZero() || s.Until.After(a.Time.Add(maxSessionAge+time.Second)):
		return fmt.Sprintf("it ends at %s, which is too late", formatTime(s.Until.Time))
	case !holdsLiveBinding(t, append([]string{s.Subject}, s.Groups...), a.Time.Add(-authorizationLag)):
		return "no binding that lasts names the subject or one of its groups"
	}

	return ""
}

// sweepTokens is the operation of the audit records of tokens that a node deletes by itself.
const sweepTokens = "sweep-tokens"

// checkSweep judges the audit record of a node that deletes tokens by itself: it deletes only tokens that had
// expired, by the time of the record (G27).
func (j *accessJudge) checkSweep(a *task.AuditRecord, key string, changes []objectChange) {
	for _, o := range a.Objects {
		i := slices.IndexFunc(changes, func(c objectChange) bool { return c.object == objectOf(o) })
		if o.Kind != "token" || i < 0 || !changes[i].deleted {
			j.addViolation("G27", key, "%s by %s lists %s, which is not a deleted token", a.Operation, a.Subject, objectOf(o))
			continue
		}

		t, err := record.Decode[record.Token](changes[i].before)
		if err != nil || t.Until.IsZero() || t.Until.After(a.Time.Time) {
			j.addViolation("G27", key, "%s by %s deletes %s, which had not expired", a.Operation, a.Subject, objectOf(o))
		}
	}
}

// checkRemovals checks that audit records are deleted only together with a record that says how many (G28).
func (j *accessJudge) checkRemovals(events []Event) {
	var deleted, announced int64
	key := ""
	for _, ev := range events {
		switch {
		case strings.HasPrefix(ev.Key, j.keys.AuditRecords()) && ev.Deleted:
			deleted++
			key = ev.Key
		case strings.HasPrefix(ev.Key, j.keys.AuditGaps()) && !ev.Deleted:
			g, err := record.Decode[task.AuditGap](ev.Value)
			if err != nil {
				j.addViolation("form", ev.Key, "unreadable record: %v", err)
			}
			announced += g.Removed
		}
	}

	if deleted != announced && deleted > 0 {
		j.addViolation("G28", key, "%d audit records are deleted, and the gaps of this revision say %d", deleted, announced)
	}
}
