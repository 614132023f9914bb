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

	"github.com/carillonhq/carillon/pkg/internal/api/attempts"
	"github.com/carillonhq/carillon/pkg/internal/api/board"
	"github.com/carillonhq/carillon/pkg/internal/api/cluster"
	"github.com/carillonhq/carillon/pkg/internal/api/events"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/logs"
	"github.com/carillonhq/carillon/pkg/internal/api/nodes"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/internal/api/runs"
	"github.com/carillonhq/carillon/pkg/internal/api/secrets"
	"github.com/carillonhq/carillon/pkg/internal/api/selection"
	"github.com/carillonhq/carillon/pkg/internal/api/tasks"
	"github.com/carillonhq/carillon/pkg/internal/api/views"
	"github.com/carillonhq/carillon/pkg/internal/secret"
	"github.com/carillonhq/carillon/pkg/internal/statement"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Config is what the API needs of its node.
type Config struct {
	Store   *store.Store
	Cluster task.Cluster
	Node    string // this one's name
	// Instance, if set, is told in InstanceHeader: peers ask for it.
	Instance string
	Version  string // Carillon's
	// Etcd is how etcdctl reaches an etcd that only this node knows; empty if
	// whoever asks knows it.
	Etcd string
	// Ref says where a task lives.
	Ref func(namespace, name string) record.Ref
	// Now is the wall clock; nil is time.Now.
	Now func() time.Time
	// Clock, if set, says why this node's clock is not to be trusted. Changes
	// that would write the clock's time into an entry are refused then.
	Clock func() error
	// Writable, if set, says why this node must change nothing.
	Writable func() error
	// Nodes are the nodes that are present, as this node knows them; nil: unknown. They are not to be
	// changed. A write of a task is answered with a warning if none of them can run it.
	Nodes func() []task.Node
	// SetState, if set, has this node take a state (ready, cordoned or draining) that
	// a caller asked for, keep it over restarts, and announce it: etcd has it when it
	// returns.
	SetState func(ctx context.Context, state, by string) error
	// StateWithin is how long another node may take to obey a state; 0 is 10 s.
	StateWithin time.Duration
	// Key signs what this node asks of others on behalf of its callers; nil: it can ask
	// nothing. Its public half is in the node's record.
	Key ed25519.PrivateKey
	// Peer finds a node that is present, as this one knows it, to verify what the node
	// asks; nil: no node may ask anything.
	Peer func(name string) (task.Node, bool)
	// TLS says that this node's API speaks TLS: then it asks other nodes by TLS only.
	TLS bool
	// Dial reaches other nodes; nil is net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// DialTLS reaches other nodes at https:// addresses; nil is Dial, and the
	// system's CAs.
	DialTLS func(ctx context.Context, network, address string) (net.Conn, error)
	// FreezeWithin is how long a freeze waits for the nodes to confirm it; 0 is 12 s.
	FreezeWithin time.Duration
	// PageQuiet is how long nothing is told until a page of events ends without all of
	// what has happened, as it may of an etcd that others write to; 0 is 2 s.
	PageQuiet time.Duration
	// MostScanned is how many records a page of runs reads in search of those that
	// match; 0 is 10,000. It may hold fewer than its limit, but one that has a next is
	// never empty.
	MostScanned int
	// Ready, if set, says why the node is not ready.
	Ready func() error
	// Board is this node's part of the board: ticks within a span, and of each list
	// limit items; nil if the node does not schedule.
	Board func(ctx context.Context, span time.Duration, limit int) task.BoardPart
	// Keys are this node's keys for secrets, read anew at each call; nil: it has none.
	Keys func() (secret.Ring, error)
	// Logs is the output kept on this node; nil keeps none.
	Logs logs.Source
	// Attempts knows what the attempts on this node have reported; nil: none runs here.
	Attempts attempts.Source
	// Authenticated, if set, is told the context of each request with a valid token, before
	// it is answered: the connection it came over need not make room for others.
	Authenticated func(ctx context.Context)
	// Ends, if set, is closed when the node stops answering: streams end then.
	Ends <-chan struct{}
	// Heartbeat is how often a stream gives a sign of life; 0 is 15 s.
	Heartbeat time.Duration
	// Logger may be nil.
	Logger *zap.Logger
	// Registerer takes the API's metrics; nil leaves them out.
	Registerer prometheus.Registerer
	// Gatherer is what /metrics shows; nil shows nothing.
	Gatherer prometheus.Gatherer
}

// InstanceHeader is the header of each answer that says which instance gives it.
const InstanceHeader = "X-Carillon-Instance"

