package embedded

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"
)

// commitLog marks every entry of the log in the data directory as committed. With Config.ForceNewCluster, etcd drops entries that are not
// marked. But etcd writes the mark of an entry only with a later entry, so after a crash the last one that was acknowledged has none.
// Of a member that led before it crashed, the log may also contain entries that no other member has, so nobody was told whether they
// were made. They count as made. It also notes the raft term of the last entry.
func (s *Server) commitLog() error {
	err := s.markCommitted()

	// The process died while it wrote the last entry.
	if errors.Is(err, io.ErrUnexpectedEOF) && wal.Repair(zap.NewNop(), s.walDir()) {
		err = s.markCommitted()
	}
	if err != nil {
		return fmt.Errorf("read the log of the member: %w", err)
	}

	return nil
}

// LastTerm returns the raft term of the last entry of the log with which a server with Config.ForceNewCluster has started. Of several
// members of a cluster, raft lets the one with the highest term lead, and of those the one with the longest log: no other has entries
// that it lacks and that were acknowledged.
func (s *Server) LastTerm() int64 { return int64(s.lastTerm) }

func (s *Server) walDir() string { return filepath.Join(s.cfg.Dir, "member", "wal") }

func (s *Server) markCommitted() (err error) {
	log := zap.NewNop()

	// etcd reads the log from the newest snapshot that the log mentions.
	known, err := wal.ValidSnapshotEntries(log, s.walDir())
	if err != nil {
		return err
	}

	snapshot, err := snap.New(log, filepath.Join(s.cfg.Dir, "member", "snap")).LoadNewestAvailable(known)
	if err != nil && !errors.Is(err, snap.ErrNoSnapshot) {
		return err
	}

	var from walpb.Snapshot
	if snapshot != nil {
		s.lastTerm = snapshot.Metadata.GetTerm()
		from.Index, from.Term = new(snapshot.Metadata.GetIndex()), new(snapshot.Metadata.GetTerm())
	}

	w, err := wal.Open(log, s.walDir(), &from)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, w.Close()) }()

	_, state, entries, err := w.ReadAll()
	if err != nil || len(entries) == 0 {
		return err
	}

	last := entries[len(entries)-1]
	s.lastTerm = last.GetTerm()
	state.Commit = new(max(state.GetCommit(), last.GetIndex()))

	return w.Save(state, nil)
}
