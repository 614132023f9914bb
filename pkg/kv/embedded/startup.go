package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
)

// databaseLockTimeout is how long to wait for the lock of etcd's database. This process has locked the directory by
// then (see claimDataDir), so only another tool, such as etcdutl, can hold it.
const databaseLockTimeout = 5 * time.Second

// segmentName matches the file names of the segments of a write-ahead log: the number of the segment and the index of
// its first entry.
var segmentName = regexp.MustCompile(`^[0-9a-f]{16}-[0-9a-f]{16}\.wal$`)

// checkData refuses the data of another member before etcd starts with them. Once etcd runs, it is too late: a member
// first announces its name to the cluster and votes.
//
// It accepts data without an identity. They mean that the member stopped before it had applied its own membership.
func (s *Server) checkData() error {
	if !s.hasData() || s.cfg.ForceNewCluster {
		return nil
	}

	self, members, err := memberOf(s.cfg.Dir)
	if err != nil {
		return fmt.Errorf("read the member in the data directory: %w", err)
	}
	if self == nil || len(self.PeerURLs) == 0 {
		return nil
	}

	// A single member and one of several differ in their URL, which is part of the data and cannot be changed here.
	alone := self.PeerURLs[0] == noPeersURL
	switch {
	case s.cfg.Peers == nil && !alone:
		return fmt.Errorf("the data directory belongs to member %s of a cluster of %d: set --initial-cluster", self.Name, members)
	case s.cfg.Peers != nil && alone:
		return errors.New("the data directory belongs to an etcd with a single member, which cannot become one of several: use another directory, and restore a snapshot")
	case s.cfg.Peers != nil && self.Name != "" && self.Name != s.cfg.Name:
		return fmt.Errorf("the data directory belongs to member %s, but this is %s", self.Name, s.cfg.Name)
	}

	return nil
}

// memberOf returns the member whose data are in dir, and the number of members of its cluster. The member is nil if
// the database does not contain it, because the member has not applied its log yet or has been removed.
func memberOf(dir string) (self *membership.Member, members int, err error) {
	id, err := memberID(filepath.Join(dir, "member", "wal"))
	if err != nil {
		return nil, 0, err
	}

	// The id of the member is in its log, and the record of the member in the database.
	path := filepath.Join(dir, "member", "snap", "db")
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil, 0, nil // etcd creates the database from the log
	}

	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: databaseLockTimeout})
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return nil, 0, fmt.Errorf("another process has %s open", path)
	}
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

// memberID returns the id of the member to which a write-ahead log belongs. It reads the id from the newest segment,
// because every segment begins with it.
func memberID(walDir string) (types.ID, error) {
	entries, err := os.ReadDir(walDir) // sorted by name, so the newest segment is last
	if err != nil {
		return 0, err
	}

	newest := ""
	for _, e := range entries {
		if segmentName.MatchString(e.Name()) { // etcd ignores other files as well
			newest = filepath.Join(walDir, e.Name())
		}
	}

	if newest == "" {
		return 0, fmt.Errorf("no segment in %s", walDir)
	}

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
		case wal.CrcType: // the seed of the checksums that follow
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

// startupWait reports which other members cannot be reached while this one starts. etcd serves nothing until more than
// half of the members are running.
type startupWait struct {
	log     *zap.Logger
	tell    func(missing []string) // Config.Waiting
	next    time.Time              // when the next log message is due
	missing []string               // the members that could not be reached at the last check
	told    bool                   // a message has been logged
}

// beginStartupWait returns a startupWait that logs nothing within the first seconds. The caller must call stop when the wait
// ends.
func (s *Server) beginStartupWait() *startupWait {
	tell := s.cfg.Waiting
	if tell == nil {
		tell = func([]string) {}
	}
	return &startupWait{log: s.cfg.Logger, tell: tell, next: time.Now().Add(firstWaitTold)}
}

// checkMembers tries to connect to the peer port of each other member, and reports the members that it cannot reach.
// It logs them at intervals, and when they have changed.
func (w *startupWait) checkMembers(ctx context.Context, s *Server) {
	missing := []string{}
	members := s.cfg.Peers.Members
	for _, name := range slices.Sorted(maps.Keys(members)) {
		u, err := url.Parse(members[name])
		if name == s.cfg.Name || err != nil {
			continue
		}

		d := net.Dialer{Timeout: peerTimeout}
		c, err := d.DialContext(ctx, "tcp", u.Host)
		if err != nil {
			missing = append(missing, name)
			continue
		}

		_ = c.Close()
	}

	// After the end of ctx every connection fails, which says nothing about the members.
	if ctx.Err() != nil {
		return
	}

	w.tell(missing)

	// Log at intervals, and once more when the missing members have changed since the last message.
	if now := time.Now(); now.After(w.next) || w.told && !slices.Equal(missing, w.missing) {
		w.next, w.told = now.Add(waitToldEvery), true
		w.log.Warn("etcd is waiting for its other members", zap.String("member", s.cfg.Name), zap.Strings("away", missing), zap.Int("members", len(members)))
	}

	w.missing = missing
}

// stop reports that the wait has ended.
func (w *startupWait) stop() { w.tell(nil) }

// untilReady waits until etcd serves requests, which requires more than half of the members. It returns early with an
// error if etcd stops, or if the other members belong to another cluster.
func (s *Server) untilReady(ctx context.Context) error {
	w := s.beginStartupWait()
	defer w.stop()

	look := time.NewTicker(time.Second)
	defer look.Stop()

	for {
		select {
		case <-s.etcd.ReadyNotify():
			return nil
		case <-s.etcd.StopNotify():
			return s.explainError(errStopped)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-look.C:
		}

		if s.cfg.Peers == nil {
			continue
		}

		w.checkMembers(ctx, s)

		if err := s.checkForeignData(); err != nil {
			return err
		}
	}
}
