package sim

import (
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// deliveries records what watches have delivered, and when.
type deliveries struct {
	wanted bool // set before the first node starts

	mu  sync.Mutex
	all []delivery
}

// delivery is a response of a watch, or several at one time. Everything up to the revision has been delivered.
type delivery struct {
	at       time.Time
	revision int64
}

// add records a response that is delivered now.
func (d *deliveries) add(r *clientv3.WatchResponse) {
	if !d.wanted || r.Created || r.Err() != nil {
		return
	}

	one := delivery{time.Now(), r.Header.Revision}
	if n := len(r.Events); n > 0 {
		one.revision = r.Events[n-1].Kv.ModRevision
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, one)
}
