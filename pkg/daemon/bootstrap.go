package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
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
	"github.com/carillonhq/carillon/pkg/wake"
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
			Dir: filepath.Join(n.cfg.DataDir, "etcd"), QuotaBytes: n.cfg.EtcdQuota, CompactionAge: n.cfg.EventRetention.Std(), Logger: n.log.Named("etcd"),
			Waiting: func(missing []string) {
				n.http.waitForMembers(missing)
				n.env.alarm.noteMembers(missing)
			},
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
	cfg      Config
	http     *httpServer
	alarm    *alarmCommand
	explains endpointExplainer
	log      *zap.Logger
}

// explainEvery is after how many tries the waiter looks again whether the endpoints are those of an embedded etcd.
const explainEvery = 30

// untilReached calls try every second until it succeeds. Errors about the version of etcd, or about
// its contents, are final. So is the end of ctx.
func (w *etcdWaiter) untilReached(ctx context.Context, try func() error) error {
	explained := ""
	for tries := 0; ; tries++ {
		err := try()
		if err == nil {
			w.alarm.noteStart(alarmFacts{})
		}
		if err == nil || errors.Is(err, kv.ErrVersion) || errors.Is(err, store.ErrFormat) || errors.Is(err, task.ErrInvalid) {
			return err
		}

		isFull := kv.NoSpace(err)
		if tries == 0 && isFull {
			w.log.Warn("etcd is full, waiting for space", zap.Error(err))
		} else if tries == 0 {
			w.log.Warn("etcd does not answer, waiting for it", zap.Strings("endpoints", w.cfg.EtcdEndpoints), zap.Error(err))
		}

		// An embedded etcd never answers other hosts. Its members may start later than this node.
		if !isFull && !w.cfg.Embedded && explained == "" && tries%explainEvery == 0 {
			if explained = w.explains.explain(ctx, w.cfg.EtcdEndpoints); explained != "" {
				w.log.Error("etcd cannot answer this node", zap.String("reason", explained))
			}
		}
		if explained != "" {
			err = fmt.Errorf("%s (%w)", explained, err)
		}

		w.http.setStartupStatus(fmt.Sprintf("etcd does not answer: %v", err))
		w.alarm.noteStart(startingAlarm(err))

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

		n.env.alarm.noteStart(alarmFacts{alarmNoSession, "there is no cluster yet: a node with the role api creates it"})
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
		if n.cfg.Embedded && len(n.cfg.InitialCluster) == 0 {
			n.log.Info("the new cluster has this node alone, because " + servesOnlyMembers)
		}
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

// clusterRecord follows the cluster's record and applies the record format in it to the node's writes.
//
// The node decides under the record with which it has joined, or a later one: a mirror that lags behind, or that has
// not noticed yet that etcd was restored, does not bring back an older record.
type clusterRecord struct {
	store    *store.Store
	client   *kv.Client
	atStart  task.Cluster             // the record at the start of the node
	check    func(task.Cluster) error // compares a record with the history of the node; see etcdhistory.Monitor
	announce wake.Signal              // sent when the node begins to write another format
	log      *zap.Logger

	mu     sync.Mutex
	latest store.ClusterRecord // the record of the last join or a later one; Mod is 0 before the first
}

// currentRecord returns the latest record that the node has received.
func (r *clusterRecord) currentRecord() task.Cluster {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.latest.Mod == 0 {
		return r.atStart
	}

	return r.latest.Cluster
}

// joinedWith sets the record that a join has compared. It is called before the session of that join is visible to the
// workers. It also replaces a record with a higher mod revision, which is from before a restore of etcd.
func (r *clusterRecord) joinedWith(c store.ClusterRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latest = c
}

// run follows the record until ctx ends, or until it requires a format that the node does
// not understand.
func (r *clusterRecord) run(ctx context.Context) error {
	key := r.store.Keys().Cluster()
	mirror := kv.NewMirror(r.client, kv.FollowConfig{Key: key, Relist: time.Minute, Name: "cluster", Logger: r.log.Named("kv")})
	changed := wake.NewSignal()
	defer mirror.Subscribe(changed)()

	mirroring, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- mirror.Run(mirroring) }()
	defer func() { stop(); <-ended }()

	for {
		if e := mirror.Snapshot().Get(key); e != nil {
			if err := r.applyRecord(store.DecodeCluster(e)); err != nil {
				return err
			}
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			ended <- err // the deferred function receives it
			return err
		case <-changed:
		}
	}
}

// applyRecord makes the node write in the format that a record requires. A record that cannot be decoded, and one that
// is older than the latest, are ignored. An error means that the node must stop because it does not understand the
// format, or start over because the cluster has a new epoch.
func (r *clusterRecord) applyRecord(c store.ClusterRecord, err error) error {
	if err != nil {
		r.log.Error("cannot decode the cluster record; keeping the previous one", zap.Error(err))
		return nil
	}

	switch err := r.check(c.Cluster); {
	case errors.Is(err, etcdhistory.ErrNewHistory):
		return err
	case err != nil:
		return nil // another cluster; the node is ineligible now
	}

	before := r.store.Format()

	if err := r.store.Obey(c); err != nil {
		return err
	}

	r.mu.Lock()
	if c.Mod > r.latest.Mod {
		r.latest = c
	}
	r.mu.Unlock()

	if now := r.store.Format(); now != before {
		r.log.Info("changed the record format for writes", zap.Int("format", now), zap.Int("before", before))
		r.announce.Send()
	}

	return nil
}

const (
	// settledAfter is how long every node must have run a version that understands a newer
	// format before the leader puts it in force. Until then, nodes can go back to the
	// former version by a restart, without a downgrade of the format.
	settledAfter = 10 * time.Minute
	// formatEvery is the interval at which the leader checks whether the format should change, and
	// loweringEvery the same during a downgrade.
	formatEvery   = 5 * time.Second
	loweringEvery = time.Second
	// lastWrites is the time after which writes in the newer format have arrived or failed, counted from when their
	// node switched to the older one. A call has a deadline of 5 s.
	lastWrites = 12 * time.Second
)

// formatKeeper changes the record format while the node leads. It raises the format when all
// nodes have understood a newer one for settledAfter, and it completes downgrades.
type formatKeeper struct {
	node  string
	store *store.Store
	env   Environment
	log   *zap.Logger
}

// run checks the format until ctx ends. Its knowledge of a downgrade lasts for one term, because another leader may
// change the format in between.
func (k *formatKeeper) run(ctx context.Context) error {
	var down formatDowngrade

	for {
		if err := k.runStep(ctx, &down); err != nil && ctx.Err() == nil && !errors.Is(err, task.ErrConflict) {
			k.log.Warn("could not check the record format", zap.Error(err))
		}

		every := formatEvery
		if down.underWay {
			every = loweringEvery
		}

		if !clock.Sleep(ctx, every) {
			return ctx.Err()
		}
	}
}

// runStep reads the cluster's record and the nodes' formats once, and changes the format if that is possible. A
// conflict means that the record or the nodes have changed since; the next step reads them again.
func (k *formatKeeper) runStep(ctx context.Context, down *formatDowngrade) error {
	f, err := k.store.Formats(ctx)
	if err != nil {
		return err
	}

	c := f.Cluster

	if c.Written() < c.InForce() {
		return k.lowerFormat(ctx, f, down)
	}

	*down = formatDowngrade{}
	to := newestFormat(f, k.env.Now(), k.store.Understands())
	if to == c.InForce() {
		return nil
	}

	f.Cluster.Cluster = c.MarkChanged(task.NodeActor(k.node), task.At(k.env.Now()), "")
	if err := k.store.SetFormat(ctx, f, to, c.FormatWanted); err != nil {
		return err
	}

	k.log.Info("raised the record format", zap.Int("format", to), zap.Int("before", c.InForce()))

	return nil
}

// newestFormat returns the newest format that all nodes have understood for settledAfter, that this version knows
// (known), and that is not newer than the wanted format. It never returns an
// older format than the one in force.
func newestFormat(f store.Formats, now time.Time, known int) int {
	is := f.Cluster.InForce()
	to, _ := f.Possible()
	if to = min(to, known); f.Cluster.FormatWanted > 0 {
		to = min(to, f.Cluster.FormatWanted)
	}

	young := slices.ContainsFunc(f.Nodes, func(n task.Node) bool { return now.Sub(n.StartedAt.Time) < settledAfter })
	if to <= is || young {
		return is
	}

	return to
}

// formatDowngrade is the leader's knowledge of a downgrade in progress.
type formatDowngrade struct {
	underWay bool
	told     string    // what the log last named as the reason to wait
	clean    time.Time // since when nothing prevents the downgrade; zero: something does
}

// lowerFormat puts the wanted, older format in force when no node writes the newer
// one any more and all its writes have arrived.
func (k *formatKeeper) lowerFormat(ctx context.Context, f store.Formats, down *formatDowngrade) error {
	why := f.WaitsFor()
	if why != "" && why != down.told {
		down.told = why
		k.log.Info("lowering the record format", zap.Int("to", f.Cluster.FormatWanted), zap.String("waits_for", why))
	}

	if !down.mayLower(why, time.Now()) { // monotonic time, not env.Now
		return nil
	}

	f.Cluster.Cluster = f.Cluster.MarkChanged(task.NodeActor(k.node), task.At(k.env.Now()), "")
	if err := k.store.SetFormat(ctx, f, f.Cluster.FormatWanted, f.Cluster.FormatWanted); err != nil {
		return err
	}

	*down = formatDowngrade{}
	k.log.Info("lowered the record format", zap.Int("format", f.Cluster.FormatWanted), zap.Int("before", f.Cluster.InForce()))

	return nil
}

// mayLower reports whether the older format may be put in force, which is so when nothing has prevented it for
// lastWrites. why is what prevents it now, or "".
func (d *formatDowngrade) mayLower(why string, now time.Time) bool {
	d.underWay = true
	if why != "" {
		d.clean = time.Time{}
		return false
	}

	if d.clean.IsZero() {
		d.clean = now
	}

	return now.Sub(d.clean) >= lastWrites
}
