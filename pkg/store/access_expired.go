package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

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
