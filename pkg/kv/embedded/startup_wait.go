package embedded

import (
	"context"
	"maps"
	"net"
	"net/url"
	"slices"
	"time"

	"go.uber.org/zap"
)

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
		case <-s.etcd.Server.ReadyNotify():
			return nil
		case <-s.etcd.Server.StopNotify():
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
