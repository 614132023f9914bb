package executor

import (
	"cmp"
	"net"
	"net/url"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// targetOf returns the target of a request: scheme, host and port of its URL. Templates can only follow these. If all of
// the URL is in a secret, the name of the secret stands for its value, which may differ between namespaces.
func targetOf(namespace string, h *task.HTTP) string {
	text, _, _ := strings.Cut(h.URL, "${")
	if strings.HasPrefix(text, task.SecretRefPrefix) {
		return namespace + "/" + text
	}

	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return text
	}

	port := u.Port()
	switch {
	case port != "":
	case strings.EqualFold(u.Scheme, "https"):
		port = "443"
	default:
		port = "80"
	}

	return strings.ToLower(u.Scheme + "://" + net.JoinHostPort(u.Hostname(), port))
}

// newTargetEntry returns the entry of an HTTP attempt in the targetQueue.
func newTargetEntry(a *attempt) *targetEntry {
	h := a.Action.HTTP

	return &targetEntry{
		attempt: a, target: targetOf(a.Namespace, h), limit: cmp.Or(h.Limit.PerTarget, task.DefaultPerTarget),
		due: a.ScheduledTime.Time, token: a.Create,
	}
}
