package api

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"encoding/base64"

	"github.com/carillonhq/carillon/pkg/internal/secret"
	"github.com/carillonhq/carillon/pkg/internal/statement"
	"github.com/carillonhq/carillon/pkg/store"
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
	Ref func(namespace, name string) store.Ref
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
	Logs LogSource
	// Talks are what the attempts on this node say of themselves; nil hears none.
	Talks Talks
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

// LogSource is the output of attempts that is kept on this node.
type LogSource interface {
	// Open opens what an attempt has written so far, to be closed by the
	// caller. os.ErrNotExist if nothing is kept, or nothing any more.
	Open(namespace, task, run string, attempt int) (io.ReadSeekCloser, error)
	// Active reports whether an attempt runs here and may still write more.
	Active(namespace, task, run string, attempt int) bool
	// Watch tells when Open or Active may show something new. It must never wait
	// for whoever is told. stop ends it.
	Watch(namespace, task, run string, attempt int) (woken <-chan struct{}, stop func(), err error)
	// Times tells when the parts of an output came, of what is at or behind byte from:
	// the first mark is in force there. There may be none; and if there are many, the
	// others are told when they are asked for from where the last one begins.
	Times(namespace, task, run string, attempt int, from int64) ([]task.Mark, error)
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
		cfg.FreezeWithin = confirmWithin
	}
	if cfg.StateWithin <= 0 {
		cfg.StateWithin = stateWithin
	}
	if cfg.PageQuiet <= 0 {
		cfg.PageQuiet = pageQuiet
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
	reading    reader
	problems   problemWriter
	tokens     *tokenCache
	reader     *tokenReader
	logins     *logins
	statements *statement.Verifier
	metrics    metrics

	tasks   *taskHandlers
	runs    *runHandlers
	logs    *logHandlers
	events  *eventHandlers
	talks   *talkHandlers
	nodes   *nodeHandlers
	cluster *clusterHandlers
	board   *boardHandlers
	secrets *secretHandlers
}

// newServer makes the parts of a server, and registers nothing.
func newServer(cfg Config) *server {
	s := &server{
		Config:     cfg,
		log:        cfg.Logger.Named("api"),
		mux:        http.NewServeMux(),
		reading:    newReader(cfg.Ref, cfg.Cluster.ID),
		tokens:     newTokenCache(),
		reader:     newTokenReader(cfg.Store.FindTokens),
		statements: statement.NewVerifier(cfg.Node, cfg.Instance),
	}
	s.problems = problemWriter{s.log}
	s.logins = newLogins(s.log)

	now := Clock(cfg.Now)
	peers := newPeers(Peers{Node: cfg.Node, Instance: cfg.Instance, Key: cfg.Key, TLS: cfg.TLS, Now: now}, cfg.Dial, cfg.DialTLS, s.log)
	finder := newFinder(cfg.Store, cfg.Ref, cfg.Cluster.Shards, now)

	s.tasks = &taskHandlers{
		Store: cfg.Store, Ref: cfg.Ref, Views: &Viewer{Store: cfg.Store, Ref: cfg.Ref, Now: now}, Finder: finder, Now: now,
		ClockFault: cfg.Clock, Nodes: cfg.Nodes, Etcd: cfg.Etcd,
		Authenticate: s.authenticate, ReportRefusal: s.logins.report, Problems: s.problems, Log: s.log,
	}
	s.talks = &talkHandlers{Store: cfg.Store, Peers: peers, Node: cfg.Node, Source: cfg.Talks}
	s.runs = &runHandlers{
		Store: cfg.Store, Ref: cfg.Ref, Finder: finder, Talks: s.talks, Shards: cfg.Cluster.Shards, Now: now, MostScanned: cfg.MostScanned,
	}
	s.logs = &logHandlers{
		Store: cfg.Store, Ref: cfg.Ref, Runs: s.runs, Peers: peers, Node: cfg.Node, Source: cfg.Logs,
		Refused: s.refused, Ends: cfg.Ends, Heartbeat: cfg.Heartbeat, Problems: s.problems,
	}
	s.events = &eventHandlers{
		Store: cfg.Store, Node: cfg.Node, PageQuiet: cfg.PageQuiet, Refused: s.refused, Ends: cfg.Ends, Heartbeat: cfg.Heartbeat, Problems: s.problems,
	}
	s.nodes = &nodeHandlers{
		Store: cfg.Store, Node: cfg.Node, Shards: cfg.Cluster.Shards, Now: now, SetState: cfg.SetState, StateWithin: cfg.StateWithin,
	}
	s.cluster = &clusterHandlers{
		Store: cfg.Store, Ref: cfg.Ref, Cluster: cfg.Cluster, Node: cfg.Node, Version: cfg.Version, Etcd: cfg.Etcd, Now: now,
		Writable: cfg.Writable, FreezeWithin: cfg.FreezeWithin, Authenticate: s.authenticate, Problems: s.problems, Log: s.log,
	}
	s.board = &boardHandlers{
		Store: cfg.Store, Cluster: cfg.Cluster, Peers: peers, Talks: s.talks, Node: cfg.Node, Version: cfg.Version, Now: now,
		Part: cfg.Board, Status: s.cluster.clusterStatus,
	}
	s.secrets = &secretHandlers{Store: cfg.Store, Node: cfg.Node, Now: now, Keys: cfg.Keys}
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
	return s.metrics.gauge(s.Registerer, "carillon_log_followers", "Callers that follow outputs at this node, or through it.",
		func() float64 { return float64(s.logs.Followers()) })
}

// PublicKey is the public half of a node's key as its record has it.
func PublicKey(key ed25519.PrivateKey) string {
	return base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey))
}
