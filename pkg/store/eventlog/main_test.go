package eventlog_test

import (
	"errors"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/kv/kvtest/leaktest"
	"github.com/carillonhq/carillon/pkg/store/eventlog"
	"github.com/carillonhq/carillon/pkg/store/record"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var (
	noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	ref  = record.Ref{Namespace: "default", Name: "a", Shard: 3}

	errEnough = errors.New("enough")
)

// cluster is the event log of an in-memory etcd, which the test may compact.
type cluster struct {
	testing.TB
	log  eventlog.Log
	etcd *kv.Client
	keys record.Keys
}

// newCluster returns a cluster without any keys.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	return clusterOf(t, kvtest.Memory(t))
}

func clusterOf(t testing.TB, etcd *kv.Client) *cluster {
	t.Helper()
	keys, err := record.NewKeys("/events")
	ok(t, err)

	return &cluster{TB: t, log: eventlog.New(etcd, keys), etcd: etcd, keys: keys}
}

// revision returns the present revision of etcd.
func (c *cluster) revision() int64 {
	c.Helper()
	res, err := c.etcd.Get(c.Context(), c.keys.Cluster())
	ok(c, err)

	return res.Header.Revision
}

func (c *cluster) put(key, value string) (revision int64) {
	c.Helper()
	res, err := c.etcd.Put(c.Context(), key, value)
	ok(c, err)

	return res.Header.Revision
}

func (c *cluster) del(key string) {
	c.Helper()
	_, err := c.etcd.Delete(c.Context(), key)
	ok(c, err)
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
