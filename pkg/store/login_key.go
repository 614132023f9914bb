package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

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
