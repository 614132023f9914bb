package mutant

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// forgedRenewals answers every renewal of a lease with success. A node that is cut off never learns that its lease
// has expired, and never kills the attempts that others replace.
func forgedRenewals(keysOf) injector {
	return func(_ string, c *clientv3.Client) { c.Lease = forged{c.Lease} }
}

// forged is a Lease whose renewals never fail.
type forged struct{ clientv3.Lease }

// KeepAliveOnce renews the lease, and reports a success even if that fails.
func (f forged) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	resp, err := f.Lease.KeepAliveOnce(ctx, id)
	if err != nil {
		return &clientv3.LeaseKeepAliveResponse{ID: id, TTL: 10}, nil
	}
	return resp, nil
}
