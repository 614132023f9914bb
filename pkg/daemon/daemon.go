// Package daemon creates the components of a node and runs them. It is the only
// package that imports all of them.
//
//	lock the data directory ─► listen ─► etcd (embedded, or dialled) ─► cluster, token
//	   ─► run: mirrors of nodes/ and owners/, presence, election, keeper, engine, executor, guardian, API
//	   ─► ctx ends: drain ─► stop the components ─► leave ─► stop listening
//
// Losing etcd, the session or the leadership is normal: the components
// wait and continue, and the process does not exit (G18). Start and Run return an error only when
// continuing would be wrong: another node holds the name, another daemon uses the data
// directory, etcd is too old, or the data directory belongs to another cluster.
package daemon

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/election"
	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/executor/guardian"
	"github.com/carillonhq/carillon/executor/httpaction"
	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/executor/workdir"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/daemon/auditlog"
	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/daemon/etcdhistory"
	"github.com/carillonhq/carillon/pkg/daemon/hostfacts"
	"github.com/carillonhq/carillon/pkg/daemon/peerprobe"
	"github.com/carillonhq/carillon/pkg/daemon/unixsocket"
	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/internal/connlimit"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/version"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
	"github.com/carillonhq/carillon/pkg/scheduler"
	"github.com/carillonhq/carillon/pkg/scheduler/placement"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/eventlog"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
	"github.com/carillonhq/carillon/pkg/wake"
	"github.com/carillonhq/carillon/shard"
)

// Node holds the components of a node and how they are connected. Start creates them and Run runs them. The fields are
// set by Start and do not change afterwards.
type Node struct {
	cfg      Config
	env      Environment
	log      *zap.Logger
	instance string         // the id of this start
	former   datadir.Record // what the previous process stored in the data directory
	proven   bool           // the previous process is dead; see datadir.State.Begin

	state     *datadir.State     // the state over restarts; holds the lock of the data directory
	key       ed25519.PrivateKey // signs requests to other nodes
	server    *embedded.Server   // the embedded etcd; nil: none
	client    *kv.Client         // the client of etcd; its KV observes revisions
	etcdKV    clientv3.KV        // the client's KV, without the observation of revisions
	batcher   *kv.Batcher        // combines writes to etcd (group commit)
	store     *store.Store
	events    *eventlog.Hub        // gives the readers at this node their events
	registry  *prometheus.Registry // the metrics of this node
	etcd      *etcdMonitor         // reports how full etcd is
	access    *authority.Keeper    // who may do what; it stays empty on a node that only executes runs
	late      *auditlog.Late       // audit records that a full etcd could not store
	sinks     []*auditlog.Sink     // copies of all audit records
	cluster   task.Cluster         // the record as it was at the start; the number of shards never changes
	record    *clusterRecord       // follows the cluster's record
	restored  error                // not nil: at the start, etcd was found to be restored from an older snapshot
	secured   certSources          // certificates and CAs
	hostFiles hostFiles            // keys for secrets and the host's policy
	tls       nodeTLS              // connections between nodes
	expiry    *certExpiryMonitor   // reports certificates that expire

	listeners *apiListeners
	http      *httpServer
	metrics   *metricsServer // nil: there is no metrics_listen

	etcdWaiter *etcdWaiter

	eligibility *eligibility
	clock       *clockMonitor
	watchdog    *watchdog
	stall       *stallMonitor
	revisions   *etcdhistory.Revisions
	history     *etcdhistory.Monitor
	peers       *peerprobe.Prober

	nodes       *kv.Mirror                  // nodes/
	known       *record.Known[task.Node]    // decodes nodes/, and reuses records that have not changed
	limits      *kv.Mirror                  // access/nodes/, on a node that does not keep all access records; else nil
	owners      *kv.Mirror                  // owners/
	knownOwners *record.Known[record.Owner] // decodes owners/ in the same way
	moves       *kv.Mirror                  // shards that are being handed over
	presence    *presence
	member      *memberMonitor
	states      *stateController
	health      *nodeHealth
	facts       *hostfacts.Monitor
	fleet       *placement.Fleet  // the nodes, as the placement of runs uses them
	engine      *scheduler.Engine // the workers of the node's shards
	keeper      *shard.Keeper     // starts and stops the workers
	keep        wake.Signal       // wakes the keeper
	announce    wake.Signal       // makes the presence announce the node's record at once
	leader      *leader
	election    *election.Election
	executor    *executor.Executor
	actions     *httpaction.Runner // runs HTTP attempts; nil: a test replaces it
	freezes     freezes
	rules       *alertRules // of alerts; nil: the node does not schedule
	guardian    *guardian.Client
	groups      *cgroup.Groups    // nil: none
	orphans     *proctree.Orphans // nil: orphans do not become children of the daemon

	fleetChanged wake.Signal                    // wakes followFleet
	placedBy     atomic.Pointer[authority.View] // the access records by which the fleet was set
}

