package store

import (
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
	"github.com/carillonhq/carillon/pkg/store/eventlog"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// Store reads and writes the records of one cluster. It embeds a separate type for each kind of
// record. They share one connection, because a transaction may write records of several kinds.
// A Store is safe for concurrent use.
type Store struct {
	*conn
	ofTasks
	ofRuns
	ofShards
	ofInbox
	ofNodes
	ofOwners
	ofAccess
	ofSecrets
	ofFreezes
	ofCluster
	ofEtcd
	ofEvents
}

// These aliases are the names under which Store embeds its parts. An embedded field with
// the name Tasks would hide the method Tasks.
type (
	ofTasks   = Tasks
	ofRuns    = Runs
	ofShards  = Shards
	ofInbox   = Inbox
	ofNodes   = Nodes
	ofOwners  = Owners
	ofAccess  = Access
	ofSecrets = Secrets
	ofFreezes = Freezes
	ofCluster = Cluster
	ofEtcd    = etcdadmin.Etcd
	ofEvents  = eventlog.Log
)

// New returns a Store that sends all conditional writes through writes. It understands the
// newest format.
func New(etcd *kv.Client, writes kv.Committer, keys record.Keys) *Store {
	return newOverConn(&conn{etcd: etcd, writes: writes, alone: writes, keys: keys}).Understanding(NewestFormat)
}

// newOverConn returns a Store whose parts share the connection c.
func newOverConn(c *conn) *Store {
	return &Store{
		c, Tasks{c}, Runs{c}, Shards{c}, Inbox{c}, Nodes{c}, Owners{c},
		Access{c}, Secrets{c}, Freezes{c}, Cluster{c}, etcdadmin.New(c.etcd, Nodes{c}), eventlog.New(c.etcd, c.keys),
	}
}

// Batching returns the same Store, except that the many small writes of tasks, runs and shards
// pass through batch. Leased keys do not, because an expired lease makes etcd refuse a whole
// request. Rare writes of keys that every commit compares do not either, because all requests
// would have to wait for them.
func (s *Store) Batching(batch kv.Committer) *Store {
	b := *s.conn
	b.writes = batch

	return newOverConn(&b)
}

// Keys returns the keys of the cluster.
func (s *Store) Keys() record.Keys { return s.keys }

// Client returns the etcd client, for mirrors that follow whole prefixes.
func (s *Store) Client() *kv.Client { return s.etcd }
