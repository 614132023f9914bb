package store

import (
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Authority is on whose behalf a Store writes: a caller of the API whose request was
// authorised by the access records of one revision. See Store.As.
type Authority interface {
	// Authorize judges the request by the newest access records that the node knows. It is
	// called before each attempt of a write, so that what has ended by time since counts, too.
	// lost is the proof of the attempt before, which did not hold when the transaction was
	// applied; nil at first. Then it waits for the change that the proof lost to. Its error is
	// final.
	Authorize(ctx context.Context, lost *Proof) (Proof, error)
	// Record returns what the audit record of a write says, apart from its objects.
	Record() task.AuditRecord
	// GrantsAccess reports whether the caller has grant on access: some of the changes of access records within a second
	// are reserved for such callers.
	GrantsAccess() bool
	// Committed takes the revision of a write that has committed, and the shards to which it has written.
	Committed(shards []int, revision int64)
	// Late takes an audit record that a full etcd could not store beside its change.
	Late(task.AuditRecord)
}

// Proof is what a write compares, so that it commits only while its authorisation holds.
type Proof struct {
	// Fence is the mod revision of the fence's key in the records that authorised the write.
	Fence int64
	// Token is the id of the caller's token, "" if it has none, and TokenCreated the create
	// revision of its key.
	Token        string
	TokenCreated int64
	// Parent is the id of the token with which the caller's session was created, "" if the caller's token is not a session,
	// and ParentCreated the create revision of its key.
	Parent        string
	ParentCreated int64
	// Specs are the mod revisions of the specs of tasks whose labels were judged; 0: there is none. A write that
	// finds another one fails as if the task had changed: the caller judges the labels again.
	Specs map[record.Ref]int64
}

// comparedToken is a token whose key a write compares.
type comparedToken struct {
	id      string
	created int64 // the create revision of its key
}

// tokens are the tokens that must exist when a write commits: that of the caller, and the parent of a session.
func (p Proof) tokens() []comparedToken {
	var list []comparedToken
	if p.Token != "" {
		list = append(list, comparedToken{p.Token, p.TokenCreated})
	}
	if p.Parent != "" {
		list = append(list, comparedToken{p.Parent, p.ParentCreated})
	}

	return list
}

// maxAuthorizations is how often one write is authorised at most. Each time but the last, the
// access records changed between the authorisation and the commit.
const maxAuthorizations = 5

// As returns the same Store, with each of its writes made on behalf of a caller: the
// transaction compares that the caller's authorisation still holds, and contains the audit
// record. No write commits after the caller's rights were reduced or its token was deleted.
//
// All writes of the API go through As. Writes that a node makes by itself (commits of owners,
// finishes of runs, presence) do not: fences of their own guard them.
func (s *Store) As(a Authority) *Store {
	c := *s.conn
	c.authority = a

	return newOverConn(&c)
}

// commitAs is write on behalf of a caller.
func (s *conn) commitAs(ctx context.Context, c kv.Committer, t kv.Txn) (kv.Result, error) {
	res, err := s.authorized(ctx, t, func(proof Proof) (kv.Result, error) {
		audit := s.auditRecord(t)
		res, err := commitWrite(ctx, c, s.guard(t, proof, &audit))

		// A full etcd accepts deletions only. They are what makes room, and what revokes, so they are
		// made without their audit record.
		if then := s.deletionsOf(t.Then); NoSpace(err) && then != nil {
			audit.Late = true
			deletions := t
			deletions.Then = then
			if res, err = commitWrite(ctx, c, s.guard(deletions, proof, nil)); err == nil && res.Succeeded {
				audit.Revision = res.Revision
				s.authority.Late(audit)
			}
		}

		return res, err
	})

	if err == nil && res.Succeeded {
		s.authority.Committed(s.shardsOf(t.Then), res.Revision)
	}

	return res, err
}

// shardsOf returns the shards to which operations write.
func (s *conn) shardsOf(ops []clientv3.Op) (shards []int) {
	for i := range ops {
		if k, ok := s.keys.ParseShard(string(ops[i].KeyBytes())); ok && !slices.Contains(shards, k.Ref.Shard) {
			shards = append(shards, k.Ref.Shard)
		}
	}

	return shards
}

// proveAs checks, at one revision of etcd, that comparisons hold and that the caller's authorisation does. It writes
// nothing, so it also works in a full etcd.
func (s *conn) proveAs(ctx context.Context, cmps ...clientv3.Cmp) (holds bool, err error) {
	t := kv.Txn{If: cmps}

	res, err := s.authorized(ctx, t, func(proof Proof) (kv.Result, error) {
		g := s.guard(t, proof, nil)

		// A transaction without writes is a linearizable read. It never shares a request with writes, which etcd may refuse.
		res, err := s.etcd.Txn(ctx).If(g.If...).Else(g.Else...).Commit()
		if err != nil {
			return kv.Result{}, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
		}

		return kv.Result{Succeeded: res.Succeeded, Revision: res.Header.Revision, Responses: res.Responses}, nil
	})

	return res.Succeeded, err
}

// authorized sends a transaction on behalf of a caller. send adds the comparisons of a proof, with guard. If they do not
// hold, the caller is authorised again.
func (s *conn) authorized(ctx context.Context, t kv.Txn, send func(Proof) (kv.Result, error)) (kv.Result, error) {
	var lost *Proof

	for range maxAuthorizations {
		proof, err := s.authority.Authorize(ctx, lost)
		if err != nil {
			return kv.Result{}, err
		}

		res, err := send(proof)
		if err != nil || res.Succeeded {
			return res, err
		}

		holds := s.proofHolds(res, len(t.Else), proof)
		res.Responses = res.Responses[:min(len(t.Else), len(res.Responses))]
		if holds {
			return res, nil // another comparison failed
		}

		lost = &proof
	}

	return kv.Result{}, fmt.Errorf("%w: the access records changed %d times during the request", task.ErrUnavailable, maxAuthorizations)
}

// guard adds to a transaction the comparisons of a proof, an audit record (if not nil), and
// reads by which a failure tells whether the proof still held. A transaction with an audit
// record takes effect once, however often it is delivered.
func (s *conn) guard(t kv.Txn, p Proof, audit *task.AuditRecord) kv.Txn {
	g := t
	g.If = append(slices.Clip(t.If), isUnchanged(s.keys.Fence(), p.Fence))
	g.Else = append(slices.Clip(t.Else), clientv3.OpGet(s.keys.Fence(), clientv3.WithKeysOnly()))

	for _, token := range p.tokens() {
		key := s.keys.Token(token.id)
		g.If = append(g.If, kv.CreateIs(key, token.created))
		g.Else = append(g.Else, clientv3.OpGet(key, clientv3.WithKeysOnly()))
	}

	for ref, mod := range p.Specs {
		g.If = append(g.If, isUnchanged(s.keys.Spec(ref), mod))
	}

	// The record is new, so a copy of the transaction that arrives later changes nothing. Without this, a copy of a write
	// that only creates would create again what has ended or was deleted since.
	if audit != nil {
		g.If = append(g.If, isAbsent(s.keys.AuditRecord(audit.ID)))
		g.Then = append(slices.Clip(t.Then), clientv3.OpPut(s.keys.AuditRecord(audit.ID), record.EncodeAudit(audit)))
	}

	return g
}

// proofHolds reports whether a failed transaction found what its proof compares. first is the
// index of the first read that guard has added.
func (s *conn) proofHolds(res kv.Result, first int, p Proof) bool {
	fence := readAt(res, first)
	if fence == nil || fence.ModRevision != p.Fence {
		return false
	}

	for i, token := range p.tokens() {
		found := readAt(res, first+1+i)
		if found == nil || found.CreateRevision != token.created {
			return false
		}
	}

	return true
}

// deletionsOf returns what a full etcd accepts instead of the operations of a transaction that only deletes; nil if the
// transaction does something else. A transaction that changes nothing is there for its audit record, which is all that an
// intent writes.
//
// The deletion of a token puts record.AccessKeys.TokenChanges. A full etcd accepts the deletion of that key instead, after
// which a node no longer takes the key for a proof that its copy of the access records is current.
func (s *conn) deletionsOf(ops []clientv3.Op) []clientv3.Op {
	deletions := make([]clientv3.Op, 0, len(ops))
	for _, op := range ops {
		switch {
		case op.IsDelete():
			deletions = append(deletions, op)
		case op.IsPut() && string(op.KeyBytes()) == s.keys.TokenChanges():
			deletions = append(deletions, clientv3.OpDelete(s.keys.TokenChanges()))
		default:
			return nil
		}
	}

	if len(deletions) == 0 {
		return nil
	}

	return deletions
}

// auditRecord returns the audit record of a transaction: its objects follow from the keys that
// it writes, so that no write can be without its object.
func (s *conn) auditRecord(t kv.Txn) task.AuditRecord {
	r := s.authority.Record()
	if r.Outcome != "" { // an intent: the transaction changes nothing else
		return r
	}

	var objects record.AuditObjects

	for i := range t.Then {
		op := &t.Then[i]
		if op.IsPut() || op.IsDelete() {
			objects.Add(s.keys, string(op.KeyBytes()), op.ValueBytes(), op.IsDelete())
		}
	}

	// The handler may know more of an object than its key shows, such as the changed fields.
	for _, known := range r.Objects {
		objects.Complete(known)
	}

	r.Objects = objects.List()

	return r
}
