package store

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Access reads and writes who may do what (access/), and reads audit records (audit/).
//
// Every write of a role, a binding, a namespace or a disabled subject puts the fence in the
// same transaction; nobody decides case by case whether a change takes something away. Since
// each write compares the fence, too (see Store.As), these writes follow one another, and each
// was judged by exactly the records that it changes. Only the creation and the deletion of a
// token leave the fence alone: a new token takes nothing away, and each write of a token's
// holder compares that its token exists. They put a key of their own instead
// (record.AccessKeys.TokenChanges), which no write compares, so that a node can tell with two
// keys whether its copy of all access records is current. A token can be revoked in a full etcd,
// which accepts only deletions: its deletion deletes that key, too.
//
// The writes never share a request with others: all writes of the API compare the fence.
type Access struct{ *conn }

// FenceRevision returns the mod revision of the fence of the access records; 0: there is none. A copy of the records with this fence,
// or with a later one, contains everything that was written before the call, except for tokens.
func (s Access) FenceRevision(ctx context.Context) (int64, error) {
	fence, err := s.getOne(ctx, s.keys.Fence())
	if err != nil {
		return 0, fmt.Errorf("read the fence of the access records: %w", err)
	}
	if fence == nil {
		return 0, nil
	}

	return fence.ModRevision, nil
}

// PutRole writes a role over the one that was read at mod revision mod (0: there was none),
// and returns its revision. now limits how often the fence is written: task.ErrTooMany if it
// was written too often within the last second. task.ErrConflict if the role has changed.
func (s Access) PutRole(ctx context.Context, mod int64, r task.Role, now time.Time) (int64, error) {
	r.Revision = 0
	return s.putAccess(ctx, s.keys.Role(r.Name), mod, record.Encode(r), now)
}

// DeleteRole deletes a role.
func (s Access) DeleteRole(ctx context.Context, name string, mod int64, now time.Time) error {
	return s.deleteAccess(ctx, s.keys.Role(name), mod, now)
}

// PutBinding is PutRole for a binding.
func (s Access) PutBinding(ctx context.Context, mod int64, b task.Binding, now time.Time) (int64, error) {
	b.Revision = 0
	return s.putAccess(ctx, s.keys.Binding(b.Name), mod, record.Encode(b), now)
}

// DeleteBinding deletes a binding.
func (s Access) DeleteBinding(ctx context.Context, name string, mod int64, now time.Time) error {
	return s.deleteAccess(ctx, s.keys.Binding(name), mod, now)
}

// PutNamespace is PutRole for the record of a namespace.
func (s Access) PutNamespace(ctx context.Context, mod int64, n task.Namespace, now time.Time) (int64, error) {
	n.Revision = 0
	return s.putAccess(ctx, s.keys.Namespace(n.Name), mod, record.Encode(n), now)
}

// DeleteNamespace deletes the record of a namespace that has no tasks and no secrets, with its silences, its rules of alerts, what was sent to
// its receivers, and the tombstones of its tasks, so that a later namespace of the same name does not give access to them. It returns
// task.ErrConflict if the namespace has any tasks or secrets. The caller must know that the namespace is not frozen: freezes is the record that
// says so, and task.ErrConflict is returned if that has changed.
func (s Access) DeleteNamespace(ctx context.Context, name string, mod int64, freezes FreezeRecord, now time.Time) error {
	empty := []clientv3.Cmp{
		kv.CreateIs(s.keys.SpecsOf(name), 0).WithPrefix(),
		kv.CreateIs(s.keys.SecretsOf(name), 0).WithPrefix(),
		isUnchanged(s.keys.Freezes(), freezes.Mod),
	}

	ops := []clientv3.Op{clientv3.OpDelete(s.keys.Namespace(name)), clientv3.OpDelete(s.keys.Graph(name))}
	for _, prefix := range []string{s.keys.SentIn(name), s.keys.SilencesOf(name), s.keys.AlertRulesOf(name), s.keys.TombstonesIn(name)} {
		ops = append(ops, clientv3.OpDelete(prefix, withPrefix(prefix)))
	}
	_, err := s.writeAccess(ctx, now, append(empty, isUnchanged(s.keys.Namespace(name), mod)), ops...)

	return err
}

