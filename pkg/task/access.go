package task

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Role is a named list of rules. A binding gives it to subjects.
type Role struct {
	Name        string `json:"name" doc:"The name of the role."`
	UID         string `json:"uid,omitempty" doc:"Identifies this role. A role that is deleted and created again gets a new uid, and earlier bindings do not apply to it."`
	Description string `json:"description,omitempty" doc:"What it is for, as text."`
	Rules       []Rule `json:"rules" doc:"What the role allows."`
	BuiltIn     bool   `json:"built_in,omitempty" doc:"The role is part of Carillon and cannot be changed."`
	CreatedAt   Time   `json:"created_at,omitzero" doc:"When it was created."`
	CreatedBy   *Actor `json:"created_by,omitempty" doc:"Who created it."`
	UpdatedAt   Time   `json:"updated_at,omitzero" doc:"When it was last changed."`
	UpdatedBy   *Actor `json:"updated_by,omitempty" doc:"Who changed it last."`
	Revision    int64  `json:"revision,omitempty" record:"-" doc:"The value that If-Match compares."`
}

// Rule allows each of its verbs on each of its kinds of objects. Rules only allow; nothing denies.
type Rule struct {
	Verbs   []string          `json:"verbs" doc:"What is allowed, for example read, update or trigger; * for every verb."`
	Objects []string          `json:"objects" doc:"On which kinds of objects, for example tasks, runs or secrets; * for every kind."`
	Labels  map[string]string `json:"labels,omitempty" doc:"Only tasks with all of these labels, and their runs."`
}

// Binding gives a role to subjects, in namespaces or in the whole cluster.
type Binding struct {
	Name       string            `json:"name" doc:"The name of the binding."`
	Role       string            `json:"role" doc:"The name of the role that it gives."`
	RoleUID    string            `json:"role_uid,omitempty" doc:"The uid of the role that the binding was made for."`
	Subjects   []string          `json:"subjects" doc:"For example user:ann, service:ci or cert:deploy."`
	Namespaces []string          `json:"namespaces,omitempty" doc:"Names, or prefixes that end in *. Not together with cluster."`
	Cluster    bool              `json:"cluster,omitempty" doc:"The role applies to every namespace, and to nodes, the cluster, namespaces, access and audit records."`
	Labels     map[string]string `json:"labels,omitempty" doc:"Only tasks with all of these labels, and their runs. The subjects can read the other tasks of the namespaces, too."`
	Until      Time              `json:"until,omitzero" doc:"When the binding ends. Absent: never."`
	Reason     string            `json:"reason,omitempty" doc:"Why it was created, as text."`
	CreatedAt  Time              `json:"created_at,omitzero" doc:"When it was created."`
	CreatedBy  *Actor            `json:"created_by,omitempty" doc:"Who created it."`
	UpdatedAt  Time              `json:"updated_at,omitzero" doc:"When it was last changed."`
	UpdatedBy  *Actor            `json:"updated_by,omitempty" doc:"Who wrote the binding last."`
	Revision   int64             `json:"revision,omitempty" record:"-" doc:"The value that If-Match compares."`
}

// Namespace is the record of a namespace: tasks can be created only in a namespace that has
// one. It limits what the tasks of the namespace may be. Anything that it does not list is forbidden.
type Namespace struct {
	Name        string   `json:"name" doc:"The name of the namespace."`
	Description string   `json:"description,omitempty" doc:"What it is for, as text."`
	RunAs       []string `json:"run_as,omitempty" doc:"The OS users that tasks may name; * for any. A task that names no user runs as the default_user of its node."`
	Groups      []string `json:"groups,omitempty" doc:"The OS groups that tasks may name; * for any except numbers and groups whose members are root in effect, such as docker."`
	Shell       bool     `json:"shell,omitempty" doc:"Tasks may use shell actions."`
	EnvFiles    []string `json:"env_files,omitempty" doc:"The files on nodes that tasks may read, with env_from and stdin: absolute paths, directories that end in /, or * for any."`
	Nodes       string   `json:"nodes,omitempty" doc:"A selector of node labels that is joined to the selector of each task."`
	AuditReads  bool     `json:"audit_reads,omitempty" doc:"Each request that reads the output of a run writes an audit record first, and is refused if it cannot be written. Records of runs do not have the end of the output."`
	TaskMetrics bool     `json:"task_metrics,omitempty" doc:"Tasks have metrics of their own on /metrics, unless their field metrics is false."`
	CreatedAt   Time     `json:"created_at,omitzero" doc:"When it was created."`
	CreatedBy   *Actor   `json:"created_by,omitempty" doc:"Who created it."`
	UpdatedAt   Time     `json:"updated_at,omitzero" doc:"When it was last changed."`
	UpdatedBy   *Actor   `json:"updated_by,omitempty" doc:"Who changed it last."`
	Revision    int64    `json:"revision,omitempty" record:"-" doc:"The value that If-Match compares."`
}

