package mutant

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// forgedRenewals answers every renewal with a success: a node that is cut off
// never learns that its lease has ended, and never kills what others replace.
func forgedRenewals(keysOf) infect {
	return func(_ string, c *clientv3.Client) { c.Lease = forged{c.Lease} }
}

type forged struct{ clientv3.Lease }

func (f forged) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	resp, err := f.Lease.KeepAliveOnce(ctx, id)
	if err != nil {
		return &clientv3.LeaseKeepAliveResponse{ID: id, TTL: 10}, nil
	}
	return resp, nil
}
