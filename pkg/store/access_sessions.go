package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// NewSession is a session or a login link to create.
type NewSession struct {
	Token record.Token
	// Remove are the ids of other sessions or links that the same transaction deletes, because they have ended or because
	// there are too many. It is not an error if one of them is gone.
	Remove []string
}

// CreateSession writes the record of a new session or of a new login link. task.ErrExists if its id is taken.
//
// On behalf of a caller (see Store.As), the transaction compares that the caller's token still exists. That token is the
// parent, so no session is created after its parent was deleted.
func (s Access) CreateSession(ctx context.Context, n NewSession) error {
	key := s.keys.Token(n.Token.ID)
	res, err := s.writeAlone(ctx, kv.Txn{If: []clientv3.Cmp{isAbsent(key)}, Then: s.opsOf(n)})
	if err == nil && !res.Succeeded {
		err = task.ErrExists
	}

	if err != nil {
		return fmt.Errorf("create %s: %w", n.Token.Kind, err)
	}

	return nil
}

// UseLink replaces a login link by a session, in one transaction: a link becomes one session at most, however many nodes it
// is sent to at once. created is the create revision of the link's key. task.ErrConflict if the link is gone.
//
// The transaction shares no request with others, because the comparisons of a shared request see the state before all of
// it: two uses of a link in one request would both succeed.
func (s Access) UseLink(ctx context.Context, link string, created int64, n NewSession) error {
	key := s.keys.Token(link)
	t := kv.Txn{
		If:   []clientv3.Cmp{kv.CreateIs(key, created), isAbsent(s.keys.Token(n.Token.ID))},
		Then: append(s.opsOf(n), clientv3.OpDelete(key)),
	}

	res, err := s.writeAlone(ctx, t)
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return fmt.Errorf("use login link: %w", err)
	}

	return nil
}

// opsOf returns the writes that create a session.
func (s Access) opsOf(n NewSession) []clientv3.Op {
	ops := []clientv3.Op{clientv3.OpPut(s.keys.Token(n.Token.ID), record.Encode(n.Token)), s.putTokenChanges()}
	for _, id := range n.Remove {
		ops = append(ops, clientv3.OpDelete(s.keys.Token(id)))
	}

	return ops
}

// LoginKey returns the random key that seals logins which are under way and the cookies of sessions. If there is none, it creates the key. If several
// nodes do that together, all of them return the same key.
//
// Nothing that lasts depends on the key: if it is deleted, the API nodes must be restarted to agree on a new one. People must
// sign in to the Web UI again, and logins that are under way must be begun again.
func (s Access) LoginKey(ctx context.Context) (key [record.LoginKeyBytes]byte, err error) {
	var wait conflictBackoff

	for {
		e, err := s.getOne(ctx, s.keys.LoginKey())
		if err != nil {
			return key, fmt.Errorf("read the login key: %w", err)
		}

		if e != nil {
			r, err := record.Decode[record.LoginKey](e.Value)
			if err != nil || len(r.Key) != len(key) {
				return key, fmt.Errorf("%w: the record %s is not a login key; delete it to create another one", task.ErrInvalid, s.keys.LoginKey())
			}
			return [record.LoginKeyBytes]byte(r.Key), nil
		}

		made := record.LoginKey{Key: make([]byte, record.LoginKeyBytes)}
		rand.Read(made.Key) // crypto/rand never fails
		_, err = s.writeAlone(ctx, kv.Txn{
			If:   []clientv3.Cmp{isAbsent(s.keys.LoginKey())},
			Then: []clientv3.Op{clientv3.OpPut(s.keys.LoginKey(), record.Encode(made))},
		})
		if errors.Is(err, task.ErrUnknown) {
			err = wait.waitBackoff(ctx)
		}
		if err != nil {
			return key, fmt.Errorf("create the login key: %w", err)
		}
	}
}

// OperationSweepTokens is the operation of the audit records of DeleteExpiredTokens. Their subject is the node.
const OperationSweepTokens = "sweep-tokens"

// expiredPerTxn is how many tokens one transaction deletes at most. Each is one comparison and one operation.
const expiredPerTxn = 50

// ExpiredToken is a token that has expired, and the mod revision of its key.
type ExpiredToken struct {
	task.Token
	Mod int64
}

// DescribeToken returns what the audit record of a change says of a token. before is nil for a new token, and after for a
// deleted one.
func DescribeToken(before, after *task.Token) task.AuditObject {
	t := before
	if t == nil {
		t = after
	}

	o := task.AuditObject{Kind: "token", Name: t.ID, Changes: task.AccessChanges(before, after)}
	if t.Scope != nil {
		o.Namespaces = t.Scope.Namespaces
	}

	return o
}

// ExpiredTokens lists tokens that ended before an instant, and sessions and login links that ended before another, of at
// most limit records in the order of their ids. after is the id after which the list begins. next is "" after the last
// record, else what to pass as after.
func (s Access) ExpiredTokens(ctx context.Context, tokensBefore, sessionsBefore time.Time, after string, limit int) (list []ExpiredToken, next string, err error) {
	prefix := s.keys.Tokens()
	from := prefix
	if after != "" {
		from = prefix + after + "\x00"
	}

	res, err := s.readKey(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(int64(limit)))
	if err != nil {
		return nil, "", fmt.Errorf("look for expired tokens: %w", err)
	}

	for _, e := range res.Kvs {
		next = string(e.Key)[len(prefix):]

		// A record that cannot be read has no end. It allows nothing, and the node's log names it.
		t, err := record.Decode[record.Token](e.Value)
		before := tokensBefore
		if t.Kind != task.TokenKindToken {
			before = sessionsBefore
		}

		if err == nil && !t.Until.IsZero() && t.Until.Before(before) {
			t.ID = next // the key decides
			list = append(list, ExpiredToken{t.Token, e.ModRevision})
		}
	}

	if !res.More {
		next = ""
	}

	return list, next, nil
}

// DeleteExpiredTokens deletes tokens that have expired, and returns how many it deleted. A node does so by itself, and not
// on behalf of a caller. Each transaction compares that none of its tokens has been written since it was read, and contains
// an audit record whose subject is the node. If a token was written or deleted meanwhile, the others of the same
// transaction stay, too, and a later call deletes them.
//
// The fence stays as it is: an expired token authorises nothing, so its deletion takes nothing away.
func (s Access) DeleteExpiredTokens(ctx context.Context, node string, tokens []ExpiredToken, now time.Time) (deleted int, err error) {
	for some := range slices.Chunk(tokens, expiredPerTxn) {
		audit := task.AuditRecord{
			ID: record.NewAuditID(now), Time: task.At(now), Node: node, Subject: "node:" + node, Operation: OperationSweepTokens, Reason: "expired",
		}

		var t kv.Txn
		var objects record.AuditObjects
		for _, token := range some {
			key := s.keys.Token(token.ID)
			t.If = append(t.If, isUnchanged(key, token.Mod))
			t.Then = append(t.Then, clientv3.OpDelete(key))
			objects.Add(s.keys, key, nil, true)
			objects.Complete(DescribeToken(&token.Token, nil))
		}

		audit.Objects = objects.List()
		key := s.keys.AuditRecord(audit.ID)
		t.If = append(t.If, isAbsent(key))
		t.Then = append(t.Then, s.putTokenChanges(), clientv3.OpPut(key, record.EncodeAudit(&audit)))

		res, err := commitWrite(ctx, s.alone, t)
		if err != nil {
			return deleted, fmt.Errorf("delete expired tokens: %w", err)
		}
		if res.Succeeded {
			deleted += len(some)
		}
	}

	return deleted, nil
}