// startNode implements [Environment.Start]. After an error it closes what it has opened.
func startNode(ctx context.Context, cfg Config, env Environment, log *zap.Logger) (_ *Node, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}

	trust, err := cfg.openHostFiles(log)
	if err != nil {
		return nil, err
	}

	n := &Node{cfg: cfg, hostFiles: trust, env: env, log: log, instance: task.NewUID(), keep: wake.NewSignal(), announce: wake.NewSignal(), fleetChanged: wake.NewSignal()}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()

	// From here on, this process alone uses the data directory. The previous one is dead, because it held the same
	// lock; its guardian may still kill processes, so wait until it has exited.
	if n.state, err = datadir.Open(cfg.DataDir); err != nil {
		return nil, err
	}
	if n.key, err = datadir.OpenNodeKey(cfg.DataDir); err != nil {
		return nil, err
	}
	if env.OwnKeys && trust.keys == "" {
		if n.hostFiles.keys, err = openOwnKeys(cfg.DataDir); err != nil {
			return nil, err
		}
	}
	if err := backup.RemoveUnfinished(filepath.Join(cfg.DataDir, backupFile)); err != nil {
		return nil, fmt.Errorf("remove a backup that was not sent completely: %w", err)
	}
	if err := guardian.WaitForExit(ctx, cfg.DataDir); err != nil {
		return nil, fmt.Errorf("wait for the guardian of the previous daemon: %w", err)
	}
	if n.former, n.proven, err = n.state.Begin(n.instance); err != nil {
		return nil, err
	}

	if n.secured, err = cfg.securityOf(); err != nil {
		return nil, err
	}

	for _, warning := range cfg.securityWarnings(n.secured) {
		log.Warn("a setting is less safe than it could be", zap.String("setting", warning))
	}

	// The API listens before etcd is reached, and reports what the node waits for.
	n.tls = nodeTLS{dial: env.Dial, secured: n.secured.api, auth: certs.ClientAuth(cfg.TLSClientAuth), serves: cfg.servesTLS()}
	admins := unixsocket.LookupAdministrators(log)
	n.listeners = newAPIListeners(cfg, env, n.tls, admins, n.announce, log)
	n.http = startHTTP(newHTTPServer(admins, cfg.servesAPI(), log), env.serviceManager, n.startupHeader(), n.listeners.endpoints...)

	n.metrics = startMetrics(cfg, env, n.tls, log)

	// The revisions are observed from the first answer on: a lower revision than the former process has seen
	// must be detected before anything is written.
	n.revisions = etcdhistory.NewRevisions(n.former.Revision)
	n.etcdWaiter = &etcdWaiter{cfg: cfg, http: n.http, alarm: env.alarm, explains: endpointExplainer{dial: env.Dial}, log: log}
	if err := n.reachEtcd(ctx); err != nil {
		return nil, err
	}

	n.etcdKV = n.client.KV
	n.client.KV = n.revisions.ObserveKV(n.etcdKV)

	n.registry = prometheus.NewRegistry()
	n.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	n.client.Register(n.registry)
	n.listeners.registerMetrics(n.registry)
	n.metrics.serveRegistry(n.registry)

	keys, err := record.NewKeys(cfg.Prefix)
	if err != nil {
		return nil, err
	}

	n.batcher = kv.NewBatcher(n.client, kv.BatcherConfig{Registerer: n.registry, Logger: n.log})
	n.store = store.New(n.client, kv.Direct(n.client), keys).Understanding(env.Format).Batching(n.batcher)
	if err := n.bootstrapCluster(ctx); err != nil {
		return nil, err
	}

	if err := n.connectParts(ctx); err != nil {
		return nil, err
	}
	env.alarm.watchNode(n)

	return n, nil
}

