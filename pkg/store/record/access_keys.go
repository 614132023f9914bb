package record

import (
	"net/url"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// AccessKeys builds the keys of access records and audit records, and of the gaps between these. Keys embeds it.
type AccessKeys struct{ root string }

// Access is the prefix of all access records: who may do what. The fence is one of them.
func (k AccessKeys) Access() string { return k.root + "access/" }

// Fence is the key whose mod revision each write of the API compares. Every write below
// Access puts it in the same transaction, except the creation and the deletion of a token.
func (k AccessKeys) Fence() string { return k.Access() + "fence" }

// TokenChanges is the key that each creation and deletion of a token puts in the same transaction. Its mod revision and that of
// the fence together show whether any access record has changed. A full etcd accepts no put, so the deletion of a token
// deletes this key instead. While the key is absent, it proves nothing.
func (k AccessKeys) TokenChanges() string { return k.Access() + "token-changes" }

// Roles is the prefix of the roles that are not built in.
func (k AccessKeys) Roles() string { return k.Access() + "roles/" }

// Role is the key of one role.
func (k AccessKeys) Role(name string) string { return k.Roles() + name }

// Bindings is the prefix of the bindings.
func (k AccessKeys) Bindings() string { return k.Access() + "bindings/" }

// Binding is the key of one binding.
func (k AccessKeys) Binding(name string) string { return k.Bindings() + name }

// Namespaces is the prefix of the records of namespaces.
func (k AccessKeys) Namespaces() string { return k.Access() + "namespaces/" }

// Namespace is the key of the record of one namespace.
func (k AccessKeys) Namespace(name string) string { return k.Namespaces() + name }

// NodeLimits is the prefix of the limits of what nodes may announce.
func (k AccessKeys) NodeLimits() string { return k.Access() + "nodes/" }

// NodeLimit is the key of the limit of one node, or of the nodes with a prefix.
func (k AccessKeys) NodeLimit(name string) string { return k.NodeLimits() + name }

// Tokens is the prefix of the API's tokens, stored as hashes.
func (k AccessKeys) Tokens() string { return k.Access() + "tokens/" }

// Token is the key of one token.
func (k AccessKeys) Token(id string) string { return k.Tokens() + id }

// DisabledSubjects is the prefix of the subjects that may do nothing.
func (k AccessKeys) DisabledSubjects() string { return k.Access() + "disabled/" }

// DisabledSubject is the key that disables one subject.
func (k AccessKeys) DisabledSubject(subject string) string {
	return k.DisabledSubjects() + url.PathEscape(subject)
}

// ParseDisabledSubject returns the subject that a key disables.
func (k AccessKeys) ParseDisabledSubject(key string) (subject string, ok bool) {
	escaped, below := strings.CutPrefix(key, k.DisabledSubjects())
	subject, err := url.PathUnescape(escaped)

	return subject, below && err == nil && subject != ""
}

// AuditRecords is the prefix of the audit records. They sort by time.
func (k AccessKeys) AuditRecords() string { return k.root + "audit/" }

// AuditRecord is the key of one audit record.
func (k AccessKeys) AuditRecord(id string) string { return k.AuditRecords() + id }

// AuditGaps is the prefix of the records of which audit records were removed. It sorts right before AuditRecords.
func (k AccessKeys) AuditGaps() string { return k.root + "audit-gaps/" }

// AuditGap is the key of one of these records.
func (k AccessKeys) AuditGap(g *task.AuditGap) string {
	switch {
	case g.Why == task.GapAge:
		return k.AuditGaps() + "age"
	case g.Access:
		return k.AuditGaps() + "access/" + url.PathEscape(g.Subject)
	}

	return k.AuditGaps() + "changes/" + url.PathEscape(g.Subject)
}
