package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// AccessService reads what the caller may do, and gives a cluster its administrator back.
type AccessService struct{ conn *connection }

// RolesService reads and writes roles: named lists of what is allowed.
type RolesService struct{ conn *connection }

// BindingsService reads and writes bindings: which subjects have which role, and where.
type BindingsService struct{ conn *connection }

// NamespacesService reads and writes the records of namespaces, which limit what their tasks may be.
type NamespacesService struct{ conn *connection }

// TokensService lists, creates and deletes tokens.
type TokensService struct{ conn *connection }

// SubjectsService lists subjects, and disables and enables them.
type SubjectsService struct{ conn *connection }

// AuditLogService reads who changed what. See AuditService for checks of the cluster's records.
type AuditLogService struct{ conn *connection }

// The codes of problems of changes of access.
const (
	CodeLastAdmin = "last_admin" // nobody could administer the cluster any more
	CodeInUse     = "in_use"     // something else refers to it
	CodeNotEmpty  = "not_empty"  // the namespace has tasks or secrets
	CodeTooBroad  = "too_broad"  // the caller would give more than it has
)

// WhoAmI describes the caller and what it may do.
type WhoAmI struct {
	Subject       string         `json:"subject" doc:"Your subject: user:NAME (user:PROVIDER/SUB after a login with an identity provider), service:NAME, cert:NAME, or unix:uid=N for a trusted user of the node's host."`
	Token         *task.Token    `json:"token,omitempty" doc:"The token of the request, with its scope."`
	Certificate   string         `json:"certificate,omitempty" doc:"The client certificate of the connection."`
	Address       string         `json:"address,omitempty" doc:"The address that the request came from."`
	Bindings      []task.Binding `json:"bindings" doc:"The bindings that name the subject and have not ended, without their other subjects. The scope of a token limits them."`
	Namespaces    []string       `json:"namespaces" doc:"The namespaces whose tasks you may read."`
	AllNamespaces bool           `json:"all_namespaces" doc:"You may read every namespace, also those that do not exist yet."`
	Cluster       []task.Rule    `json:"cluster" doc:"What you may do to the whole cluster: its nodes, settings, namespaces, access and audit records."`
	Host          bool           `json:"host,omitempty" doc:"You are a trusted user of the node's host, and may do everything without a token."`
}

// NamespaceChange is the answer to a change of a namespace's record.
type NamespaceChange struct {
	task.Namespace
	Forbidden      []ForbiddenTask `json:"forbidden,omitempty" doc:"Tasks of the namespace that its record no longer allows: their runs fail. At most 20, of those that you may read."`
	ForbiddenCount int             `json:"forbidden_count,omitempty" doc:"The number of such tasks."`
	Checked        int             `json:"checked,omitempty" doc:"How many tasks were checked."`
	Incomplete     bool            `json:"incomplete,omitempty" doc:"The namespace has more tasks, which were not checked."`
	DryRun         *Change         `json:"dry_run,omitempty" doc:"With dry_run=true: nothing was written, and this is the record as it would be."`
	Warnings       []string        `json:"warnings,omitempty" doc:"What the author should check, such as a user of run_as who is root in effect on the host of the node that served the request."`
	// WarningDetails are the same warnings, each with its code.
	WarningDetails []task.Warning `json:"warning_details,omitempty" doc:"The same warnings, each with its code."`
}

// RoleChange is the answer to a change of a role.
type RoleChange struct {
	task.Role
	DryRun *Change `json:"dry_run,omitempty" doc:"With dry_run=true: nothing was written, and this is the role as it would be."`
}

// ForbiddenTask is a task that the record of its namespace does not allow.
type ForbiddenTask struct {
	Name   string `json:"name" doc:"The name of the task."`
	Reason string `json:"reason" doc:"What the record of the namespace does not allow."`
}