// DisableSubject has a subject do nothing from now on.
func (s Access) DisableSubject(ctx context.Context, subject string, now time.Time) error {
	_, err := s.putAccess(ctx, s.keys.DisabledSubject(subject), 0, record.Encode(record.Timestamp{At: task.At(now)}), now)

	return err
}

// EnableSubject undoes DisableSubject. mod is the mod revision of the subject's key.
func (s Access) EnableSubject(ctx context.Context, subject string, mod int64, now time.Time) error {
	return s.deleteAccess(ctx, s.keys.DisabledSubject(subject), mod, now)
}

func (s Access) putAccess(ctx context.Context, key string, mod int64, value string, now time.Time) (int64, error) {
	return s.writeAccess(ctx, now, []clientv3.Cmp{isUnchanged(key, mod)}, clientv3.OpPut(key, value))
}

func (s Access) deleteAccess(ctx context.Context, key string, mod int64, now time.Time, more ...clientv3.Cmp) error {
	_, err := s.writeAccess(ctx, now, append(more, isUnchanged(key, mod)), clientv3.OpDelete(key))
	return err
}

// writeAccess changes a record below access/, and the fence with it.
func (s Access) writeAccess(ctx context.Context, now time.Time, compares []clientv3.Cmp, ops ...clientv3.Op) (int64, error) {
	fence, err := s.getOne(ctx, s.keys.Fence())
	if err != nil {
		return 0, fmt.Errorf("read the fence: %w", err)
	}

	value, mod, err := nextFence(fence, s.fenceCaller(), now)
	if err != nil {
		return 0, err
	}

	res, err := s.writeAlone(ctx, kv.Txn{
		If:   append(compares, isUnchanged(s.keys.Fence(), mod)),
		Then: append(ops, clientv3.OpPut(s.keys.Fence(), record.Encode(value))),
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return 0, fmt.Errorf("change access: %w", err)
	}

	return res.Revision, nil
}

// fenceCaller is on whose behalf the fence is written.
type fenceCaller struct {
	subject string // "" for the node itself
	grants  bool   // the subject has grant on access
}

func (s Access) fenceCaller() fenceCaller {
	if s.authority == nil {
		return fenceCaller{}
	}
	return fenceCaller{subject: s.authority.Record().Subject, grants: s.authority.GrantsAccess()}
}

// nextFence returns the fence's next value, and the mod revision of the present one. It returns task.ErrTooMany if the
// caller must wait (see record.FenceWrites).
func nextFence(e *mvccpb.KeyValue, by fenceCaller, now time.Time) (f record.Fence, mod int64, err error) {
	if e != nil {
		mod = e.ModRevision
		f, _ = record.Decode[record.Fence](e.Value) // a value that cannot be read limits nothing
	}

	own := 0
	var recent []record.FenceWrite
	for _, w := range f.Writes {
		if age := now.Sub(w.At.Time); age >= time.Second || age < -time.Minute { // clocks of nodes differ
			continue
		}

		recent = append(recent, w)
		if w.By == by.subject {
			own++
		}
	}

	isLimited := by.subject != "" && !by.grants
	switch {
	case len(recent) >= record.FenceWrites:
		return f, mod, task.ErrTooMany
	case isLimited && (own >= record.FenceWritesOfSubject || len(recent) >= record.FenceWrites-record.FenceWritesReserved):
		return f, mod, task.ErrTooMany
	}

	f.Writes = append(recent, record.FenceWrite{At: task.At(now), By: by.subject})

	return f, mod, nil
}

// CreateToken writes the record of a new token; task.ErrExists if its id is taken.
func (s Access) CreateToken(ctx context.Context, t record.Token) error {
	key := s.keys.Token(t.ID)
	res, err := s.writeAlone(ctx, kv.Txn{
		If:   []clientv3.Cmp{isAbsent(key)},
		Then: []clientv3.Op{clientv3.OpPut(key, record.Encode(t)), s.putTokenChanges()},
	})
	if err == nil && !res.Succeeded {
		err = task.ErrExists
	}

	if err != nil {
		return fmt.Errorf("create token: %w", err)
	}

	return nil
}

// putTokenChanges is part of each transaction that creates or deletes tokens. The value has no meaning.
func (s *conn) putTokenChanges() clientv3.Op { return clientv3.OpPut(s.keys.TokenChanges(), "{}") }

// Token reads a token's record; task.ErrNotFound if there is none. The API finds tokens in its
// own copy of all access records instead.
func (s Access) Token(ctx context.Context, id string) (record.Token, error) {
	e, err := s.getOne(ctx, s.keys.Token(id))
	if err != nil {
		return record.Token{}, fmt.Errorf("read token: %w", err)
	}
	if e == nil {
		return record.Token{}, fmt.Errorf("token: %w", task.ErrNotFound)
	}

	return record.Decode[record.Token](e.Value)
}

// DeleteToken deletes a token. No write of its holder commits after it has returned.
// task.ErrConflict if the token is not the one that was created at revision created, or is gone.
func (s Access) DeleteToken(ctx context.Context, id string, created int64) error {
	key := s.keys.Token(id)
	res, err := s.writeAlone(ctx, kv.Txn{
		If:   []clientv3.Cmp{kv.CreateIs(key, created)},
		Then: []clientv3.Op{clientv3.OpDelete(key), s.putTokenChanges()},
	})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return fmt.Errorf("delete token: %w", err)
	}

	return nil
}

