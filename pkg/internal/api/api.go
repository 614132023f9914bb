package api

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/api/accesscontrol"
	"github.com/carillonhq/carillon/pkg/internal/api/alerts"
	"github.com/carillonhq/carillon/pkg/internal/api/ask"
	"github.com/carillonhq/carillon/pkg/internal/api/attempts"
	"github.com/carillonhq/carillon/pkg/internal/api/cluster"
	"github.com/carillonhq/carillon/pkg/internal/api/events"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/load"
	loginroutes "github.com/carillonhq/carillon/pkg/internal/api/logins"
	"github.com/carillonhq/carillon/pkg/internal/api/logs"
	"github.com/carillonhq/carillon/pkg/internal/api/nodes"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/internal/api/runs"
	"github.com/carillonhq/carillon/pkg/internal/api/secrets"
	"github.com/carillonhq/carillon/pkg/internal/api/tasks"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/oidclogin"
	"github.com/carillonhq/carillon/pkg/internal/peerhistory"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/internal/secret"
	"github.com/carillonhq/carillon/pkg/internal/statement"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
	"github.com/carillonhq/carillon/pkg/store/eventlog"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Config contains what the API needs from its node. Store, Cluster, Node and Ref are required. New replaces
// other zero values by defaults.
type Config struct {
	Store *store.Store
	// Access has the access records, which say who may do what. Its Run is the caller's to call.
	Access *authority.Keeper
	// ForwardedOnly is set on a node without the role api. It serves health checks, and only those requests that a
	// node with that role has forwarded; Access stays empty.
	ForwardedOnly bool
	Cluster       task.Cluster
	// History, if set, returns which history of the cluster this node follows. Other nodes ask for it after a restore.
	History func() peerhistory.Status
	Node    string // the name of this node
	// Instance, if set, is sent in InstanceHeader with each answer. Peers use it to detect that a node has
	// restarted.
	Instance string
	Version  string // the version of Carillon
	// Etcd contains the arguments with which etcdctl reaches an embedded etcd. It is empty if the user has
	// configured the cluster's etcd.
	Etcd string
	// Ref maps a task to the shard that contains it.
	Ref func(namespace, name string) record.Ref
	// Now is the wall clock; nil is time.Now.
	Now func() time.Time
	// Clock, if set, returns an error if this node's clock cannot be trusted. The API then refuses changes that
	// would write the clock's time into an entry.
	Clock func() error
	// Writable, if set, returns an error if this node must not change anything.
	Writable func() error
	// Nodes returns the nodes that are present, as this node knows them; nil means unknown. Callers must not
	// modify the result. A write of a task is answered with a warning if none of these nodes can run it.
	Nodes func() []task.Node
	// SetState, if set, puts this node into a state (ready, cordoned or draining) on behalf of a caller, keeps
	// it over restarts, and announces it. The state is in etcd when SetState returns.
	SetState func(ctx context.Context, state string, by *task.Actor) error
	// StateTimeout limits how long another node may take to obey a state; 0 means 10 s.
	StateTimeout time.Duration
	// Key signs the requests that this node sends to other nodes on behalf of its callers. Its public half is in
	// the node's record. Without a key, the node cannot send such requests.
	Key ed25519.PrivateKey
	// Peer returns a node that is present, as this node knows it. It is needed to verify requests from other
	// nodes; nil rejects all of them.
	Peer func(name string) (task.Node, bool)
	// TLS states that this node's API uses TLS. It then sends requests to other nodes over TLS only.
	TLS bool
	// Dial connects to other nodes; nil means net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// DialTLS connects to other nodes at https:// addresses; nil means Dial with the system's CAs.
	DialTLS func(ctx context.Context, network, address string) (net.Conn, error)
	// FreezeTimeout limits how long a freeze waits for the nodes to confirm it; 0 means 12 s.
	FreezeTimeout time.Duration
	// Events gives the readers of this node their events. nil means that each of them has a watch of its own.
	Events *eventlog.Hub
	// PageQuiet is how long a page of events waits without new changes before it ends. This is needed if other
	// programs write to the same etcd, because their revisions contain no events. 0 means 2 s.
	PageQuiet time.Duration
	// MostScanned is the maximum number of records that a page of runs reads to find matching ones; 0 means
	// 10,000. A page may contain fewer runs than its limit, but a page that has a next page is never empty.
	MostScanned int
	// Ready, if set, returns an error that explains why the node is not ready.
	Ready func() error
	// Ask answers a query about tasks for the shards of this node, apart from those in without. It is nil if the node does
	// not schedule.
	Ask func(ctx context.Context, q *readmodel.Query, without []int) (readmodel.NodeAnswer, error)
	// Keys returns this node's keys for secrets. It is called for each use, because key files can change; nil
	// means that the node has none.
	Keys func() (secret.Ring, error)
	// Logs is the output stored on this node; nil means that none is stored.
	Logs logs.Source
	// Attempts provides what the attempts on this node have reported; nil means that no attempts run here.
	Attempts attempts.Source
	// BackupFile is where this node stores a backup until it has been sent. Empty means that it makes none.
	BackupFile string
	// DialEtcd connects to one endpoint of an etcd that is not embedded, for a snapshot.
	DialEtcd etcdadmin.Dialer
	// LateAudit, if set, keeps an audit record that a full etcd could not store, until there is space.
	LateAudit func(task.AuditRecord)
	// RefusedLogin, if set, takes the audit records of some refused logins, which are not written to etcd. It must not
	// wait.
	RefusedLogin func(task.AuditRecord)
	// Logins sign people in with OpenID Connect providers; nil means that there are none.
	Logins *oidclogin.Logins
	// Address returns the URL at which browsers and other nodes reach this node's API; "" while it listens on no such address.
	// nil means that it does not.
	Address func() string
	// LoginRedirect returns the URL at which the browser arrives with the answer of a provider. It is needed with Logins.
	LoginRedirect func(provider string) (string, error)
	// Authenticated, if set, is called with the context of each request that has a valid token, before the request is
	// served. subject is that of the token, or node:NAME for a request that another node has forwarded. The connection of
	// the request is then no longer closed to make room for others, within the limit of the subject.
	Authenticated func(ctx context.Context, subject string)
	// Ends, if set, is closed when the node stops serving requests. Streams end then.
	Ends <-chan struct{}
	// Heartbeat is the interval at which a stream sends a sign of life and checks its caller's token again; 0
	// means 15 s.
	Heartbeat time.Duration
	// BackupHeartbeat is the same for a backup while it is made; 0 means 5 s.
	BackupHeartbeat time.Duration
	// Logger may be nil.
	Logger *zap.Logger
	// Registerer registers the API's metrics; nil disables them.
	Registerer prometheus.Registerer
	// Gatherer provides the metrics for /metrics; nil serves none.
	Gatherer prometheus.Gatherer
}