// TokenRequest is the body of a request for a new token.
type TokenRequest struct {
	Subject string           `json:"subject,omitempty" doc:"The subject of the token: user:NAME or service:NAME. Default: your own."`
	Scope   *task.TokenScope `json:"scope,omitempty" doc:"Limits what the token may do. Absent: everything that its subject may do."`
	CIDRs   []string         `json:"cidrs,omitempty" doc:"The addresses from which the token is accepted, such as 10.0.0.0/8. Absent: any."`
	Until   task.Time        `json:"until,omitzero" doc:"When the token expires. Required unless the role of the scope is viewer; at most 90 days ahead for people."`
	Reason  string           `json:"reason,omitempty" doc:"What the token is for."`
}

// NewToken is a token that was just created, with its secret. The secret cannot be read again.
type NewToken struct {
	task.Token
	Secret string `json:"secret" doc:"Send it as Authorization: Bearer SECRET. It is shown only here."`
}

// Subject is a subject that has bindings or tokens, or is disabled.
type Subject struct {
	Subject  string   `json:"subject" doc:"The subject: user:NAME, group:PROVIDER/NAME, service:NAME or cert:NAME."`
	Disabled bool     `json:"disabled,omitempty" doc:"The subject may do nothing, and its tokens are not accepted."`
	Bindings []string `json:"bindings" doc:"The names of the bindings that name the subject."`
	Tokens   int      `json:"tokens" doc:"How many tokens act as the subject."`
}

// SubjectChange is the answer when a subject was disabled or enabled.
type SubjectChange struct {
	Subject  string         `json:"subject" doc:"The subject that was changed."`
	Disabled bool           `json:"disabled" doc:"Whether the subject is disabled now."`
	Bindings []task.Binding `json:"bindings" doc:"The bindings that name the subject."`
	Tokens   []task.Token   `json:"tokens" doc:"The tokens that act as the subject. They are not accepted while it is disabled."`
	// Tokens and bindings that the subject created remain valid, because rights never depend on who created them.
	MadeBindings []task.Binding `json:"made_bindings" doc:"The bindings that the subject has written. They remain in effect."`
	MadeTokens   []task.Token   `json:"made_tokens" doc:"The tokens of other subjects that the subject has created. They remain valid."`
}

// WhoAmI returns who the server takes the caller for, and what it may do.
func (s *AccessService) WhoAmI(ctx context.Context) (WhoAmI, error) {
	var me WhoAmI
	err := s.conn.doCall(ctx, call{method: http.MethodGet, path: "/v1/whoami"}, &me)

	return me, err
}

// Reset creates a new token of service:bootstrap and makes it an administrator of the cluster. Only root on the node's
// host may call it, over the unix socket without a token.
func (s *AccessService) Reset(ctx context.Context) (NewToken, error) {
	var t NewToken
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: "/v1/access/reset"}, &t)

	return t, err
}

// Writing is how a record is written. The zero value overwrites an existing record.
type Writing struct {
	Revision int64 // the revision that the record must have; else task.ErrStale
	Create   bool  // the record must not exist; else task.ErrExists
}

func (w Writing) conditionHeader() http.Header {
	if w.Create {
		return http.Header{"If-None-Match": {"*"}}
	}
	return ifMatch(w.Revision)
}

// List returns all roles, the built-in ones first.
func (s *RolesService) List(ctx context.Context) ([]task.Role, error) {
	return getItems[task.Role](ctx, s.conn, "/v1/roles")
}

// Get reads a role. It returns task.ErrNotFound if there is none.
func (s *RolesService) Get(ctx context.Context, name string) (task.Role, error) {
	return doNamed[task.Role](ctx, s.conn, "/v1/roles/", name, call{method: http.MethodGet})
}

// Put writes a role.
func (s *RolesService) Put(ctx context.Context, r task.Role, w Writing) (task.Role, error) {
	return doNamed[task.Role](ctx, s.conn, "/v1/roles/", r.Name, call{method: http.MethodPut, body: r, header: w.conditionHeader()})
}

// DryRunPut is like Put, but writes nothing. RoleChange.DryRun contains what would change.
func (s *RolesService) DryRunPut(ctx context.Context, r task.Role, w Writing) (RoleChange, error) {
	return doNamed[RoleChange](ctx, s.conn, "/v1/roles/", r.Name, call{method: http.MethodPut, body: r, header: w.conditionHeader(), query: dryRun(url.Values{}, 0)})
}

