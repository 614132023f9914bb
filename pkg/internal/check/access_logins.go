package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

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
	case s.Until.IsZero() || s.Until.After(a.Time.Add(mostSessionAge+time.Second)):
		return fmt.Sprintf("it ends at %s, which is too late", formatTime(s.Until.Time))
	case !holdsLiveBinding(t, append([]string{s.Subject}, s.Groups...), a.Time.Add(-authorizationLag)):
		return "no binding that lasts names the subject or one of its groups"
	}

	return ""
}