// RecordIntent writes the audit record of the Store's Authority, and nothing else, under the comparisons of every write
// on its behalf: before something that is not one transaction, or before a read. task.ErrConflict if the spec of a task
// whose labels were judged has changed.
func (s Access) RecordIntent(ctx context.Context) error {
	res, err := s.writeTxn(ctx, kv.Txn{})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return fmt.Errorf("write audit record: %w", err)
	}

	return nil
}

// RecordAudit writes an audit record by itself: the intent and the outcome of what is not one
// transaction, a refused login, or a record that is late. It is not made on anyone's behalf.
//
// It does nothing if the record exists: a caller that does not know whether it was written repeats the write, and an audit record
// is never rewritten.
func (s Access) RecordAudit(ctx context.Context, r task.AuditRecord) error {
	key := s.keys.AuditRecord(r.ID)
	t := kv.Txn{If: []clientv3.Cmp{isAbsent(key)}, Then: []clientv3.Op{clientv3.OpPut(key, record.EncodeAudit(&r))}}
	if _, err := commitWrite(ctx, s.writes, t); err != nil {
		return fmt.Errorf("write audit record: %w", err)
	}

	return nil
}

// AuditRecords lists audit records, the oldest first, from the first whose id is after (""
// for the first of all) on. next is "" after the last, else what to pass as after.
func (s Access) AuditRecords(ctx context.Context, after string, limit int) (list []task.AuditRecord, next string, err error) {
	prefix := s.keys.AuditRecords()
	from := prefix
	if after != "" {
		from = prefix + after + "\x00"
	}

	res, err := s.readKey(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(int64(limit)))
	if err != nil {
		return nil, "", fmt.Errorf("list audit records: %w", err)
	}

	for _, e := range res.Kvs {
		list = append(list, s.keys.DecodeAudit(e))
	}

	if res.More && len(list) > 0 {
		next = list[len(list)-1].ID
	}

	return list, next, nil
}

// PutNodeLimit is PutRole for a limit of nodes.
func (s Access) PutNodeLimit(ctx context.Context, mod int64, l task.NodeLimit, now time.Time) (int64, error) {
	l.Revision = 0
	return s.putAccess(ctx, s.keys.NodeLimit(l.Name), mod, record.Encode(l), now)
}

// DeleteNodeLimit deletes a limit of nodes.
func (s Access) DeleteNodeLimit(ctx context.Context, name string, mod int64, now time.Time) error {
	return s.deleteAccess(ctx, s.keys.NodeLimit(name), mod, now)
}