// New makes the handler of the API. It does no I/O and starts nothing.
func New(cfg Config) (http.Handler, error) {
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

	if cfg.Authenticated == nil {
		cfg.Authenticated = func(context.Context) {}
	}

	if cfg.Peer == nil {
		cfg.Peer = func(string) (task.Node, bool) { return task.Node{}, false }
	}

	if cfg.Ready == nil {
		cfg.Ready = func() error { return nil }
	}

	if cfg.FreezeWithin == 0 {
		cfg.FreezeWithin = cluster.ConfirmWithin
	}

	if cfg.StateWithin <= 0 {
		cfg.StateWithin = nodes.StateWithin
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

	s.register()

	return s, nil
}

// server is the handler. It authenticates callers, and has the handlers of each resource serve them.
type server struct {
	Config
	log        *zap.Logger
	mux        *http.ServeMux
	reading    httpapi.RequestReader
	problems   httpapi.ProblemWriter
	tokens     *tokenCache
	reader     *tokenReader
	logins     *logins
	statements *statement.Verifier
	metrics    metrics

	tasks    *tasks.Handlers
	runs     *runs.Handlers
	logs     *logs.Handlers
	events   *events.Handlers
	attempts *attempts.Handlers
	nodes    *nodes.Handlers
	cluster  *cluster.Handlers
	board    *board.Handlers
	secrets  *secrets.Handlers
}

// newServer makes the parts of a server, and registers nothing.
func newServer(cfg Config) *server {
	s := &server{
		Config:     cfg,
		log:        cfg.Logger.Named("api"),
		mux:        http.NewServeMux(),
		reading:    httpapi.NewRequestReader(cfg.Ref, cfg.Cluster.ID),
		tokens:     newTokenCache(),
		reader:     newTokenReader(cfg.Store.FindTokens),
		statements: statement.NewVerifier(cfg.Node, cfg.Instance),
	}
	s.problems = httpapi.NewProblemWriter(s.log)
	s.logins = newLogins(s.log)

	now := httpapi.Clock(cfg.Now)
	others := peers.New(peers.Config{
		Node: cfg.Node, Instance: cfg.Instance, Key: cfg.Key, TLS: cfg.TLS, Now: now, Dial: cfg.Dial, DialTLS: cfg.DialTLS, Log: s.log,
	})
	finder := selection.NewFinder(cfg.Store, cfg.Ref, cfg.Cluster.Shards, now)

	s.tasks = &tasks.Handlers{
		Store: cfg.Store, Ref: cfg.Ref, Views: &views.Viewer{Store: cfg.Store, Ref: cfg.Ref, Now: now}, Finder: finder, Now: now,
		ClockFault: cfg.Clock, Nodes: cfg.Nodes, Etcd: cfg.Etcd,
		Authenticate: s.authenticate, ReportRefusal: s.logins.report, Problems: s.problems, Log: s.log,
	}
	s.attempts = &attempts.Handlers{Store: cfg.Store, Peers: others, Node: cfg.Node, Source: cfg.Attempts}
	s.runs = &runs.Handlers{
		Store: cfg.Store, Ref: cfg.Ref, Finder: finder, Attempts: s.attempts, Shards: cfg.Cluster.Shards, Now: now, MostScanned: cfg.MostScanned,
	}
	s.logs = &logs.Handlers{
		Store: cfg.Store, Ref: cfg.Ref, Runs: s.runs, Peers: others, Node: cfg.Node, Source: cfg.Logs,
		Refused: s.refused, Ends: cfg.Ends, Heartbeat: cfg.Heartbeat, Problems: s.problems,
	}
	s.events = &events.Handlers{
		Store: cfg.Store, Node: cfg.Node, PageQuiet: cfg.PageQuiet, Refused: s.refused, Ends: cfg.Ends, Heartbeat: cfg.Heartbeat, Problems: s.problems,
	}
	s.nodes = &nodes.Handlers{
		Store: cfg.Store, Node: cfg.Node, Shards: cfg.Cluster.Shards, Now: now, SetState: cfg.SetState, StateWithin: cfg.StateWithin,
	}
	s.cluster = &cluster.Handlers{
		Store: cfg.Store, Ref: cfg.Ref, Cluster: cfg.Cluster, Node: cfg.Node, Version: cfg.Version, Etcd: cfg.Etcd, Now: now,
		Writable: cfg.Writable, FreezeWithin: cfg.FreezeWithin, Authenticate: s.authenticate, Problems: s.problems, Log: s.log,
	}
	s.board = &board.Handlers{
		Store: cfg.Store, Cluster: cfg.Cluster, Peers: others, Attempts: s.attempts, Node: cfg.Node, Version: cfg.Version, Now: now,
		Part: cfg.Board, Status: s.cluster.Status,
	}
	s.secrets = &secrets.Handlers{Store: cfg.Store, Node: cfg.Node, Now: now, Keys: cfg.Keys}

	return s
}

// registerMetrics makes the metrics of the server and of its handlers.
func (s *server) registerMetrics() error {
	var err error
	if s.metrics, err = newMetrics(s.Registerer); err != nil {
		return err
	}
	if err := s.metrics.counter(s.Registerer, s.logins.refused); err != nil {
		return err
	}

	return s.metrics.gauge(s.Registerer, "carillon_log_followers", "Clients that follow output on this node or through it.",
		func() float64 { return float64(s.logs.Followers()) })
}

// PublicKey is the public half of a node's key as its record has it.
func PublicKey(key ed25519.PrivateKey) string {
	return base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey))
}