// The kinds of tokens. A session and a login link have the token with which they were created as their parent, and end
// with it at the latest.
const (
	TokenKindToken   = ""        // created to be kept, by carillon token create
	TokenKindSession = "session" // for a browser, for some hours
	TokenKindLink    = "link"    // becomes a session, once
)

// Token is what Carillon shows of an API token: everything but its secret.
type Token struct {
	ID        string      `json:"id" doc:"Identifies the token. It is not secret."`
	Kind      string      `json:"kind,omitempty" doc:"session: of a login in a browser; link: a login link, which becomes a session once. Absent: a token that somebody created to keep." enum:"session,link"`
	Subject   string      `json:"subject" doc:"The subject of the token: user:NAME or service:NAME; unix:root for a session or a login link that root on the host of a node has created without a token."`
	Groups    []string    `json:"groups,omitempty" doc:"Of the session of a login with an identity provider: the groups of the person at that login. The session also has what their bindings give."`
	Name      string      `json:"name,omitempty" doc:"Of such a session: the name of the person. It is only shown."`
	Mail      string      `json:"mail,omitempty" doc:"Of such a session: the mail address of the person. It is only shown."`
	Parent    string      `json:"parent,omitempty" doc:"Of a session or a login link: the id of the token with which it was created. It ends when that token is deleted."`
	Node      string      `json:"node,omitempty" doc:"Of a session or a login link of root, which has no parent: the only node that accepts it."`
	Scope     *TokenScope `json:"scope,omitempty" doc:"Limits what the token may do. Absent: everything that its subject may do."`
	CIDRs     []string    `json:"cidrs,omitempty" doc:"The addresses from which the token is accepted. Absent: any."`
	Until     Time        `json:"until,omitzero" doc:"When the token expires. Absent: never."`
	Reason    string      `json:"reason,omitempty" doc:"Why it was created, as text."`
	CreatedAt Time        `json:"created_at" doc:"When it was created."`
	CreatedBy *Actor      `json:"created_by,omitempty" doc:"Who created it."`
}

// TokenScope narrows a token: it may do what both its subject and the scope allow.
type TokenScope struct {
	Role       string            `json:"role" doc:"The name of a role."`
	RoleUID    string            `json:"role_uid,omitempty" doc:"The uid of the role that the token was made for."`
	Namespaces []string          `json:"namespaces,omitempty" doc:"Names, or prefixes that end in *. Absent: the whole cluster."`
	Labels     map[string]string `json:"labels,omitempty" doc:"The labels that a task must have."`
}

// AuditRecord says who changed what. It is written by the transaction that makes the change. Some say who has read what.
type AuditRecord struct {
	ID          string        `json:"id" doc:"Sorts by time."`
	Time        Time          `json:"time" doc:"When the node sent the transaction, by its clock."`
	Node        string        `json:"node" doc:"The node that served the request. Of the outcome forwarded: the node that forwarded it, which says who the caller is."`
	Subject     string        `json:"subject" doc:"Who made the request: user:NAME (user:PROVIDER/SUB after a login with an identity provider), service:NAME, cert:NAME, or unix:USER for a user of the node's host; node:NAME for what a node did by itself."`
	Token       string        `json:"token,omitempty" doc:"The id of the token that the caller used."`
	Certificate string        `json:"certificate,omitempty" doc:"The client certificate that the caller proved to have."`
	Address     string        `json:"address,omitempty" doc:"The address that the request came from."`
	Operation   string        `json:"operation" doc:"The operation of the API, for example pause-task."`
	Objects     []AuditObject `json:"objects,omitempty" doc:"What the transaction changed. A batch has one record for each transaction."`
	Reason      string        `json:"reason,omitempty" doc:"Why, as the caller wrote it; of a refused login: why it was refused."`
	Outcome     string        `json:"outcome,omitempty" doc:"Of an operation that is not one transaction: intended, done or failed; of a refused login: refused; of a read: read; of a read that another node has forwarded: forwarded, in addition to the record of that node." enum:"intended,done,failed,refused,read,forwarded"`
	Late        bool          `json:"late,omitempty" doc:"etcd was full, so the record was written after the change."`
	Revision    int64         `json:"revision,omitempty" doc:"The revision of the change."`
	Gap         *AuditGap     `json:"gap,omitempty" doc:"Of the operation audit-gap, which is not a request: audit records that were removed from etcd. subject is whose they were, and time that of the newest of them."`
}