// Delete deletes a role that no binding uses. revision is the revision that it must have; 0: any.
func (s *RolesService) Delete(ctx context.Context, name string, revision int64) error {
	return deleteNamed(ctx, s.conn, "/v1/roles/", name, revision)
}

// List returns the bindings that the caller may see. subject selects those that name a subject; "": all.
func (s *BindingsService) List(ctx context.Context, subject string) ([]task.Binding, error) {
	q := url.Values{}
	setIfNotEmpty(q, "subject", subject)

	return collectItems(iteratePages[task.Binding](ctx, s.conn, "/v1/bindings", q, pageSize, 0, nil))
}

// Get reads a binding. It returns task.ErrNotFound if there is none that the caller may see.
func (s *BindingsService) Get(ctx context.Context, name string) (task.Binding, error) {
	return doNamed[task.Binding](ctx, s.conn, "/v1/bindings/", name, call{method: http.MethodGet})
}

// Put writes a binding.
func (s *BindingsService) Put(ctx context.Context, b task.Binding, w Writing) (task.Binding, error) {
	return doNamed[task.Binding](ctx, s.conn, "/v1/bindings/", b.Name, call{method: http.MethodPut, body: b, header: w.conditionHeader()})
}

// Delete deletes a binding. revision is the revision that it must have; 0: any.
func (s *BindingsService) Delete(ctx context.Context, name string, revision int64) error {
	return deleteNamed(ctx, s.conn, "/v1/bindings/", name, revision)
}

// List returns the records of the namespaces that the caller may read.
func (s *NamespacesService) List(ctx context.Context) ([]task.Namespace, error) {
	return collectItems(iteratePages[task.Namespace](ctx, s.conn, "/v1/namespaces", url.Values{}, pageSize, 0, nil))
}

// Get reads the record of a namespace. It returns task.ErrNotFound if there is none that the caller may read.
func (s *NamespacesService) Get(ctx context.Context, name string) (task.Namespace, error) {
	return doNamed[task.Namespace](ctx, s.conn, "/v1/namespaces/", name, call{method: http.MethodGet})
}

// Put writes the record of a namespace. The answer names tasks that the record no longer allows.
func (s *NamespacesService) Put(ctx context.Context, n task.Namespace, w Writing) (NamespaceChange, error) {
	return doNamed[NamespaceChange](ctx, s.conn, "/v1/namespaces/", n.Name, call{method: http.MethodPut, body: n, header: w.conditionHeader()})
}

// DryRunPut is like Put, but writes nothing. NamespaceChange.DryRun contains what would change.
func (s *NamespacesService) DryRunPut(ctx context.Context, n task.Namespace, w Writing) (NamespaceChange, error) {
	return doNamed[NamespaceChange](ctx, s.conn, "/v1/namespaces/", n.Name, call{method: http.MethodPut, body: n, header: w.conditionHeader(), query: dryRun(url.Values{}, 0)})
}

// Delete deletes the record of a namespace that has neither tasks nor secrets. revision is the revision that it must
// have; 0: any.
func (s *NamespacesService) Delete(ctx context.Context, name string, revision int64) error {
	return deleteNamed(ctx, s.conn, "/v1/namespaces/", name, revision)
}

// List returns the tokens that the caller may see, without their secrets. subject selects those of a subject; "": all.
func (s *TokensService) List(ctx context.Context, subject string) ([]task.Token, error) {
	return s.listTokens(ctx, subject, false)
}

// ListWithSessions is List, together with the sessions and login links that have not ended.
func (s *TokensService) ListWithSessions(ctx context.Context, subject string) ([]task.Token, error) {
	return s.listTokens(ctx, subject, true)
}

func (s *TokensService) listTokens(ctx context.Context, subject string, sessions bool) ([]task.Token, error) {
	q := url.Values{}
	setIfNotEmpty(q, "subject", subject)
	if sessions {
		q.Set("sessions", "true")
	}

	return collectItems(iteratePages[task.Token](ctx, s.conn, "/v1/tokens", q, pageSize, 0, nil))
}

// Get reads a token, without its secret. It returns task.ErrNotFound if there is none that the caller may see.
func (s *TokensService) Get(ctx context.Context, id string) (task.Token, error) {
	return doNamed[task.Token](ctx, s.conn, "/v1/tokens/", id, call{method: http.MethodGet})
}