// InstanceHeader is the header of each answer with the instance of the node that answers.
const InstanceHeader = "X-Carillon-Instance"

// New returns the handler of the API. It performs no I/O and starts no goroutines.
func New(cfg Config) (http.Handler, error) {
	if cfg.Access == nil {
		return nil, errors.New("api: Access is required")
	}

	if cfg.Store == nil || cfg.Ref == nil || cfg.Node == "" || cfg.Cluster.Shards <= 0 {
		return nil, errors.New("api: Store, Cluster, Node and Ref are required")
	}

	if cfg.Now == nil {
		cfg.Now = time.Now
	}

	if cfg.Clock == nil {
		cfg.Clock = func() error { return nil }
	}

	if cfg.Writable == nil {
		cfg.Writable = func() error { return nil }
	}

	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{}).DialContext
	}

	if cfg.LateAudit == nil {
		cfg.LateAudit = func(task.AuditRecord) {}
	}

	if cfg.RefusedLogin == nil {
		cfg.RefusedLogin = func(task.AuditRecord) {}
	}

	if cfg.Address == nil {
		cfg.Address = func() string { return "" }
	}

	if cfg.LoginRedirect == nil {
		cfg.LoginRedirect = func(string) (string, error) { return "", errors.New("it serves no pages") }
	}

	if cfg.Authenticated == nil {
		cfg.Authenticated = func(context.Context, string) {}
	}

	if cfg.Peer == nil {
		cfg.Peer = func(string) (task.Node, bool) { return task.Node{}, false }
	}

	if cfg.Ready == nil {
		cfg.Ready = func() error { return nil }
	}

	if cfg.FreezeTimeout == 0 {
		cfg.FreezeTimeout = cluster.ConfirmTimeout
	}

	if cfg.StateTimeout <= 0 {
		cfg.StateTimeout = nodes.StateTimeout
	}

	if cfg.Events == nil {
		cfg.Events = eventlog.NewHub(eventlog.New(cfg.Store.Client(), cfg.Store.Keys()), nil) // it is never run
	}

	if cfg.PageQuiet <= 0 {
		cfg.PageQuiet = events.PageQuiet
	}

	if cfg.MostScanned <= 0 {
		cfg.MostScanned = 10_000
	}

	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}

	if cfg.Heartbeat <= 0 {
		cfg.Heartbeat = 15 * time.Second
	}

	if cfg.Version == "" {
		cfg.Version = "unknown"
	}

	if cfg.Gatherer == nil {
		cfg.Gatherer = prometheus.NewRegistry()
	}

	s := newServer(cfg)
	if err := s.registerMetrics(); err != nil {
		return nil, fmt.Errorf("api: register metrics: %w", err)
	}

	s.registerRoutes()

	return s, nil
}