// AuditGap says which audit records were removed from etcd. There is one for all records that were too old, and one for each
// subject whose records were removed because all together took more than their share of etcd's quota.
type AuditGap struct {
	Why           string `json:"why" doc:"age: they were older than 30 days. size: the audit records took more than their share of etcd's quota." enum:"age,size"`
	Subject       string `json:"subject,omitempty" doc:"Whose records were removed. Absent: those of several subjects."`
	Access        bool   `json:"access,omitempty" doc:"Of size: records of changes of access. Absent: other records."`
	From          Time   `json:"from,omitzero" doc:"The time of the oldest of them."`
	To            Time   `json:"to,omitzero" doc:"The time of the newest of them."`
	Records       int64  `json:"records,omitempty" doc:"How many were removed."`
	Removed       int64  `json:"removed,omitempty" doc:"How many of them the last transaction removed."`
	FirstRevision int64  `json:"first_revision,omitempty" doc:"The lowest revision at which one of them was written."`
	LastRevision  int64  `json:"last_revision,omitempty" doc:"The highest one."`
}

// The reasons of an AuditGap.
const (
	GapAge  = "age"
	GapSize = "size"
)

// OperationAuditGap is the operation of an AuditRecord that says which others were removed.
const OperationAuditGap = "audit-gap"

// Covers reports whether the record of a change at a revision may be among the removed ones. isAccess says that it was a
// change of access.
func (g *AuditGap) Covers(revision int64, isAccess bool) bool {
	if g.Why == GapAge {
		return revision <= g.LastRevision
	}
	return g.Access == isAccess && g.FirstRevision <= revision && revision <= g.LastRevision
}

// AuditObject is an object that a transaction changed, or that a request has read. It has values only of access records,
// which contain no secrets apart from the hash of a token, and never that hash.
type AuditObject struct {
	Kind       string        `json:"kind" doc:"task, run, alert, silence, alert-rule, secret, freeze, node, cluster, member, role, binding, namespace, node-limit, token, subject, backup, or key for what a repair deleted."`
	Namespace  string        `json:"namespace,omitempty" doc:"The namespace of the object, if it belongs to one."`
	Name       string        `json:"name,omitempty" doc:"Of a run: the task's name. Of an alert: TASK:KIND. Of a silence: its ID. Of a backup: the SHA-256 of the snapshot."`
	Run        string        `json:"run,omitempty" doc:"The id of the run, of a record of a run."`
	Change     string        `json:"change" doc:"put, delete or read."`
	UID        string        `json:"uid,omitempty" doc:"The uid of the task."`
	Generation int64         `json:"generation,omitempty" doc:"The generation of the task after the change."`
	Hash       string        `json:"hash,omitempty" doc:"The first 32 digits of the SHA-256 of the new record. Equal records have equal hashes."`
	Fields     []string      `json:"fields,omitempty" doc:"The names of the fields that changed. Of a run that was triggered: what the request gave to it, such as args, target or env.NAME; never values."`
	Changes    []FieldChange `json:"changes,omitempty" doc:"Of a role, a binding, a namespace, a node limit or a token: the fields that changed, with their values. A new record has all its fields with to, a deleted one with from."`
	Namespaces []string      `json:"namespaces,omitempty" doc:"Of a freeze, a binding, or a token with a scope: the namespaces in which it applied before and after the change. Absent if one of the two applied in the whole cluster."`
}

// unauditedFields are the fields of access records that an audit record leaves out: it names the object, the time and the
// subject itself.
var unauditedFields = []string{"id", "name", "uid", "created_at", "created_by", "updated_at", "updated_by", "revision"}

// AccessChanges returns how an access record changes, for its audit record. before is nil for a new record, and after for a
// deleted one. T must not contain secrets.
func AccessChanges[T any](before, after *T) []FieldChange {
	var from, to T
	if before != nil {
		from = *before
	}
	if after != nil {
		to = *after
	}

	list := slices.DeleteFunc(Compare(from, to), func(c FieldChange) bool {
		field, _, _ := strings.Cut(c.Field, ".") // of created_by.subject, created_by
		return slices.Contains(unauditedFields, field)
	})
	for i := range list {
		switch {
		case before == nil:
			list[i].From = nil // the zero value of a field that is never absent
		case after == nil:
			list[i].To = nil
		}
	}

	return list
}

