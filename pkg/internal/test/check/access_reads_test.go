package check

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestCheck_ARecordedReadNeedsTheRight(t *testing.T) {
	for _, c := range []struct{ name, subject, namespace, promise string }{
		{"a viewer", "user:bob", "default", ""},
		{"an auditor, who reads everything but output", "user:aud", "default", "G27"},
		{"a viewer of another namespace", "user:bob", "other", "G27"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := governed(t)
			s.grant("auditors", "auditor", "user:aud", func(b *task.Binding) { b.Namespaces, b.Cluster = nil, true })
			s.issue("t3", "user:aud", nil)
			token := map[string]string{"user:bob": "t2", "user:aud": "t3"}[c.subject]
			s.audited("get-run-logs", c.subject, token, func(a *task.AuditRecord) {
				a.Outcome = task.AuditRead
				a.Objects = []task.AuditObject{{Kind: "run", Namespace: c.namespace, Name: "x", Run: "r", Change: "read"}}
			})
			only(t, s.checkAccess(Options{Audited: true}), c.promise)
		})
	}
}
