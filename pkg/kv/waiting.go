package kv

import (
	"context"
	"maps"
	"net"
	"net/url"
	"slices"
	"time"

	"go.uber.org/zap"
)

// waiting tells whom a start waits for: the members of which enough have to be there before etcd can do anything.
type waiting struct {
	log     *zap.Logger
	tell    func(missing []string)
	next    time.Time
	missing []string
	told    bool
}

func (s *Server) beginWaiting() *waiting {
	tell := s.cfg.Waiting
	if tell == nil {
		tell = func([]string) {}
	}
	return &waiting{log: orNop(s.cfg.Logger), tell: tell, next: time.Now().Add(firstWaitTold)}
}

// checkMembers finds out which of the others cannot be reached, and logs it now and then, or when it has changed.
func (w *waiting) checkMembers(ctx context.Context, s *Server) {
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

	if ctx.Err() != nil {
		return
	}

	w.tell(missing)

	if now := time.Now(); now.After(w.next) || w.told && !slices.Equal(missing, w.missing) {
		w.next, w.told = now.Add(waitToldEvery), true
		w.log.Warn("etcd is waiting for its other members", zap.String("member", s.cfg.Name), zap.Strings("away", missing), zap.Int("members", len(members)))
	}

	w.missing = missing
}

func (w *waiting) stop() { w.tell(nil) }

// untilReady waits until etcd serves, which takes more than half of the members.
func (s *Server) untilReady(ctx context.Context) error {
	w := s.beginWaiting()
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
