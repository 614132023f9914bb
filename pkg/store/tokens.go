package store

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Tokens reads and writes API tokens (tokens/). It stores only the hash of the secret of a
// token. A token is never replaced.
type Tokens struct{ *conn }

// Token reads the record of an API token. It returns task.ErrNotFound if there is none.
func (s Tokens) Token(ctx context.Context, id string) (record.Token, error) {
	e, err := s.getOne(ctx, s.keys.Token(id))
	if err != nil {
		return record.Token{}, fmt.Errorf("read token: %w", err)
	}
	if e == nil {
		return record.Token{}, fmt.Errorf("token: %w", task.ErrNotFound)
	}

	return record.Decode[record.Token](e.Value)
}

// FoundToken is the record of a token, or the reason why there is none: task.ErrNotFound, or
// task.ErrInvalid if the record cannot be read.
type FoundToken struct {
	Token record.Token
	Err   error
}

// FindTokens reads the records of at most 128 tokens at one revision. The result has the order
// of ids.
func (s Tokens) FindTokens(ctx context.Context, ids []string) ([]FoundToken, error) {
	ops := make([]clientv3.Op, len(ids))
	for i, id := range ids {
		ops[i] = clientv3.OpGet(s.keys.Token(id))
	}

	res, err := s.etcd.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, fmt.Errorf("read %d tokens: %w: %w", len(ids), task.ErrUnavailable, err)
	}

	found := make([]FoundToken, len(ids))
	for i := range ids {
		if e := readAt(kv.Result{Responses: res.Responses}, i); e != nil {
			found[i].Token, found[i].Err = record.Decode[record.Token](e.Value)
		} else {
			found[i].Err = fmt.Errorf("token: %w", task.ErrNotFound)
		}
	}

	return found, nil
}

// HasTokens reports whether the cluster has any token.
func (s Tokens) HasTokens(ctx context.Context) (bool, error) {
	res, err := s.readKey(ctx, s.keys.Tokens(), withPrefix(s.keys.Tokens()), clientv3.WithCountOnly())
	if err != nil {
		return false, fmt.Errorf("look for tokens: %w", err)
	}
	return res.Count > 0, nil
}

// CreateFirstToken creates a token if the cluster has none at all. Otherwise it returns
// task.ErrExists. So of several nodes that start together, only one creates the first token.
func (s Tokens) CreateFirstToken(ctx context.Context, id string, t record.Token) error {
	none := kv.CreateIs(s.keys.Tokens(), 0).WithPrefix()
	return s.createToken(ctx, none, id, t)
}

// CreateToken creates a token. It returns task.ErrExists if the token exists.
func (s Tokens) CreateToken(ctx context.Context, id string, t record.Token) error {
	return s.createToken(ctx, isAbsent(s.keys.Token(id)), id, t)
}

// createToken creates a token if the comparison free holds.
func (s Tokens) createToken(ctx context.Context, free clientv3.Cmp, id string, t record.Token) error {
	res, err := s.writeAlone(ctx, kv.Txn{If: []clientv3.Cmp{free}, Then: []clientv3.Op{clientv3.OpPut(s.keys.Token(id), record.Encode(t))}})
	if err == nil && !res.Succeeded {
		err = task.ErrExists
	}

	if err != nil {
		return fmt.Errorf("create token: %w", err)
	}

	return nil
}
