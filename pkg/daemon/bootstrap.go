package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/filetrust"
	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// reachEtcd starts the embedded etcd, or dials the others and checks their version.
func (n *Node) reachEtcd(ctx context.Context) (err error) {
	if n.outside.Etcd != nil {
		n.client, err = n.outside.Etcd(ctx, n.cfg)
		return err
	}
	if n.cfg.Embedded {
		if n.cfg.hasOwnPeerCerts() {
			if err := n.ensurePeerCertificate(ctx); err != nil {
				return err
			}
		}
		cfg := kv.ServerConfig{
			Dir: filepath.Join(n.cfg.DataDir, "etcd"), QuotaBytes: n.cfg.EtcdQuota, CompactionAge: n.cfg.EventRetention.Std(), Logger: n.log.Named("etcd"), Waiting: n.http.waitForMembers,
		}
		if cfg.Peers = n.cfg.peers(); cfg.Peers != nil {
			cfg.Name = n.cfg.Name
			if len(cfg.Peers.Members)%2 == 0 {
				n.log.Warn("an even number of members survives the loss of no more of them than one fewer would", zap.Int("members", len(cfg.Peers.Members)))
			}
		}
		n.server, err = kv.StartServer(ctx, cfg)
		if err == nil {
			n.client = n.server.Client()
		}
		return err
	}
	n.client, err = kv.Dial(ctx, n.cfg.etcdAccess().config(n.secured.etcd, n.log.Named("etcd")))
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	return n.atStart(ctx, func() error { return kv.CheckVersion(ctx, n.client) })
}

// untilReached tries until etcd answers; a refusal of what it is, or of
// what it holds, is final.
func (n *Node) untilReached(ctx context.Context, try func() error) error {
	for told := false; ; told = true {
		err := try()
		if err == nil || errors.Is(err, kv.ErrVersion) || errors.Is(err, store.ErrFormat) || errors.Is(err, task.ErrInvalid) {
			return err
		}
		if !told && kv.NoSpace(err) {
			n.log.Warn("etcd is full, waiting for space", zap.Error(err))
		} else if !told {
			n.log.Warn("etcd does not answer, waiting for it", zap.Strings("endpoints", n.cfg.EtcdEndpoints), zap.Error(err))
		}
		n.http.setStartupStatus(fmt.Sprintf("etcd does not answer: %v", err))
		if !clock.Sleep(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

// bootstrap makes the cluster and its admin token, if there are none.
func (n *Node) bootstrap(ctx context.Context) error {
	return n.atStart(ctx, func() error {
		there, err := n.store.Present(ctx)
		if err != nil {
			return err
		}
		before := n.state.epoch()
		if n.restored, err = n.state.begins(there, n.revisions.wentBack()); err != nil {
			return err
		}
		if n.state.epoch() != before {
			n.revisions = newRevisions(there.Revision)
			n.client.KV = seenKV{n.etcdKV, n.revisions}
		}
		c, made, err := n.store.Bootstrap(ctx, n.cfg.Shards, n.outside.Now())
		if err != nil {
			return err
		}
		if n.cluster = c; before == 0 {
			if err := n.state.setHistory(c.ID, c.Epoch, n.revisions.seen.Load(), false); err != nil {
				return err
			}
		}
		if made {
			n.log.Info("made a new cluster", zap.String("cluster", c.ID), zap.Int("shards", c.Shards))
		}
		return n.ensureToken(ctx)
	})
}

// TokenPath is where the node that made the cluster keeps its admin token.
func (n *Node) TokenPath() string { return filepath.Join(n.cfg.DataDir, "token") }

// ensureToken creates the admin token if the cluster has none. The secret is on
// disk before its hash is in etcd, and one that is there is used again: an
// answer that was lost, or a crash, must not leave a hash whose secret nobody has.
func (n *Node) ensureToken(ctx context.Context) error {
	has, err := n.store.HasTokens(ctx)
	if err != nil {
		return err
	}
	if has {
		return n.dropStrangeToken(ctx)
	}
	secret, id, record := api.NewToken()
	kept, err := filetrust.ReadSecret(n.TokenPath(), uint32(os.Geteuid()))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("admin token: %w", err)
	}
	if err == nil {
		if keptID, keptRecord, ok := api.TokenOf(strings.TrimSpace(string(kept))); ok {
			secret, id, record = strings.TrimSpace(string(kept)), keptID, keptRecord
		}
	}
	record.Who, record.CreatedAt = "admin", task.At(n.outside.Now())
	if err := writeSynced(n.TokenPath(), []byte(secret+"\n"), 0o600); err != nil {
		return err
	}
	err = n.store.CreateFirstToken(ctx, id, record)
	if errors.Is(err, task.ErrExists) {
		return n.dropStrangeToken(ctx)
	}
	if err == nil {
		n.log.Info("made the admin token", zap.String("file", n.TokenPath()))
	}
	return err
}

// dropStrangeToken removes the token of the data directory if the cluster does
// not know it: another node made the first one, while this one's answer was lost.
func (n *Node) dropStrangeToken(ctx context.Context) error {
	kept, err := filetrust.ReadSecret(n.TokenPath(), uint32(os.Geteuid()))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("admin token: %w", err)
	}
	id, record, ok := api.TokenOf(strings.TrimSpace(string(kept)))
	if !ok {
		return nil // whatever it is, it is not ours
	}
	there, err := n.store.Token(ctx, id)
	switch {
	case err == nil && there.Hash == record.Hash:
		return nil
	case err == nil || errors.Is(err, task.ErrNotFound):
		n.log.Warn("removed an admin token that the cluster does not know: another node made it", zap.String("file", n.TokenPath()))
		return os.Remove(n.TokenPath())
	}
	return err
}