// The outcomes of an AuditRecord.
const (
	AuditIntended = "intended"
	AuditDone     = "done"
	AuditFailed   = "failed"
	AuditRefused  = "refused"
	AuditRead     = "read" // nothing was changed
	// AuditForwarded is a read that another node has forwarded. That node has judged who the caller is, and wrote a record
	// with AuditRead.
	AuditForwarded = "forwarded"
)

// Limits of access records.
const (
	MaxRules         = 64  // in a role
	MaxSubjects      = 64  // in a binding
	MaxLoginGroups   = 256 // of the session of a login
	MaxNamespaces    = 64  // in a binding or a token's scope
	MaxRunAs         = 256 // users, groups or environment files of a namespace
	MaxCIDRs         = 32  // of a token
	MaxSubjectLength = 256 // bytes
)

// CheckDescription checks the description of a role or a namespace: its length, and that it is
// printable text.
func CheckDescription(field, s string) error { return checkText(field, s, MaxDescription) }

// NodeLimit limits which labels nodes may have. A node announces its labels itself, so without a limit it can give itself
// any label, and receives the runs whose selectors match it. Readers of nodes ignore labels that the limit does not list.
type NodeLimit struct {
	Name      string   `json:"name" doc:"The name of a node, or a prefix of names that ends in *. The longest match applies to a node."`
	Labels    []string `json:"labels" doc:"The labels that the node may have: KEY=VALUE, KEY=* for any value, or * for any label. The labels node, os and arch are always allowed."`
	CreatedAt Time     `json:"created_at,omitzero" doc:"When it was created."`
	CreatedBy *Actor   `json:"created_by,omitempty" doc:"Who created it."`
	UpdatedAt Time     `json:"updated_at,omitzero" doc:"When it was last changed."`
	UpdatedBy *Actor   `json:"updated_by,omitempty" doc:"Who changed it last."`
	Revision  int64    `json:"revision,omitempty" record:"-" doc:"The value that If-Match compares."`
}

// MaxNodeLimitLabels is the maximum number of entries in a NodeLimit.
const MaxNodeLimitLabels = 256

// Secret is the metadata of a secret. It does not contain the values.
type Secret struct {
	Namespace  string   `json:"namespace" doc:"The namespace of the secret."`
	Name       string   `json:"name" doc:"The name of the secret."`
	Keys       []string `json:"keys" doc:"The names of its values, in order."`
	KeyID      string   `json:"key_id" doc:"The key of the nodes with which the values are encrypted."`
	Generation int64    `json:"generation" doc:"Grows by one with each write, even after a delete within the last week."`
	Change     string   `json:"change" doc:"The kind of the last write: set or rotated."`
	CreatedAt  Time     `json:"created_at" doc:"When it was created."`
	UpdatedAt  Time     `json:"updated_at" doc:"When it was last changed."`
	UpdatedBy  *Actor   `json:"updated_by,omitempty" doc:"Who changed it last."`
	Revision   int64    `json:"revision,omitempty" record:"-" doc:"The value that If-Match compares."`
}

// The values of Secret.Change. The record of a deleted secret exists only so that a later secret of the same
// name continues with its generation.
const (
	SecretSet     = "set"
	SecretRotated = "rotated"
	SecretDeleted = "deleted"
)

// CheckSecret checks the values of a secret. Its errors contain names, and never a value.
func CheckSecret(field string, values map[string]string) error {
	switch {
	case len(values) == 0:
		return Invalid(CodeRequired, field, "is empty; a secret requires at least one value")
	case len(values) > MaxEnv:
		return Invalid(CodeTooMany, field, "has %d values; at most %d are allowed", len(values), MaxEnv)
	}

	size := 0
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if err := CheckVariable(field, name); err != nil {
			return err
		}

		v := values[name]
		switch {
		case strings.ContainsRune(v, 0):
			return Invalid(CodeBadValue, field+"."+name, "contains a NUL byte, which no program can receive")
		case !utf8.ValidString(v):
			return Invalid(CodeBadValue, field+"."+name, "is not UTF-8; encode binary values as base64")
		}

		size += len(name) + len(v)
	}

	if size > MaxSecretValues {
		return Invalid(CodeTooLong, field, "is %d bytes long; at most %d are allowed", size, MaxSecretValues)
	}

	return nil
}