// Create creates a token. If the answer is lost (task.ErrUnknown), the secret is lost with it: Error.ID is the id
// of the token to delete.
func (s *TokensService) Create(ctx context.Context, r TokenRequest) (NewToken, error) {
	var t NewToken
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: "/v1/tokens", body: r}, &t)

	return t, err
}

// Delete deletes a token. No change that its holder has requested is made after Delete has returned.
func (s *TokensService) Delete(ctx context.Context, id string) error {
	return deleteNamed(ctx, s.conn, "/v1/tokens/", id, 0)
}

// List returns all subjects that records of access name.
func (s *SubjectsService) List(ctx context.Context) ([]Subject, error) {
	return collectItems(iteratePages[Subject](ctx, s.conn, "/v1/subjects", url.Values{}, pageSize, 0, nil))
}

// Disable has a subject do nothing from now on, and its tokens not accepted.
func (s *SubjectsService) Disable(ctx context.Context, subject string) (SubjectChange, error) {
	return s.changeState(ctx, subject, "/disable")
}

// Enable undoes Disable.
func (s *SubjectsService) Enable(ctx context.Context, subject string) (SubjectChange, error) {
	return s.changeState(ctx, subject, "/enable")
}

func (s *SubjectsService) changeState(ctx context.Context, subject, rest string) (SubjectChange, error) {
	var c SubjectChange
	err := s.conn.doCall(ctx, call{method: http.MethodPost, path: "/v1/subjects/" + url.PathEscape(subject) + rest}, &c)

	return c, err
}

// AuditLogOptions select audit records. Empty fields select all.
type AuditLogOptions struct {
	Subject   string
	Namespace string // of an object
	Operation string // of the API, for example pause-task
	Kind      string // of an object; see task.AuditObject
	Name      string // of an object
	Since     time.Time
	Until     time.Time
	// OldestFirst reverses the order, which otherwise begins with the newest record.
	OldestFirst bool
	Limit       int // the maximum number of records; 0: all
}

// List yields audit records, and reads each page when it is needed.
func (s *AuditLogService) List(ctx context.Context, o AuditLogOptions) iter.Seq2[task.AuditRecord, error] {
	q := url.Values{}
	setIfNotEmpty(q, "subject", o.Subject)
	setIfNotEmpty(q, "namespace", o.Namespace)
	setIfNotEmpty(q, "operation", o.Operation)
	setIfNotEmpty(q, "kind", o.Kind)
	setIfNotEmpty(q, "name", o.Name)
	setTimes(q, map[string]time.Time{"since": o.Since, "until": o.Until})
	if o.OldestFirst {
		q.Set("oldest_first", "true")
	}

	return iteratePages[task.AuditRecord](ctx, s.conn, "/v1/audit-log", q, pageSize, o.Limit, nil)
}

// doNamed sends a call for one record, and returns the record in the answer.
func doNamed[T any](ctx context.Context, c *connection, path, name string, k call) (T, error) {
	var answer T
	if err := task.CheckName("name", name); err != nil {
		return answer, err
	}

	k.path = path + name
	err := c.doCall(ctx, k, &answer)

	return answer, err
}

func deleteNamed(ctx context.Context, c *connection, path, name string, revision int64) error {
	if err := task.CheckName("name", name); err != nil {
		return err
	}

	return c.doCall(ctx, call{method: http.MethodDelete, path: path + name, header: ifMatch(revision)}, nil)
}

// Question asks whether a subject may do something.
type Question struct {
	Verb, Kind string
	Namespace  string // for kinds of objects of namespaces
	Labels     string // of the task: KEY=VALUE, separated by commas
	Subject    string // "": the caller, with the scope of its token
}

// Decision answers a Question.
type Decision struct {
	Allowed   bool              `json:"allowed" doc:"Whether the subject may do it."`
	Subject   string            `json:"subject" doc:"The subject that was asked about."`
	Verb      string            `json:"verb" doc:"The verb that was asked about, such as update."`
	Kind      string            `json:"kind" doc:"The kind of object that was asked about, such as tasks."`
	Namespace string            `json:"namespace,omitempty" doc:"The namespace that was asked about."`
	Labels    map[string]string `json:"labels,omitempty" doc:"The labels of the task that was asked about."`
	Reason    string            `json:"reason,omitempty" doc:"Why it is not allowed, or what else is needed."`
}

