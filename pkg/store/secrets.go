package store

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Secrets reads and writes the encrypted values of tasks (secrets/). It has no keys for them:
// values are encrypted before they are written and decrypted after they are read. The record of
// a deleted secret remains for a while, so that the next secret of the same name continues its
// generation.
type Secrets struct{ *conn }

// Secret reads a secret. The read is linearizable. If the secret does not exist, Secret returns
// task.ErrNotFound and a record with the revision and the generation that the next secret of
// this name continues.
func (s Secrets) Secret(ctx context.Context, namespace, name string) (record.Secret, error) {
	r := record.Secret{Secret: task.Secret{Namespace: namespace, Name: name}}
	e, err := s.getOne(ctx, s.keys.Secret(namespace, name))
	if err == nil && e != nil {
		r, err = s.keys.DecodeSecret(e)
	}

	if err == nil && (e == nil || r.Deleted()) {
		err = task.ErrNotFound
	}

	if err != nil {
		return r, fmt.Errorf("secret %s/%s: %w", namespace, name, err)
	}

	return r, nil
}

// secretsPage is how many secrets one request reads: at most 9 MB.
const secretsPage = 100

// Secrets lists a page of secrets in the order of their keys, of one namespace or, if namespace
// is empty, of all. after is the value that the previous page returned as next, or empty for
// the first page. A page may have fewer than limit secrets although more follow, because the
// values are read, too, and may be long. A secret that cannot be read has only its name.
func (s Secrets) Secrets(ctx context.Context, namespace, after string, limit int) (list []task.Secret, next string, err error) {
	prefix := s.keys.Secrets()
	if namespace != "" {
		prefix = s.keys.SecretsOf(namespace)
	}

	from := prefix
	if after != "" {
		from = s.keys.Secrets() + after + "\x00"
	}

	end := clientv3.GetPrefixRangeEnd(prefix)
	if from < prefix || from >= end {
		return nil, "", task.Invalid(task.CodeBadValue, "page", "is not a page token of this list")
	}

	res, err := s.readKey(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(int64(min(limit, secretsPage))))
	if err != nil {
		return nil, "", fmt.Errorf("list secrets: %w", err)
	}

	for _, e := range res.Kvs {
		if _, _, ok := s.keys.ParseSecret(string(e.Key)); !ok {
			continue
		}

		if r, err := s.keys.DecodeSecret(e); err != nil || !r.Deleted() {
			list = append(list, r.Secret)
		}
	}

	if res.More && len(res.Kvs) > 0 {
		next = string(res.Kvs[len(res.Kvs)-1].Key)[len(s.keys.Secrets()):]
	}

	return list, next, nil
}

// CountSecrets counts the secrets of a namespace, and what is left of deleted ones.
func (s Secrets) CountSecrets(ctx context.Context, namespace string) (int64, error) {
	prefix := s.keys.SecretsOf(namespace)

	res, err := s.readKey(ctx, prefix, withPrefix(prefix), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("count secrets: %w", err)
	}

	return res.Count, nil
}

// SweepSecrets is like SweepTombstones for the records of secrets that were deleted before a
// time. The next secret of such a name begins with generation 1 again.
func (s Secrets) SweepSecrets(ctx context.Context, before task.Time, after string, most int) (removed int, next string, err error) {
	return s.sweepOld(ctx, s.keys.Secrets(), after, most, func(e *mvccpb.KeyValue) bool {
		r, err := s.keys.DecodeSecret(e)
		return err == nil && r.Deleted() && r.UpdatedAt.Before(before.Time)
	})
}

// PutSecret replaces the secret that was read with the mod revision old (0: the key must be
// absent), and returns the new mod revision. It returns task.ErrConflict if the record has
// changed.
func (s Secrets) PutSecret(ctx context.Context, old int64, r record.Secret) (int64, error) {
	key := s.keys.Secret(r.Namespace, r.Name)
	r.Revision = 0

	res, err := s.writeTxn(ctx, kv.Txn{If: []clientv3.Cmp{isUnchanged(key, old)}, Then: []clientv3.Op{clientv3.OpPut(key, record.Encode(r))}})
	if err == nil && !res.Succeeded {
		err = task.ErrConflict
	}

	if err != nil {
		return 0, fmt.Errorf("write secret %s/%s: %w", r.Namespace, r.Name, err)
	}

	return res.Revision, nil
}
