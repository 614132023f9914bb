package audit

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/task"
)

// leaseJudge judges leases that no node's record contains.
type leaseJudge struct {
	judge
	pause time.Duration // between the two reads
}

// namesLease reports whether a node's record contains a lease.
func namesLease(n task.Node, lease int64) bool {
	for _, l := range n.Leases {
		if id, err := strconv.ParseInt(l, 16, 64); err == nil && id == lease {
			return true
		}
	}

	return false
}

// suspectLease suspects the lease of a record that no node's record contains. It is leaked only if a client still
// renews it. A lease that is not renewed expires by itself.
func (j *leaseJudge) suspectLease(ctx context.Context, e *mvccpb.KeyValue, message string) {
	ttl, err := j.reader.leaseTTL(ctx, e.Lease)
	if err != nil {
		j.addNote("cannot query lease %x: %v", e.Lease, err)
		return
	}

	f := kindLeakedLease.newFinding(message, string(e.Key))
	f.Do = strings.Replace(f.Do, "LEASE", fmt.Sprintf("%x", e.Lease), 1)

	// The record's revision is not a fact, because nodes rewrite their records all the time.
	j.suspectWith(f, leaseStillRenewed{reader: j.reader, key: string(e.Key), lease: e.Lease, ttl: ttl, pause: j.pause})
}

// leaseStillRenewed confirms that a lease still has its key, that no node's record contains it, and that it was
// renewed.
type leaseStillRenewed struct {
	reader *reader
	key    string // the key that has the lease
	lease  int64
	ttl    int64         // its remaining seconds at the first read
	pause  time.Duration // between the two reads: what a lease loses in this time if it is not renewed
}

// stillHolds reads the key, the nodes and the lease again.
func (r leaseStillRenewed) stillHolds(ctx context.Context) (bool, error) {
	res, err := r.reader.store.Client().Get(ctx, r.key)
	if err != nil {
		return false, unavailableError("read "+r.key, err)
	}
	if len(res.Kvs) == 0 || res.Kvs[0].Lease != r.lease {
		return false, nil
	}

	nodes, err := r.reader.store.Nodes(ctx)
	if err != nil {
		return false, err
	}

	for _, n := range nodes {
		if namesLease(n, r.lease) {
			return false, nil
		}
	}

	// A lease that was not renewed has lost about the pause by now.
	ttl, err := r.reader.leaseTTL(ctx, r.lease)

	return ttl >= 0 && ttl >= r.ttl-int64(r.pause/time.Second)/2, err
}