// server is the HTTP handler of the API. It authenticates callers and passes requests to the handlers of each
// resource.
type server struct {
	Config
	log        *zap.Logger
	mux        *http.ServeMux
	public     map[string]bool // by pattern of the mux: the operation needs no token
	takesLink  map[string]bool // by pattern of the mux: the operation accepts a login link
	compress   func(http.Handler) http.HandlerFunc
	reading    httpapi.RequestReader
	problems   httpapi.ProblemWriter
	access     *authority.Keeper
	judge      *httpapi.Judge
	logins     *logins
	statements *statement.Verifier
	metrics    metrics

	asker    *ask.Asker
	tasks    *tasks.Handlers
	runs     *runs.Handlers
	logs     *logs.Handlers
	events   *events.Handlers
	attempts *attempts.Handlers
	nodes    *nodes.Handlers
	cluster  *cluster.Handlers
	board    *ask.Boards
	load     *load.Handlers
	alerts   *alerts.Handlers
	secrets  *secrets.Handlers
	control  *accesscontrol.Handlers
	signIn   *loginroutes.Handlers
}

// newServer creates a server and its handlers. It registers neither routes nor metrics.
func newServer(cfg Config) *server {
	s := &server{
		Config:     cfg,
		log:        cfg.Logger.Named("api"),
		mux:        http.NewServeMux(),
		public:     map[string]bool{},
		takesLink:  map[string]bool{},
		compress:   newCompressor(),
		reading:    httpapi.NewRequestReader(cfg.Ref, cfg.Cluster.ID),
		access:     cfg.Access,
		statements: statement.NewVerifier(cfg.Node, cfg.Instance),
	}
	s.problems = httpapi.NewProblemWriter(s.log)
	s.logins = newLogins(cfg.Node, cfg.Now, cfg.RefusedLogin, s.log)

	now := httpapi.Clock(cfg.Now)
	s.judge = &httpapi.Judge{Keeper: cfg.Access, Node: cfg.Node, Now: now, Late: s.recordLate}
	others := peers.New(peers.Config{
		Node: cfg.Node, Instance: cfg.Instance, Key: cfg.Key, TLS: cfg.TLS, Now: now, Dial: cfg.Dial, DialTLS: cfg.DialTLS, Log: s.log,
	})
	s.asker = ask.New(ask.Config{
		Node: cfg.Node, Shards: cfg.Cluster.Shards, Store: cfg.Store, Ref: cfg.Ref, Peers: others, Nodes: presentNodes(cfg), Own: cfg.Ask, Now: now,
	})

	// The order matters: logs needs runs, which needs attempts, and board needs cluster.
	viewer := &views.Viewer{Store: cfg.Store, Ref: cfg.Ref, Now: now, Cluster: cfg.Cluster.ID}
	s.tasks = &tasks.Handlers{
		Store: cfg.Store, Ref: cfg.Ref, Shards: cfg.Cluster.Shards, Views: viewer, Asker: s.asker, Now: now,
		ClockFault: cfg.Clock, Nodes: cfg.Nodes, Etcd: cfg.Etcd,
		CheckStream: s.checkStream, ReportRefusal: s.logins.reportRefusal, Problems: s.problems, Log: s.log,
	}
	s.attempts = &attempts.Handlers{Store: cfg.Store, Peers: others, Node: cfg.Node, Source: cfg.Attempts, Log: s.log}
	s.runs = &runs.Handlers{
		Store: cfg.Store, Ref: cfg.Ref, Asker: s.asker, Attempts: s.attempts, Shards: cfg.Cluster.Shards, Now: now, Cluster: cfg.Cluster.ID, MostScanned: cfg.MostScanned, Nodes: cfg.Nodes,
	}
	s.logs = &logs.Handlers{
		Store: cfg.Store, Ref: cfg.Ref, Runs: s.runs, Peers: others, Node: cfg.Node, Source: cfg.Logs,
		CheckStream: s.checkStream, Ends: cfg.Ends, Heartbeat: cfg.Heartbeat, Problems: s.problems, Writable: cfg.Writable, Now: now,
	}
	s.events = &events.Handlers{
		Store: cfg.Store, Hub: cfg.Events, Node: cfg.Node, PageQuiet: cfg.PageQuiet, CheckStream: s.checkStream, Ends: cfg.Ends, Heartbeat: cfg.Heartbeat, Problems: s.problems,
	}
	s.runs.Watch, s.runs.CheckStream, s.runs.Ends, s.runs.Heartbeat = s.events.WatchRun, s.checkStream, cfg.Ends, cfg.Heartbeat
	s.nodes = &nodes.Handlers{
		Store: cfg.Store, Node: cfg.Node, Shards: cfg.Cluster.Shards, Now: now, Sizes: s.asker.ShardSizes, SetState: cfg.SetState, StateTimeout: cfg.StateTimeout,
	}
	s.cluster = &cluster.Handlers{
		Store: cfg.Store, Ref: cfg.Ref, Asker: s.asker, Cluster: cfg.Cluster, Node: cfg.Node, Version: cfg.Version, Etcd: cfg.Etcd, Now: now,
		Writable: cfg.Writable, FreezeTimeout: cfg.FreezeTimeout, CheckStream: s.checkStream, Problems: s.problems, Log: s.log, Peers: others,
		Backups: cluster.Backups{Dial: cfg.DialEtcd, File: cfg.BackupFile, Heartbeat: cfg.BackupHeartbeat},
		Reader: &cluster.StatusReader{
			Store: cfg.Store, Cluster: cfg.Cluster, Now: now,
			BootstrapToken: func() (task.Token, bool) { return s.access.View().UnneededBootstrapToken(now()) },
		},
	}
	s.board = &ask.Boards{
		Asker: s.asker, Store: cfg.Store, Cluster: cfg.Cluster, Version: cfg.Version, Status: s.cluster.Status, AddProgress: s.attempts.AddToBoard,
	}
	s.load = &load.Handlers{Asker: s.asker, Now: now}
	s.alerts = &alerts.Handlers{Store: cfg.Store, Ref: cfg.Ref, Views: viewer, Shards: cfg.Cluster.Shards, Now: now, ClockFault: cfg.Clock}
	s.secrets = &secrets.Handlers{Store: cfg.Store, Node: cfg.Node, Now: now, Keys: cfg.Keys}
	s.control = accesscontrol.New(accesscontrol.Config{
		Store: cfg.Store, Keeper: cfg.Access, Node: cfg.Node, Address: cfg.Address, Now: now, ClockFault: cfg.Clock, MostScanned: cfg.MostScanned, Log: s.log,
	})
	s.signIn = &loginroutes.Handlers{
		Logins: cfg.Logins, Redirect: cfg.LoginRedirect, Ready: s.checkServing, Judge: s.judge, CallerFor: loginCaller, StartSession: s.control.StartSession,
		MayTry: func(r *http.Request) bool { return s.logins.mayTry(clientOf(r)) }, ReportRefusal: s.logins.reportLogin,
	}

	return s
}

