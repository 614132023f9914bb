package kv

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"google.golang.org/protobuf/proto"
)

// databaseLockTimeout is how long to wait for the lock on etcd's database. The directory is ours
// alone by then (see claim), so only a foreign tool, etcdutl for instance, can have it.
const databaseLockTimeout = 5 * time.Second

// checkData refuses the data of another member before etcd starts on them. Once etcd runs, it is
// too late: the first thing that a member does is to tell the cluster its name and to vote.
//
// Data that do not say whose they are pass. They are those of a member that ended before it knew.
func (s *Server) checkData() error {
	if !s.hasData() {
		return nil
	}

	self, members, err := memberOf(s.cfg.Dir)
	if err != nil {
		return fmt.Errorf("read which member's data these are: %w", err)
	}
	if self == nil || len(self.PeerURLs) == 0 {
		return nil
	}

	alone := self.PeerURLs[0] == nobody
	switch {
	case s.cfg.Peers == nil && !alone:
		return fmt.Errorf("these are the data of member %s of a cluster of %d: give it --initial-cluster", self.Name, members)
	case s.cfg.Peers != nil && alone:
		return errors.New("these are the data of an etcd of one member, which cannot become one of several: take another directory, and restore a snapshot")
	case s.cfg.Peers != nil && self.Name != "" && self.Name != s.cfg.Name:
		return fmt.Errorf("these are the data of member %s, and this is %s", self.Name, s.cfg.Name)
	}

	return nil
}

// memberOf returns the member whose data are in dir, and how many members its cluster has. The
// member is nil if the database does not have it: it has not applied its log yet, or was removed.
func memberOf(dir string) (self *membership.Member, members int, err error) {
	id, err := memberID(filepath.Join(dir, "member", "wal"))
	if err != nil {
		return nil, 0, err
	}

	path := filepath.Join(dir, "member", "snap", "db")
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil, 0, nil
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: databaseLockTimeout})
	if err != nil {
		return nil, 0, fmt.Errorf("open %s: %w", path, err)
	}
	defer db.Close()

	err = db.View(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket(schema.Members.Name())
		if bucket == nil {
			return nil
		}
		members = bucket.Stats().KeyN

		record := bucket.Get(schema.BackendMemberKey(id))
		if record == nil {
			return nil
		}
		self = &membership.Member{ID: id}
		return json.Unmarshal(record, self)
	})
	if err != nil {
		return nil, 0, fmt.Errorf("read the members in %s: %w", path, err)
	}

	return self, members, nil
}

// memberID reads from the head of the newest segment of a write-ahead log whose log it is. Every
// segment begins with that.
func memberID(walDir string) (types.ID, error) {
	segments, err := filepath.Glob(filepath.Join(walDir, "*.wal"))
	if err != nil {
		return 0, err
	}
	if len(segments) == 0 {
		return 0, fmt.Errorf("no segment in %s", walDir)
	}

	newest := segments[len(segments)-1] // the names sort by age
	file, err := os.Open(newest)
	if err != nil {
		return 0, err
	}
	defer file.Close()

	decoder := wal.NewDecoder(fileutil.NewFileReader(file))
	for {
		record := &walpb.Record{}
		if err := decoder.Decode(record); err != nil {
			return 0, fmt.Errorf("read %s: %w", newest, err)
		}

		switch record.GetType() {
		case wal.CrcType: // it is the seed of the checksums that follow
			decoder.UpdateCRC(record.GetCrc())
		case wal.MetadataType:
			var metadata etcdserverpb.Metadata
			if err := proto.Unmarshal(record.Data, &metadata); err != nil {
				return 0, fmt.Errorf("read %s: %w", newest, err)
			}
			return types.ID(metadata.GetNodeID()), nil
		}
	}
}
