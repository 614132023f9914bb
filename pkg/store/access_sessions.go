package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// NewSession is a session or a login link that is to be created.
type NewSession struct {
	Token record.Token
	// Remove are the ids of other sessions or links that the same transaction deletes, because they have ended or because
	// there are too many. It is no error if one of them is gone.
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
