package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Judge says what callers may do. One is shared by all requests of a node.
type Judge struct {
	Keeper Keeper
	Node   string
	Now    Clock
	// Late takes an audit record that a full etcd could not store beside its change.
	Late func(task.AuditRecord)
}

// Keeper has the access records (see package authority).
type Keeper interface {
	View() *authority.View
	AwaitChange(ctx context.Context, lost store.Proof) (*authority.View, error)
	Proven(ctx context.Context) error
	Current(ctx context.Context) (*authority.View, error)
}

// Rights is what the caller of one request may do. It remembers what it has allowed, and is the
// store.Authority of the writes that follow: each attempt of a write is judged again by the
// newest access records, for everything that was allowed before it.
//
// A handler calls Require for all that a write needs, and then writes through Store.As. Reads of
// lists ask CanRead for each namespace, before they count, cut or cache anything.
type Rights struct {
	judge     *Judge
	caller    Caller
	operation string

	mu      sync.Mutex
	checks  []check
	specs   map[record.Ref]int64 // mod revisions of the specs whose labels were judged; 0: deleted
	known   []task.AuditObject
	reason  string
	written *written // what the request has written; shared by the rights of its parts
	// outcome is set if the audit record is independent of a write. Then known contains all of its objects.
	outcome string
}

// written is what a request has written: the last revision of each shard.
type written struct {
	mu        sync.Mutex
	revisions map[int]int64
}

// check is something that a request needs: it returns why the access records forbid it.
type check func(v *authority.View) error

// RightsOf returns the rights of a request's caller. They allow nothing by themselves.
func (j *Judge) RightsOf(caller Caller, operation string) *Rights {
	return &Rights{judge: j, caller: caller, operation: operation, written: &written{}}
}

// Part returns the rights for a part of a request whose writes are judged apart, such as the
// lines of a batch that one transaction contains.
func (r *Rights) Part() *Rights {
	return &Rights{judge: r.judge, caller: r.caller, operation: r.operation, reason: r.reason, written: r.written}
}

type rightsKey struct{}

// WithRights returns the context of a request with its caller's rights.
func WithRights(ctx context.Context, r *Rights) context.Context {
	return context.WithValue(ctx, rightsKey{}, r)
}

// RightsOf returns the rights of a request's caller. They are nil for public operations.
func RightsOf(ctx context.Context) *Rights {
	r, _ := ctx.Value(rightsKey{}).(*Rights)
	return r
}

// Include adds what another part of the same request was allowed, for a transaction that contains both parts.
func (r *Rights) Include(part *Rights) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.checks = append(r.checks, part.checks...)
	r.known = append(r.known, part.known...)
	for ref, mod := range part.specs {
		r.compareSpec(ref, mod)
	}
}

// compareSpec has the following writes compare a task's spec. The caller must hold mu.
func (r *Rights) compareSpec(ref record.Ref, mod int64) {
	if r.specs == nil {
		r.specs = map[record.Ref]int64{}
	}
	r.specs[ref] = mod
}