// connectParts creates the components and connects them. It starts none of them.
func (n *Node) connectParts(ctx context.Context) (err error) {
	cfg, keys, registry := n.cfg, n.store.Keys(), n.registry

	// Reasons for which the node may not own shards.
	n.eligibility = newEligibility(registry, n.log, n.eligibilityChanged)
	n.history = n.newHistoryMonitor()
	n.clock = newClockMonitor(cfg, n.env, n.eligibility)
	n.watchdog = newWatchdog(n.log)
	n.hostFiles.registerMetrics(registry)
	n.expiry = newCertExpiryMonitor(n.secured, n.env, registry, n.log)

	// The state of the cluster, as etcd last reported it.
	n.nodes, n.owners, n.moves = n.newMirror(keys.Nodes(), "nodes"), n.newMirror(keys.Owners(), "owners"), n.newMirror(keys.Handovers(), "moves")
	if slices.Contains(cfg.Roles, task.RoleScheduler) {
		n.rules = &alertRules{keys: keys, mirror: n.newMirror(keys.AlertRules(), "alert rules")}
	}
	n.known = record.NewKnownNodes(keys)
	n.knownOwners = record.NewKnownOwners(keys)
	n.record = &clusterRecord{store: n.store, client: n.client, atStart: n.cluster, check: n.history.CheckRecord, announce: n.announce, log: n.log}
	n.member = &memberMonitor{server: n.server, store: n.store}

	n.access = authority.New(n.client, keys, n.log)
	if !cfg.knowsAccess() {
		n.limits = n.newMirror(keys.NodeLimits(), "node limits")
	}
	if n.late, err = auditlog.OpenLate(cfg.DataDir, n.store, n.log); err != nil {
		return err
	}

	n.sinks = n.newAuditSinks()

	// The execution of attempts.
	if err := n.openGroups(); err != nil {
		return err
	}
	if err := n.wireExecutor(ctx); err != nil {
		return err
	}

	// The decisions about ticks.
	n.fleet = placement.NewFleet(cfg.Name, n.executor.Free)
	engine := scheduler.Config{
		Node: cfg.Name, Store: n.store, Fleet: n.fleet, NextAttempt: executor.Next, Ref: n.taskRef,
		Freezes: n.freezes.knownFreezes, Namespaces: n.knownNamespaces, Now: n.env.Now, Cluster: n.record.currentRecord, MayCommit: n.mayCommit,
		Logger: n.log.Named("scheduler"), Registerer: registry,
	}
	if n.rules != nil {
		engine.AlertRules = n.rules.known
	}
	n.engine = scheduler.New(engine)
	n.keeper = shard.NewKeeper(shard.KeeperConfig{
		Node: cfg.Name, Owners: n.shardOwners,
		Fence: n.store.OwnerFence, Session: n.sessionOfOwner, Changed: n.keep, Work: n.engine.Work, Logger: n.log.Named("keeper"),
		Handovers: func() []record.Handover { return record.DecodeHandovers(keys, n.moves.Snapshot().KVs) },
		Preload:   n.engine.Preload, TellReady: n.store.TellReady,
	})

	n.leader = n.newLeader()
	n.election = election.New(n.client, election.Config{
		Prefix: keys.Root(), Node: cfg.Name, TTL: cfg.LeaseTTL.Std(), Leases: n.saveElection, Alive: n.watchdog.checkAlive, Logger: n.log,
	})

	// What the node announces, and its health checks.
	n.facts = hostfacts.NewMonitor(cfg.DataDir,
		hostfacts.Limits{Load: cfg.MaxLoad, MemoryFree: cfg.MinMemoryFree, DiskFree: cfg.MinDiskFree}, n.announce.Send, n.log)
	n.stall = &stallMonitor{workers: n.engine, env: n.env, eligibility: n.eligibility, log: n.log.Named("stall")}
	n.presence = n.newPresence()
	n.states = &stateController{
		node: cfg.Name, instance: n.instance, store: n.store, state: n.state, presence: n.presence, executor: n.executor,
		eligibility: n.eligibility, announce: n.announce, log: n.log,
	}
	n.health = &nodeHealth{
		cfg: cfg, env: n.env, record: n.record, owners: n.shardOwners, state: n.state, presence: n.presence,
		eligibility: n.eligibility, listeners: n.listeners, access: n.access, keeper: n.keeper, engine: n.engine, executor: n.executor, watchdog: n.watchdog,
	}
	n.wireMonitors()

	n.events = eventlog.NewHub(eventlog.New(n.client, keys), n.log)

	handler, err := n.newAPI()
	if err != nil {
		return err
	}
	if handler, err = n.withPages(handler); err != nil {
		return err
	}

	n.http.setHandler(handler)

	return nil
}