// presentNodes returns the function that returns the nodes that are present: from memory, if the node knows them.
func presentNodes(cfg Config) func(context.Context) ([]task.Node, error) {
	if cfg.Nodes == nil {
		return cfg.Store.Nodes
	}
	return func(context.Context) ([]task.Node, error) { return cfg.Nodes(), nil }
}

// recordLate keeps an audit record that a full etcd could not store beside its change. The log has it in any case.
func (s *server) recordLate(a task.AuditRecord) {
	s.log.Warn("an audit record is late, because etcd is full", zap.Any("record", a))
	s.LateAudit(a)
}

// registerMetrics registers the metrics of the server and of its handlers.
func (s *server) registerMetrics() error {
	var err error
	if s.metrics, err = newMetrics(s.Registerer); err != nil {
		return err
	}
	if err := s.metrics.registerCounter(s.Registerer, s.logins.refused); err != nil {
		return err
	}
	if err := s.metrics.registerCounter(s.Registerer, s.logins.denied); err != nil {
		return err
	}

	if err := s.metrics.registerEvents(s.Registerer, s.events.Figures); err != nil {
		return err
	}

	return s.metrics.registerGauge(s.Registerer, "carillon_log_followers", "Clients that follow output on this node or through it.",
		func() float64 { return float64(s.logs.Followers()) })
}

// PublicKey returns the public half of a node's key, encoded as in the node's record.
func PublicKey(key ed25519.PrivateKey) string {
	return base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey))
}