// RequireOnTask is Require for an action on a task, or on a run of it, whose labels the handler does not know. If
// the answer depends on labels, it reads the task, and the following writes compare the spec that was read: they
// fail with a conflict if the labels have changed since. Only equalities are granted, so a deleted task, without
// labels, matches none of them.
func (r *Rights) RequireOnTask(ctx context.Context, s *store.Store, ref record.Ref, verb access.Verb, kind access.Kind) error {
	need := access.Need{Verb: verb, Kind: kind, Namespace: ref.Namespace}
	if r.Allows(need) {
		return r.Require(need)
	}

	st, err := s.Revisions(ctx, ref)
	if err != nil && !errors.Is(err, task.ErrNotFound) {
		return err
	}

	need.Labels = st.Task.Labels
	if err := r.Require(need); err != nil {
		return err
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.compareSpec(ref, st.Task.Revision)

	return nil
}

// Require refuses the request unless the caller may do all of this. The error is 404 in a
// namespace that the caller cannot read, so that it does not tell what exists there, and
// otherwise 403 with the missing verb and a role that has it.
func (r *Rights) Require(needs ...access.Need) error {
	for _, need := range needs {
		if err := r.Check(func(v *authority.View) error { return r.refusalOf(v, need) }); err != nil {
			return err
		}
	}

	return nil
}

// Check refuses the request if a rule that depends on access records does, and judges the rule
// again before each attempt of a write.
func (r *Rights) Check(rule func(v *authority.View) error) error {
	if err := rule(r.judge.Keeper.View()); err != nil {
		return err
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.checks = append(r.checks, rule)

	return nil
}

// View returns the newest access records that this node knows. Reading them refuses nothing, and is not
// judged again when a write is sent.
func (r *Rights) View() *authority.View { return r.judge.Keeper.View() }

// Allows reports whether the caller may do something. Unlike Require it does not refuse the
// request, and writes do not depend on it.
func (r *Rights) Allows(need access.Need) bool {
	return r.caller.Forwarder != "" || r.judge.Keeper.View().Allows(r.caller.Subject(), need, r.judge.Now())
}

// CanRead reports whether the caller may read the tasks of a namespace.
func (r *Rights) CanRead(namespace string) bool {
	return r.Allows(access.Need{Verb: access.Read, Kind: access.Tasks, Namespace: namespace})
}

// CanReadRuns reports whether the caller may read the runs of a namespace.
func (r *Rights) CanReadRuns(namespace string) bool {
	return r.Allows(access.Need{Verb: access.Read, Kind: access.Runs, Namespace: namespace})
}

// CanReadOutput reports whether the caller may read the output of all runs of a namespace without an audit record
// of the read. It returns false if that depends on the labels of a task: answers that contain the end of the output
// of many runs do not read the task of each.
func (r *Rights) CanReadOutput(namespace string) bool {
	return !r.RecordsReads(namespace) && r.Allows(access.Need{Verb: access.Output, Kind: access.Runs, Namespace: namespace})
}

// Readable returns the namespaces in which the caller may read objects of a kind, in order. It returns nil if the
// caller may read every namespace, also those that do not exist yet.
func (r *Rights) Readable(k access.Kind) []string {
	v, caller, now := r.judge.Keeper.View(), r.caller.Subject(), r.judge.Now()
	if r.caller.Forwarder != "" || v.ReadsEveryNamespace(caller, k, now) {
		return nil
	}

	names := v.Readable(caller, k, v.Namespaces(), now)
	if names == nil {
		names = []string{} // none, and not all
	}

	return names
}

// RequireSomewhere refuses the request unless the caller may do something to an object with
// some labels. The handler must call Require when it knows the labels.
func (r *Rights) RequireSomewhere(need access.Need) error {
	v := r.judge.Keeper.View()
	if r.caller.Forwarder != "" || v.AllowsSomewhere(r.caller.Subject(), need, r.judge.Now()) {
		return nil
	}

	return r.refusalOf(v, need)
}

// RequireNamespace refuses to create something in a namespace that has no record. A namespace
// that the caller cannot read is refused in the same words.
func (r *Rights) RequireNamespace(namespace string) error {
	return r.Check(func(v *authority.View) error {
		if v.Namespace(namespace) == nil {
			return noNamespace(namespace)
		}
		return nil
	})
}

// RequireNamespaceNow is RequireNamespace for reads, which are not judged again. If this node does not know the namespace, it
// asks etcd first: another node may have just created it. A forwarded request has been judged by the other node.
func (r *Rights) RequireNamespaceNow(ctx context.Context, namespace string) error {
	if r.caller.Forwarder != "" || r.RequireNamespace(namespace) == nil {
		return nil
	}

	if _, err := r.judge.Keeper.Current(ctx); err != nil {
		return err
	}

	return r.RequireNamespace(namespace)
}

func (r *Rights) refusalOf(v *authority.View, need access.Need) error {
	caller, now := r.caller.Subject(), r.judge.Now()
	if r.caller.Forwarder != "" || v.Allows(caller, need, now) {
		return nil
	}

	if ns := need.Namespace; ns != "" && !v.Allows(caller, access.Need{Verb: access.Read, Kind: access.Tasks, Namespace: ns}, now) {
		return noNamespace(ns)
	}

	where := " in the cluster"
	switch {
	case need.Namespace != "":
		where = " in namespace " + need.Namespace
	case need.Kind == access.Cluster:
		where = ""
	}
	if len(need.Labels) > 0 && v.AllowsSomewhere(caller, need, now) {
		where += " with these labels"
	}

	f := Fail(http.StatusForbidden, client.CodeForbidden, "%s may not %s%s", r.caller.Name(), actionText(need), where)
	allowed := caller.Token != "" && v.Allows(access.Caller{Subject: caller.Subject}, need, now)
	if allowed && need.Verb == access.Backup {
		f = f.WithHint("use a token without a scope; tokens with a scope and sessions cannot be used for this")
	} else if allowed {
		f = f.WithHint("the scope of the token does not include this right")
	} else if role := access.SuggestRole(need.Verb, need.Kind); role != "" {
		f = f.WithHint(role + " allows it")
	}

	return f
}

// actionText returns what a need is for, in words.
func actionText(need access.Need) string {
	switch {
	case need.Verb == access.Output:
		return "read the output of " + need.Kind.String()
	case need.Verb == access.Backup:
		return "back up the cluster"
	case need.Kind == access.Cluster:
		return need.Verb.String() + " the cluster"
	}

	return need.Verb.String() + " " + need.Kind.String()
}

func noNamespace(namespace string) error {
	return Fail(http.StatusNotFound, client.CodeNotFound, "there is no namespace %s, or you may not read it", task.Quote(namespace)).
		WithHint("carillon namespace list shows the namespaces that you may read")
}

// CheckReader returns why the caller may not read now what it was allowed to read before, as far as this node can tell.
// caller is who the request's credentials show now. A read is refused if this node's copy of the access records may be
// old, except to users of the host: their rights do not depend on records. Nor do those of a caller whose request
// another node has forwarded: that node judges them.
func (r *Rights) CheckReader(ctx context.Context, caller Caller) error {
	if caller.Who != r.caller.Who || caller.Token != r.caller.Token {
		return Fail(http.StatusUnauthorized, client.CodeUnauthorized, "the credentials now belong to a different caller")
	}

	if r.caller.Forwarder == "" && !r.caller.IsHostUser() {
		if err := r.judge.Keeper.Proven(ctx); err != nil {
			return err
		}
	}

	_, err := r.authorizeAgain(r.judge.Keeper.View())

	return err
}

// Describe adds to the audit record what a handler knows of an object: the names of the fields
// that change.
func (r *Rights) Describe(o task.AuditObject) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = append(r.known, o)
}

// Because adds the caller's reason to the audit record.
func (r *Rights) Because(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reason = reason
}

// Authorize implements store.Authority.
func (r *Rights) Authorize(ctx context.Context, lost *store.Proof) (store.Proof, error) {
	v := r.judge.Keeper.View()
	if lost != nil {
		var err error
		if v, err = r.judge.Keeper.AwaitChange(ctx, *lost); err != nil {
			return store.Proof{}, err
		}
	}

	if p, err := r.authorizeAgain(v); err != nil || p.checks > 0 {
		return p.Proof, err
	}

	return store.Proof{}, fmt.Errorf("the operation %s writes without a check of what its caller may do", r.operation)
}

// proof is a store.Proof, and how many checks it is based on.
type proof struct {
	store.Proof
	checks int
}

// authorizeAgain judges everything again that the request was allowed before.
func (r *Rights) authorizeAgain(v *authority.View) (proof, error) {
	r.mu.Lock()
	checks, specs := slices.Clone(r.checks), maps.Clone(r.specs)
	r.mu.Unlock()

	if err := r.checkCredentials(v); err != nil {
		return proof{}, err
	}

	for _, c := range checks {
		if err := c(v); err != nil {
			return proof{}, err
		}
	}

	p := v.ProofOf(r.caller.Token)
	p.Specs = specs

	return proof{p, len(checks)}, nil
}

// checkCredentials returns why the caller's credentials are no longer accepted. Rules that depend on no right, such
// as that everyone may create tokens of their own subject, do not notice when the token is deleted or expires. A
// write must not commit then: the transaction compares the create revision of the token's key, and that of a
// missing key is 0.
func (r *Rights) checkCredentials(v *authority.View) error {
	caller := r.caller.Subject()
	if r.caller.Forwarder != "" || r.caller.IsHostUser() {
		return nil // the forwarding node checks them; the host's users have none
	}

	refuse := func(why string) error {
		return Fail(http.StatusUnauthorized, client.CodeUnauthorized, "%s", why)
	}
	if v.Disabled(caller.Subject) {
		return refuse("the subject is disabled")
	}
	if caller.Token == "" {
		return nil
	}

	if why := v.TokenProblem(caller, r.judge.Now()); why != "" {
		return refuse(why)
	}

	return nil
}

// Record implements store.Authority.
func (r *Rights) Record() task.AuditRecord {
	now := r.judge.Now()

	r.mu.Lock()
	defer r.mu.Unlock()

	return task.AuditRecord{
		ID: record.NewAuditID(now), Time: task.At(now), Node: cmp.Or(r.caller.Forwarder, r.judge.Node), Operation: r.operation, Reason: r.reason, Outcome: r.outcome, Objects: slices.Clone(r.known),
		Subject: r.caller.Who, Token: r.caller.Token, Certificate: r.caller.Certificate, Address: r.caller.Address,
	}
}

// GrantsAccess implements store.Authority.
func (r *Rights) GrantsAccess() bool {
	return r.judge.Keeper.View().Allows(r.caller.Subject(), access.Need{Verb: access.Grant, Kind: access.Access}, r.judge.Now())
}

// Committed implements store.Authority.
func (r *Rights) Committed(shards []int, revision int64) {
	r.written.mu.Lock()
	defer r.written.mu.Unlock()

	for _, shard := range shards {
		if r.written.revisions == nil {
			r.written.revisions = map[int]int64{}
		}
		r.written.revisions[shard] = max(r.written.revisions[shard], revision)
	}
}

// Written returns the last revision that the request has written to each shard. The caller must not change it, and the
// request must have ended. r may be nil.
func (r *Rights) Written() map[int]int64 {
	if r == nil {
		return nil
	}

	r.written.mu.Lock()
	defer r.written.mu.Unlock()

	return r.written.revisions
}

// Late implements store.Authority.
func (r *Rights) Late(a task.AuditRecord) { r.judge.Late(a) }

// RecordAround does something that is not one transaction, such as a change of etcd's members,
// between two audit records: the intent before and the outcome after. It is not done if the
// intent cannot be recorded.
func (r *Rights) RecordAround(ctx context.Context, s *store.Store, objects []task.AuditObject, do func() error) error {
	// The intent is written like any change: it commits only while the caller may do this.
	intent := r.Part()
	intent.Include(r)
	intent.outcome, intent.known = task.AuditIntended, objects
	if err := recordFirst(ctx, s, intent); err != nil {
		return err
	}

	err := do()

	a := r.Record()
	a.Objects, a.Outcome = objects, task.AuditDone
	if err != nil {
		a.Outcome = task.AuditFailed
	}

	// The change has happened: its outcome is recorded even if the caller has gone.
	if recordErr := s.RecordAudit(context.WithoutCancel(ctx), a); recordErr != nil {
		r.judge.Late(a)
	}

	return err
}

// RecordsReads reports whether a namespace asks that reads of output are recorded.
func (r *Rights) RecordsReads(namespace string) bool {
	n := r.View().Namespace(namespace)
	return n != nil && n.AuditReads
}

// RecordRead writes the audit record of a read of an object, before anything of it is sent. Like a change, it
// commits only while the caller may read the object; without it, the read must be refused.
//
// The node that forwards a request has written a record, and this node writes another one. An attacker with the key of a
// node writes no record there, and can name any caller.
func (r *Rights) RecordRead(ctx context.Context, s *store.Store, o task.AuditObject) error {
	o.Change = "read"
	read := r.Part()
	read.Include(r)
	read.outcome, read.known = task.AuditRead, []task.AuditObject{o}
	if r.caller.Forwarder != "" {
		read.outcome, read.reason = task.AuditForwarded, "served by node "+r.judge.Node
	}

	return recordFirst(ctx, s, read)
}

// recordFirst writes the audit record of something that must not be done without it. If nobody knows whether the record was
// written, it is not done, so the caller may try again. Then there may be two records, and not too few. The error of a full
// etcd stays: the caller must make space first.
func recordFirst(ctx context.Context, s *store.Store, r *Rights) error {
	err := s.As(r).RecordIntent(ctx)
	if errors.Is(err, task.ErrUnknown) && !store.NoSpace(err) {
		return fmt.Errorf("%w: %v", task.ErrUnavailable, err)
	}

	return err
}

// RecordLate keeps the audit record of something that was done while etcd was full, and not in a transaction. It is
// for what the caller was proved to be allowed to do.
func (r *Rights) RecordLate(objects []task.AuditObject, outcome string) {
	a := r.Record()
	a.Objects, a.Outcome, a.Late = objects, outcome, true
	r.judge.Late(a)
}

// ReadsSomething reports whether the caller may read the tasks of any namespace.
func (r *Rights) ReadsSomething() bool {
	within := r.Readable(access.Tasks)
	return within == nil || len(within) > 0
}

// Refusal returns why the access records of a view forbid something for which the caller needs all rights; nil if
// they do not. It is for rules that handlers pass to Check: unlike Require, it judges by the view that it gets, and
// remembers nothing.
func (r *Rights) Refusal(v *authority.View, needs ...access.Need) error {
	for _, need := range needs {
		if err := r.refusalOf(v, need); err != nil {
			return err
		}
	}

	return nil
}

// NoNamespace returns the error for a namespace that has no record, or that the caller may not read.
func NoNamespace(namespace string) error { return noNamespace(namespace) }

// RequireForwarded is CheckForwarded for another need than to read namespaces.
func (r *Rights) RequireForwarded(need access.Need) error {
	v := r.judge.Keeper.View()
	if v.Fence == 0 || v.Allows(r.caller.Subject(), need, r.judge.Now()) {
		return nil
	}

	return notAllowedHere()
}

func notAllowedHere() error {
	return Fail(http.StatusForbidden, client.CodeForbidden, "the access records of this node do not allow this")
}

// CheckForwarded refuses a request of another node if the access records of this node do not let its caller read the
// objects of a kind in some namespaces; nil: in all of them. A node without access records, which does not serve the API,
// refuses nothing. The other node has judged the caller already: the two differ only while one of them does not know a
// change yet.
func (r *Rights) CheckForwarded(k access.Kind, namespaces []string) error {
	v, caller, now := r.judge.Keeper.View(), r.caller.Subject(), r.judge.Now()
	if v.Fence == 0 {
		return nil
	}

	refused := namespaces == nil && !v.ReadsEveryNamespace(caller, k, now)
	for _, ns := range namespaces {
		refused = refused || !v.Allows(caller, access.Need{Verb: access.Read, Kind: k, Namespace: ns}, now)
	}

	if refused {
		return notAllowedHere()
	}

	return nil
}