// wireExecutor creates the executor and the client of the guardian.
func (n *Node) wireExecutor(ctx context.Context) (err error) {
	cfg := n.cfg
	workdirs := workdir.Root(cfg.ScratchDir, cfg.Name, cfg.DataDir)

	if !n.env.Unguarded {
		n.guardian = guardian.NewClient(guardian.Config{
			Hello:   guardian.Hello{Instance: n.instance, Dir: cfg.DataDir, Workdirs: workdirs, Etcd: cfg.etcdAccessJSON(), Groups: n.groups.Roots()},
			Orphans: n.orphans,
			Env:     withoutSecrets(os.Environ()),
			Logger:  n.log, Registerer: n.registry,
		})
	}

	n.executor, err = executor.New(executor.Config{
		Node: cfg.Name, Instance: n.instance, Slots: cfg.Slots, Dir: cfg.DataDir, Workdirs: workdirs, Inbox: n.store, Guardian: n.guardian,
		Groups: n.groups, Orphans: n.orphans,
		Spool: spool.Config{
			Limit: cfg.SpoolLimit, Total: cfg.SpoolTotal, MaxAge: cfg.SpoolRetention.Std(), Uncompressed: !cfg.SpoolCompress,
			MayRepeat: func() bool { return n.state.Epoch() > store.FirstEpoch },
		},
		Fake: n.env.Act, Boot: n.env.Boot, Logger: n.log, Registerer: n.registry,
		HTTP:    func(output *spool.Spool) (executor.AttemptRunner, error) { return n.newHTTPActions(ctx, output) },
		Secrets: n.secretReader(), Policy: n.hostFiles.processPolicy(), DefaultUser: cfg.taskUser(), Mail: cfg.mailPolicy(),
		Obeyed: n.announce.Send, StuckChanged: n.announce.Send,
		// A former instance of this data directory is dead with all its processes: bePresent has cleared it before
		// the executor sees the inbox.
		Dead: func(instance string) bool { return slices.Contains(n.former.Instances, instance) },
	})

	return err
}

// newAPI creates the handler of the API.
func (n *Node) newAPI() (http.Handler, error) {
	cfg := n.cfg
	etcdctl := ""
	if n.server != nil {
		etcdctl = n.server.Endpoint()
	}

	logins, err := n.newLogins()
	if err != nil {
		return nil, err
	}

	return api.New(api.Config{
		Logins: logins, LoginRedirect: n.loginRedirect, Address: n.listeners.announcedAddress,
		Store: n.store, Access: n.access, ForwardedOnly: !cfg.servesAPI(), LateAudit: n.late.Keep, RefusedLogin: n.recordRefusedLogin,
		Cluster: n.cluster, History: n.currentHistory, Node: cfg.Name, Instance: n.instance, Version: version.Get(), Ref: n.taskRef, Now: n.env.Now,
		Etcd: etcdctl, Nodes: n.presentNodes, Peer: n.peerNamed, Key: n.key, Keys: n.hostFiles.keyRing(),
		Dial: n.env.Dial, DialTLS: n.tls.dialTLS(), TLS: n.tls.serves,
		Clock: n.clock.checkTrusted, Writable: func() error { return n.eligibility.errorFor(task.IneligibleRestored) },
		SetState: n.states.requestState, Ready: n.health.checkReady,
		Events: n.events, Ask: n.answerQueries(), Logs: n.executor.Spool(), Attempts: n.executor, Ends: n.http.closing, Authenticated: connlimit.Authenticated,
		BackupFile: filepath.Join(cfg.DataDir, backupFile), DialEtcd: n.dialEndpoint,
		Logger: n.log, Registerer: n.registry, Gatherer: n.Metrics(),
	})
}

// backupFile is the file in the data directory with a backup that has not been sent yet.
const backupFile = "backup.tmp"

// dialEndpoint connects to one endpoint of an etcd that is not embedded.
func (n *Node) dialEndpoint(ctx context.Context, endpoint string) (*kv.Client, error) {
	access := n.cfg.etcdAccess()
	access.Endpoints = []string{endpoint}

	return access.dialEtcd(ctx, n.log)
}

