package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/daemon/bootstraptoken"
	"github.com/carillonhq/carillon/pkg/daemon/etcdhistory"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// reachEtcd starts the embedded etcd, or connects to the configured endpoints and checks their version. It sets n.client
// and, with an embedded etcd, n.server.
func (n *Node) reachEtcd(ctx context.Context) (err error) {
	if n.env.Etcd != nil {
		n.client, err = n.env.Etcd(ctx, n.cfg)
		return err
	}

	if n.cfg.Embedded {
		if n.cfg.hasOwnPeerCerts() {
			// The members need certificates before they can communicate. This may wait for a join token.
			certificate := peerCertificate{cfg: n.cfg, env: n.env, http: n.http, log: n.log}
			files, err := certificate.awaitFiles(ctx)
			if err != nil {
				return err
			}

			n.cfg.EtcdPeerCert, n.cfg.EtcdPeerKey, n.cfg.EtcdPeerCA = files.Cert, files.Key, files.CA
			if n.secured.peer, err = certs.Open(files); err != nil {
				return err
			}
		}

		cfg := embedded.Config{
			Dir: filepath.Join(n.cfg.DataDir, "etcd"), QuotaBytes: n.cfg.EtcdQuota, CompactionAge: n.cfg.EventRetention.Std(), Logger: n.log.Named("etcd"), Waiting: n.http.waitForMembers,
		}
		if cfg.Peers = n.cfg.peersConfig(); cfg.Peers != nil {
			cfg.Name = n.cfg.Name
			if len(cfg.Peers.Members)%2 == 0 {
				n.log.Warn("an even number of members tolerates no more failures than one member fewer", zap.Int("members", len(cfg.Peers.Members)))
			}
		}

		n.server, err = embedded.Start(ctx, cfg)
		if err == nil {
			n.client = n.server.Client()
		}

		return err
	}

	n.client, err = kv.Dial(ctx, n.cfg.etcdAccess().clientConfig(n.secured.etcd, n.log.Named("etcd")))
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}

	return n.etcdWaiter.untilStarted(ctx, func() error { return kv.CheckVersion(ctx, n.client) })
}

// etcdWaiter repeats operations until etcd answers, and meanwhile reports what the node
// waits for. It logs once that it waits.
type etcdWaiter struct {
	cfg  Config
	http *httpServer
	log  *zap.Logger
}

// untilReached calls try every second until it succeeds. Errors about the version of etcd, or about
// its contents, are final. So is the end of ctx.
func (w *etcdWaiter) untilReached(ctx context.Context, try func() error) error {
	for logged := false; ; logged = true {
		err := try()
		if err == nil || errors.Is(err, kv.ErrVersion) || errors.Is(err, store.ErrFormat) || errors.Is(err, task.ErrInvalid) {
			return err
		}

		if !logged && kv.NoSpace(err) {
			w.log.Warn("etcd is full, waiting for space", zap.Error(err))
		} else if !logged {
			w.log.Warn("etcd does not answer, waiting for it", zap.Strings("endpoints", w.cfg.EtcdEndpoints), zap.Error(err))
		}

		w.http.setStartupStatus(fmt.Sprintf("etcd does not answer: %v", err))

		if !clock.Sleep(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

// untilStarted is untilReached for a starting node. If etcd rejects the node's login or permissions, the error is
// final, because they have never been right. Later, the node waits until the login is
// right again, as for an unavailable etcd.
func (w *etcdWaiter) untilStarted(ctx context.Context, try func() error) error {
	return w.untilReached(ctx, func() error {
		err := try()
		switch {
		case errors.Is(err, kv.ErrLogin):
			return task.Invalid(task.CodeBadValue, "etcd_user", "%s", err)
		case kv.Denied(err) && w.cfg.EtcdUser == "" && w.cfg.EtcdCert == "":
			return task.Invalid(task.CodeRequired, "etcd_user", "etcd requires a login: set etcd_user and etcd_password_file, or etcd_cert and etcd_key")
		case kv.Denied(err):
			return task.Invalid(task.CodeBadValue, "etcd_user", "etcd does not allow this user to read and write under %s/; grant it with: "+
				"etcdctl role grant-permission ROLE --prefix=true readwrite %s/ (%s)", w.cfg.Prefix, w.cfg.Prefix, err)
		}

		return err
	})
}

// bootstrapCluster creates the cluster with its admin token if there is no cluster. A node without the role api waits
// until another one has created it: the admin token stays on the node that creates the cluster, and an administrator
// looks for it on a node that serves the API.
func (n *Node) bootstrapCluster(ctx context.Context) error {
	for logged := false; ; logged = true {
		found := false
		err := n.etcdWaiter.untilStarted(ctx, func() (err error) {
			found, err = n.openCluster(ctx)
			return err
		})
		if err != nil || found {
			return err
		}

		if !logged {
			n.log.Info("there is no cluster yet; waiting for a node with the role api to create it", zap.Strings("roles", n.cfg.Roles))
		}

		n.http.setStartupStatus("there is no cluster yet: it waits for a node with the role api to create it")

		if !clock.Sleep(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

// openCluster reads the cluster's record, or creates it if this node may. found reports whether there is a cluster now.
// Before that, it compares the history of etcd with the data directory; see etcdhistory.Compare.
func (n *Node) openCluster(ctx context.Context) (found bool, err error) {
	there, err := n.store.Present(ctx)
	if err != nil {
		return false, err
	}

	before := n.state.Epoch()

	if n.restored, err = etcdhistory.Compare(n.state, there, n.revisions.WentBack()); err != nil {
		return false, err
	}

	if n.state.Epoch() != before {
		// An operator has accepted a restored etcd. Its revisions are lower than those seen before, so start
		// from the present one.
		n.revisions = etcdhistory.NewRevisions(there.Revision)
		n.client.KV = n.revisions.ObserveKV(n.etcdKV)
	}

	if !there.Found && !n.cfg.servesAPI() {
		return false, nil
	}

	token := bootstraptoken.NewFile(n.cfg.DataDir, n.store, n.log)

	c, made, err := token.CreateCluster(ctx, there.Found, n.cfg.Shards, n.env.OpenDefault, n.env.Now())
	if err != nil {
		return false, err
	}

	if n.cluster = c; before == 0 {
		if err := n.state.SetHistory(c.ID, c.Epoch, n.revisions.Seen(), false); err != nil {
			return false, err
		}
	}

	if !made {
		if err := n.checkAccessRecords(ctx); err != nil {
			return false, err
		}
	}

	if made {
		n.log.Info("created a new cluster", zap.String("cluster", c.ID), zap.Int("shards", c.Shards), zap.String("token", n.TokenPath()))
	}

	return true, nil
}

// checkAccessRecords logs an error if the cluster has no access records. The node continues, because it may have runs to
// finish, but it does not become ready.
func (n *Node) checkAccessRecords(ctx context.Context) error {
	found, err := n.store.HasAccessRecords(ctx)
	if err == nil && !found {
		n.log.Error("etcd has no access records of this cluster, so this node cannot become ready: a version without access control has created it, or the records were deleted. "+
			"Restore a snapshot of etcd that has them, or stop all nodes and delete the data of etcd and of the nodes, to begin with a new cluster. Data of make run is in build/dev",
			zap.String("cluster", n.cluster.ID), zap.String("key", n.store.Keys().Fence()))
	}

	return err
}

// TokenPath returns the path of the file in which the node that created the cluster stores the admin token.
func (n *Node) TokenPath() string { return bootstraptoken.Path(n.cfg.DataDir) }
