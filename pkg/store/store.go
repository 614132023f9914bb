package store

import (
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
)

// Store reads and writes one cluster's records, each kind of them by a type of its
// own. They share one connection: a transaction may write records of several kinds.
// It is safe for concurrent use.
type Store struct {
	*conn
	ofTasks
	ofRuns
	ofShards
	ofInbox
	ofNodes
	ofOwners
	ofTokens
	ofSecrets
	ofFreezes
	ofCluster
	ofEtcd
	ofEvents
}

// The names under which Store embeds its parts: a field Tasks would hide the method
// Tasks.
type (
	ofTasks   = Tasks
	ofRuns    = Runs
	ofShards  = Shards
	ofInbox   = Inbox
	ofNodes   = Nodes
	ofOwners  = Owners
	ofTokens  = Tokens
	ofSecrets = Secrets
	ofFreezes = Freezes
	ofCluster = Cluster
	ofEtcd    = Etcd
	ofEvents  = Events
)

// New makes a Store. All conditional writes go through writes.
func New(etcd *kv.Client, writes kv.Committer, keys record.Keys) *Store {
	return newOverConn(&conn{etcd: etcd, writes: writes, alone: writes, keys: keys}).Understanding(NewestFormat)
}

// newOverConn is a Store over a connection.
func newOverConn(c *conn) *Store {
	return &Store{
		c, Tasks{c}, Runs{c}, Shards{c}, Inbox{c}, Nodes{c}, Owners{c},
		Tokens{c}, Secrets{c}, Freezes{c}, Cluster{c}, Etcd{c}, Events{c},
	}
}

// Batching is the same Store, with the many small writes of tasks, runs and
// shards through batch. Leased keys never go that way, as a lease that has ended
// fails a whole request; nor do the rare writes that others compare all the time.
func (s *Store) Batching(batch kv.Committer) *Store {
	b := *s.conn
	b.writes = batch

	return newOverConn(&b)
}

// Keys are the store's keys.
func (s *Store) Keys() record.Keys { return s.keys }

// Client is the etcd client, for the mirrors that follow whole prefixes.
func (s *Store) Client() *kv.Client { return s.etcd }