// newMirror returns a mirror of all keys with a prefix. The node reads from mirrors without a request to etcd; they may
// lag behind.
func (n *Node) newMirror(prefix, name string) *kv.Mirror {
	key, end := kv.Prefix(prefix)
	return kv.NewMirror(n.client, kv.FollowConfig{Key: key, End: end, Relist: time.Minute, Name: name, Logger: n.log.Named("kv")})
}

// newPresence creates the presence with those fields of the node's record that do not change while the process lives.
func (n *Node) newPresence() *presence {
	labels := map[string]string{"host": defaultName()}
	for k, v := range n.cfg.Labels {
		labels[k] = v
	}

	labels["node"], labels["os"], labels["arch"] = n.cfg.Name, runtime.GOOS, runtime.GOARCH

	return &presence{
		store: n.store, state: n.state, former: n.former, proven: n.proven, ttl: n.cfg.LeaseTTL.Std(), env: n.env, log: n.log.Named("presence"),
		history: n.history, record: n.record,
		attempts: n.executor, entries: n.engine, member: n.member, listeners: n.listeners, expiry: n.expiry, facts: n.facts,
		hostFiles: n.hostFiles, eligibility: n.eligibility, watchdog: n.watchdog, stall: n.stall, announce: n.announce,
		mail: n.cfg.mailPolicy(),
		node: task.Node{
			Name: n.cfg.Name, Instance: n.instance, PublicKey: api.PublicKey(n.key), Version: version.Get(), Labels: labels, Roles: n.cfg.Roles, Host: n.env.Host, BootID: n.env.BootID, BootedAt: task.At(n.env.Now().Add(-n.env.bootTime())),
			Slots: n.cfg.Slots, Weight: n.cfg.Weight, LeaseTTL: n.cfg.LeaseTTL, StartedAt: task.At(n.env.Now()),
			HandoverWithin: n.cfg.DrainTimeout / 2, // the other half is for running attempts
		},
	}
}

// peerNamed returns the record of a present node from the mirror, and false if there is none. Requests of other nodes
// are verified with it, also while etcd does not answer.
func (n *Node) peerNamed(name string) (task.Node, bool) {
	nodes := n.known.Decode(n.nodes.Snapshot().KVs)
	at := slices.IndexFunc(nodes, func(o task.Node) bool { return o.Name == name })
	if at < 0 {
		return task.Node{}, false
	}

	return nodes[at], true
}

// taskRef returns the reference of a task with its shard.
func (n *Node) taskRef(namespace, name string) record.Ref {
	return record.Ref{Namespace: namespace, Name: name, Shard: shard.Of(namespace, name, n.cluster.Shards)}
}

// answerQueries returns the function that answers queries about tasks, or nil if the node does not schedule.
func (n *Node) answerQueries() func(context.Context, *readmodel.Query, []int) (readmodel.NodeAnswer, error) {
	if !slices.Contains(n.cfg.Roles, task.RoleScheduler) {
		return nil
	}
	return n.engine.Ask
}

// AnswerQuery answers a query about the tasks of this node's shards, apart from those in without, as it does for other
// nodes.
func (n *Node) AnswerQuery(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error) {
	return n.engine.Ask(ctx, q, without)
}

// Instance returns the id of this start of the node.
func (n *Node) Instance() string { return n.instance }

// Metrics returns the metrics that /metrics serves.
func (n *Node) Metrics() prometheus.Gatherer { return n.registry }

// Address returns the URL at which other nodes reach the API.
func (n *Node) Address() string { return n.listeners.advertisedAddress() }

// EtcdEndpoints returns the endpoints with which etcdctl reaches the etcd of this node.
func (n *Node) EtcdEndpoints() string {
	if n.server != nil {
		return n.server.Endpoint()
	}
	return strings.Join(n.cfg.EtcdEndpoints, ",")
}

// Close releases everything that Start acquired. Run must have returned. Close may be called more than once.
func (n *Node) Close() {
	n.env.alarm.forgetNode()

	if n.http != nil {
		n.http.close()
	}
	if n.metrics != nil {
		n.metrics.close()
	}

	if n.actions != nil {
		n.actions.Close()
	}

	if n.client != nil && n.server == nil {
		n.client.Close()
	}

	if n.server != nil {
		if err := n.server.Close(); err != nil {
			n.log.Warn("the embedded etcd did not stop cleanly", zap.Error(err))
		}
	}

	if err := n.groups.Close(); err != nil {
		n.log.Warn("control groups remain", zap.Error(err))
	}

	if n.state != nil {
		n.state.Close()
	}
}