// Can answers whether the caller, or another subject, may do something.
func (s *AccessService) Can(ctx context.Context, ask Question) (Decision, error) {
	q := url.Values{"verb": {ask.Verb}, "kind": {ask.Kind}}
	setIfNotEmpty(q, "namespace", ask.Namespace)
	setIfNotEmpty(q, "labels", ask.Labels)
	setIfNotEmpty(q, "subject", ask.Subject)

	var d Decision
	err := s.conn.doCall(ctx, call{method: http.MethodGet, path: "/v1/access/can", query: q}, &d)

	return d, err
}

// NodeLimitsService reads and writes limits of the labels that nodes may have.
type NodeLimitsService struct{ conn *connection }

// NodeLimitChange is the answer to a change of a limit.
type NodeLimitChange struct {
	task.NodeLimit
	Nodes  []LimitedNode `json:"nodes,omitempty" doc:"The present nodes that announce labels which the limit does not allow. Only if you may read nodes."`
	DryRun *Change       `json:"dry_run,omitempty" doc:"With dry_run=true: nothing was written, and this is the limit as it would be."`
}

// LimitedNode is a node that announces labels which its limit does not allow.
type LimitedNode struct {
	Name          string            `json:"name" doc:"The name of the node."`
	IgnoredLabels map[string]string `json:"ignored_labels" doc:"The labels that the node announces and the limit does not allow."`
}

// List returns all limits.
func (s *NodeLimitsService) List(ctx context.Context) ([]task.NodeLimit, error) {
	return collectItems(iteratePages[task.NodeLimit](ctx, s.conn, "/v1/node-limits", url.Values{}, pageSize, 0, nil))
}

// Get reads the limit with exactly this name. It returns task.ErrNotFound if there is none.
func (s *NodeLimitsService) Get(ctx context.Context, name string) (task.NodeLimit, error) {
	return doLimit[task.NodeLimit](ctx, s.conn, name, call{method: http.MethodGet})
}

// Put writes a limit. The answer names present nodes that announce labels which it does not allow.
func (s *NodeLimitsService) Put(ctx context.Context, l task.NodeLimit, w Writing) (NodeLimitChange, error) {
	return doLimit[NodeLimitChange](ctx, s.conn, l.Name, call{method: http.MethodPut, body: l, header: w.conditionHeader()})
}

// DryRunPut is like Put, but writes nothing. NodeLimitChange.DryRun contains what would change.
func (s *NodeLimitsService) DryRunPut(ctx context.Context, l task.NodeLimit, w Writing) (NodeLimitChange, error) {
	return doLimit[NodeLimitChange](ctx, s.conn, l.Name, call{method: http.MethodPut, body: l, header: w.conditionHeader(), query: dryRun(url.Values{}, 0)})
}

// Delete deletes a limit. revision is the revision that it must have; 0: any.
func (s *NodeLimitsService) Delete(ctx context.Context, name string, revision int64) error {
	_, err := doLimit[struct{}](ctx, s.conn, name, call{method: http.MethodDelete, header: ifMatch(revision)})
	return err
}

// doLimit sends a call for one limit. Its name may be a prefix that ends in *.
func doLimit[T any](ctx context.Context, c *connection, name string, k call) (T, error) {
	var answer T
	if prefix, isPrefix := strings.CutSuffix(name, "*"); !isPrefix {
		if err := task.CheckName("name", name); err != nil {
			return answer, err
		}
	} else if strings.ContainsAny(prefix, "*/") {
		return answer, task.Invalid(task.CodeBadName, "name", "%s is not the name of a node, or a prefix of names that ends in *", task.Quote(name))
	}

	k.path = "/v1/node-limits/" + url.PathEscape(name)
	if k.method == http.MethodDelete {
		return answer, c.doCall(ctx, k, nil)
	}

	err := c.doCall(ctx, k, &answer)

	return answer, err
}
