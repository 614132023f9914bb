package kv

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.uber.org/zap"
)

// compact forgets old revisions every now and then, until ctx ends or the server stops. etcd's own compaction by revision comes
// every five minutes, whatever is written: at 500 requests of group commit a second that is 150,000 revisions beside
// those that are to be kept. Of several members the leader does it.
func (s *Server) compact(ctx context.Context) {
	t := time.NewTicker(s.cfg.CompactionInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.done:
			return
		case <-t.C:
		}
		upTo := s.etcd.Server.KV().Rev() - s.cfg.CompactionRetention
		if upTo <= 0 || s.etcd.Server.Leader() != s.etcd.Server.MemberID() {
			continue
		}
		switch _, err := s.client.Compact(ctx, upTo); {
		case err == nil, errors.Is(err, rpctypes.ErrCompacted): // by somebody else, or nothing was written since
		case ctx.Err() != nil:
			return
		default:
			orNop(s.cfg.Logger).Warn("old revisions were not compacted", zap.Int64("rev", upTo), zap.Error(err))
		}
	}
}
