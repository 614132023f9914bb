// Package notifier sends messages about alerts while its node leads.
//
//	alerts/…, silences/… ──► one snapshot of a mirror ──► alert.Diff ──► sent/… and queue/…, in one transaction
//	                                  ▲                       ▲
//	                               sent/…          history/…: has the message ended?
//
// A message is a manual run of the receiver, which is a task. What a receiver was told is the record sent/<ns>/<name>. The
// difference between it and the alerts, at one revision, is the next message (package alert).
//
// # Guarantees
//
//   - A receiver has one message at a time, because the record of a message and its run are written in one transaction, which
//     compares the leader's term, the record, the entry of the receiver and the freezes (G59).
//   - A receiver that answers is told of all that is open and not silenced (G60).
//
// A message is delivered at least once: if its run fails after it has arrived, the next message says the same.
//
// # Keys
//
// The package mirrors alerts/. It writes alerts/sent/ with queue records of receivers, alerts/cluster/ and alerts/heartbeat, and deletes
// silences that have ended.
//
// # Failures
//
// The state is in etcd, so the next leader continues where this one stopped. While etcd is unavailable, the package waits. While the
// clock is not trusted, it writes nothing.
package notifier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/daemon/leaderterm"
	"github.com/carillonhq/carillon/pkg/internal/alert"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// passEvery is the interval at which the notifier compares what is open with what was sent.
	passEvery = 5 * time.Second
	// findAfter is for how long the run of a message may be neither queued nor ended until all nodes are searched for it.
	findAfter = time.Minute
	// keepClosed is how long the record of a closed alert about the cluster is kept.
	keepClosed = 2 * time.Hour
)

// Config is the configuration of a Notifier.
type Config struct {
	Store *store.Store
	// Task returns the reference of a task with its shard.
	Task func(namespace, name string) record.Ref
	// Cluster returns the present record of the cluster.
	Cluster func() task.Cluster
	// Freezes returns the freezes that are in force, and the mod revision of their record; nil: they are not known yet.
	Freezes func() (*task.Freezes, int64)
	// AuditsReads reports whether reads of the output of runs of a namespace are audited.
	AuditsReads func(namespace string) bool
	// Fleet returns the nodes that are present, and the owners of the shards.
	Fleet func() ([]task.Node, []record.Owner)
	// Warnings returns the warnings about the cluster. If complete is false, some may be missing.
	Warnings func(ctx context.Context) (list []task.Warning, complete bool, err error)
	// MayWrite returns why nothing may be written now, or nil: the clock is not trusted, or etcd was restored.
	MayWrite   func() error
	Now        func() time.Time
	Logger     *zap.Logger
	Registerer prometheus.Registerer
}

// Notifier sends messages to receivers of alerts.
type Notifier struct {
	cfg      Config
	log      *zap.Logger
	open     *prometheus.GaugeVec
	messages *prometheus.CounterVec
}

// The outcomes of messages in the metric of messages.
const (
	outcomeDelivered = "delivered"
	outcomeFailed    = "failed"
)

// New returns a Notifier, and registers its metrics. It does no I/O.
func New(cfg Config) *Notifier {
	n := &Notifier{
		cfg: cfg, log: cfg.Logger.Named("notifier"),
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carillon_alerts_open",
			Help: "Open alerts of the cluster, by kind. Only the leader has values."}, []string{"kind"}),
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carillon_alert_messages_total",
			Help: "Messages to receivers of alerts that have ended while this node led, by outcome: delivered or failed."}, []string{"outcome"}),
	}
	for _, outcome := range []string{outcomeDelivered, outcomeFailed} {
		n.messages.WithLabelValues(outcome)
	}
	cfg.Registerer.MustRegister(n.open, n.messages)

	return n
}

// Run sends messages until ctx ends or the leader's term is over. It is called once for each term, one after the other.
func (n *Notifier) Run(ctx context.Context, fence kv.Fence) error {
	defer n.open.Reset()

	keys := n.cfg.Store.Keys()
	key, end := kv.Prefix(keys.Alerts())
	t := &term{
		Notifier: n, fence: fence, known: newKnown(keys, n.cfg.Cluster().ID),
		mirror:  kv.NewMirror(n.cfg.Store.Client(), kv.FollowConfig{Key: key, End: end, Relist: time.Minute, Name: "alerts", Logger: n.log}),
		written: map[string]int64{}, absent: map[string]time.Time{}, problems: map[string]*problem{},
	}

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return t.mirror.Run(ctx) })
	g.Go(func() error { return t.readWarnings(ctx) })
	g.Go(func() error { return t.run(ctx) })

	return g.Wait()
}

// term is what a leader knows in one term.
type term struct {
	*Notifier
	fence  kv.Fence
	mirror *kv.Mirror
	known  *known

	written  map[string]int64     // the revision of the last write for a receiver, which the mirror may not have yet
	absent   map[string]time.Time // since when a run was neither queued nor ended
	problems map[string]*problem  // by the code of their alert

	warnings atomic.Pointer[warnings] // the last ones that could be read; nil: none yet
	beating  bool                     // the heartbeat was written in this term
	awake    bool                     // since then, a pass could not write for another reason than etcd
}

// run makes a pass every passEvery until ctx ends or the term is over.
func (t *term) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.mirror.Ready():
	}

	return leaderterm.Loop{Pass: t.makePass, Every: passEvery, Failure: "could not send all messages about alerts; retrying", Log: t.log}.Run(ctx)
}

// makePass compares what is open with what was sent, for each receiver, at the revision of one snapshot.
func (t *term) makePass(ctx context.Context) error {
	if n := t.known.update(t.mirror.Snapshot()); n > 0 {
		t.log.Warn("alerts cannot be read", zap.Int("records", n))
	}
	t.countOpen()

	// Without a clock, nothing can be compared with a time.
	if t.cfg.MayWrite() != nil {
		t.awake = t.beating
		return nil
	}

	// A message to a receiver that may be frozen would wait in the queue, with a text that is old when the freeze ends.
	freezes, freezesMod := t.cfg.Freezes()
	if freezes == nil {
		return nil
	}

	p := &pass{term: t, now: t.cfg.Now(), cluster: t.cfg.Cluster(), freezes: freezes, freezesMod: freezesMod, alerts: t.known.byReceiver()}
	if err := p.read(ctx); err != nil {
		return err
	}

	var errs []error
	for i := range p.receivers {
		err := p.serve(ctx, &p.receivers[i])
		switch {
		case errors.Is(err, task.ErrFenced):
			return err
		case errors.Is(err, task.ErrConflict): // the next pass reads what has changed
			p.incomplete = true
		case err != nil:
			p.troubles[p.receivers[i].Ref.String()] = "gets no messages: see the log of the leader"
			errs = append(errs, err)
		}
	}

	steps := []func(context.Context) error{p.deleteSilences, p.reportReceivers, p.reportNotEvaluated, p.reportWarnings, p.closeOutage, p.writeHeartbeat}
	for _, step := range steps {
		if err := step(ctx); err != nil && !errors.Is(err, task.ErrConflict) {
			errs = append(errs, err)
		}
	}

	return errors.Join(errs...)
}

// countOpen sets the metric of open alerts.
func (t *term) countOpen() {
	counts := map[task.AlertKind]int{}
	for _, a := range t.known.alerts {
		if a.IsOpen() {
			counts[a.Kind] += alert.CountOf(&a.Alert)
		}
	}

	for _, kind := range append(task.TaskAlertKinds[:], task.AlertMore, task.AlertCluster) {
		t.open.WithLabelValues(string(kind)).Set(float64(counts[kind]))
	}
}

// pass is one pass over all receivers.
type pass struct {
	*term
	now        time.Time
	cluster    task.Cluster
	freezes    *task.Freezes
	freezesMod int64                    // the mod revision of the record of freezes
	alerts     map[string][]*knownAlert // by receiver
	receivers  []store.Receiver
	silences   alert.Silences
	created    map[string]int64         // the create revisions of namespaces with silences
	ends       map[string]bool          // whether a run of a message that has ended has succeeded
	waiting    map[string]*task.Waiting // runs of messages that are queued
	byKey      map[uint64]*knownAlert   // all alerts, by their keys; set when it is needed
	troubles   map[string]string        // why receivers get no messages, by receiver
	incomplete bool                     // some receivers were not examined
}

// read reads what the snapshot does not contain: the entries of receivers, namespaces with silences, and the runs of messages.
func (p *pass) read(ctx context.Context) (err error) {
	p.troubles = map[string]string{}

	names := slices.Concat(slices.Collect(maps.Keys(p.alerts)), slices.Collect(maps.Keys(p.known.sent)), p.cluster.AlertReceivers)
	slices.Sort(names)

	var refs []record.Ref
	for _, name := range slices.Compact(names) {
		if ns, task, ok := strings.Cut(name, "/"); ok {
			refs = append(refs, p.cfg.Task(ns, task))
		}
	}
	if p.receivers, err = p.cfg.Store.Receivers(ctx, refs); err != nil {
		return err
	}

	p.created = map[string]int64{}
	if namespaces := p.known.silencedNamespaces(); len(namespaces) > 0 {
		if p.created, err = p.cfg.Store.NamespaceRevisions(ctx, namespaces); err != nil {
			return err
		}
	}
	p.silences = alert.CompileSilences(slices.Collect(maps.Values(p.known.silences)), p.created)

	return p.findRuns(ctx)
}

// findRuns finds out which messages have ended.
func (p *pass) findRuns(ctx context.Context) error {
	p.ends, p.waiting = map[string]bool{}, map[string]*task.Waiting{}

	var runs []store.MessageRun
	for i := range p.receivers {
		r := &p.receivers[i]
		sent := p.known.sent[r.Ref.String()]
		if sent.Sending == nil || sent.UID != r.Entry.UID {
			continue
		}
		for _, id := range sent.Sending.Runs {
			runs = append(runs, store.MessageRun{Ref: r.Ref, ID: id})
		}
	}

	absent := map[string]time.Time{}
	defer func() { p.absent = absent }()
	if len(runs) == 0 {
		return nil
	}

	if err := p.cfg.Store.FindMessageRuns(ctx, runs); err != nil {
		absent = p.absent
		return err
	}

	for _, r := range runs {
		switch {
		case r.Queued != nil:
			p.waiting[r.ID] = r.Queued
		case r.Ended != nil:
			p.ends[r.ID] = r.Ended.State == task.Succeeded
		default:
			since, known := p.absent[r.ID]
			if !known {
				since = p.now
			}
			if p.now.Sub(since) >= findAfter {
				if since = p.now; p.isGone(ctx, r) {
					p.ends[r.ID] = false
				}
			}
			absent[r.ID] = since
		}
	}

	return nil
}

// isGone reports whether a run has no record at all. It may have been deleted, with the history of the receiver or with a node.
func (p *pass) isGone(ctx context.Context, r store.MessageRun) bool {
	_, err := p.cfg.Store.RunByID(ctx, r.Ref, r.ID)
	if err != nil && !errors.Is(err, task.ErrNotFound) {
		p.log.Warn("could not look for the run of a message", zap.String("task", r.Ref.String()), zap.String("run", r.ID), zap.Error(err))
	}

	return errors.Is(err, task.ErrNotFound)
}

// endOf returns whether each run of a message has succeeded, or nil if not all of them have ended.
func (p *pass) endOf(m *task.AlertMessage) []bool {
	if m == nil {
		return nil
	}

	var ended []bool
	for _, id := range m.Runs {
		ok, is := p.ends[id]
		if !is {
			return nil
		}
		ended = append(ended, ok)
	}

	return ended
}

// serve does what is due for one receiver.
func (p *pass) serve(ctx context.Context, r *store.Receiver) error {
	name := r.Ref.String()
	sent := p.known.sent[name]
	sent.Receiver = name

	// The mirror does not have the last write yet. What it has is one state, but an old one.
	if p.known.snapshot.Revision < p.written[name] {
		p.incomplete = true
		return nil
	}

	switch {
	case r.Err != nil:
		p.troubles[name] = "cannot be read; apply it again"
		return nil
	case !r.Receives():
		return p.dropReceiver(ctx, r, &sent)
	}

	facts := p.factsOf(r)
	held := facts.Block("", p.now)
	in := alert.Input{
		Limits: alert.LimitsOf(r.Entry.Receiver.Group), Now: p.now, Revision: p.known.snapshot.Revision, Sent: sent,
		Receiver: alert.Receiver{
			UID: r.Entry.UID, For: r.Entry.Receiver.OpenFor(), Repeat: r.Entry.Receiver.RepeatAfter(), Group: r.Entry.Receiver.Group, Held: held != nil,
			// A service that knows when an alert ends resolves it at that time, even if it is acknowledged.
			RepeatAll: slices.Contains(r.Entry.Accept.Env, alert.VarEnds),
		},
	}
	if sent.UID == r.Entry.UID {
		in.Ended = p.endOf(sent.Sending)
	}

	var forbidden []string
	for _, a := range p.alerts[name] {
		if b := facts.Block(a.Namespace, p.now); b != nil && b.Why == task.BlockForbidden {
			if a.IsOpen() {
				forbidden = append(forbidden, a.Namespace)
			}
			continue
		}
		in.Alerts = append(in.Alerts, alert.Addressed{Key: a.key, Alert: &a.Alert, Silenced: p.silences.Find(&a.Alert, p.now) != nil})
	}

	d := alert.Diff(&in)
	p.noteTrouble(name, held, forbidden, &sent, &d)

	return p.writeDecision(ctx, r, &in, &d)
}

// factsOf returns what decides whether a receiver gets messages.
func (p *pass) factsOf(r *store.Receiver) alert.ReceiverFacts {
	return alert.ReceiverFacts{Name: r.Ref.String(), Entry: &r.Entry, Freeze: p.freezes.Of(r.Ref.Namespace)}
}

// dropReceiver deletes what was sent to a task that does not exist any more, or is no receiver.
func (p *pass) dropReceiver(ctx context.Context, r *store.Receiver, sent *task.AlertsSent) error {
	name := r.Ref.String()
	isOpen := func(a *knownAlert) bool { return a.IsOpen() }
	if slices.ContainsFunc(p.alerts[name], isOpen) || slices.Contains(p.cluster.AlertReceivers, name) {
		p.troubles[name] = "does not exist, or is not a receiver"
	}

	if sent.Mod == 0 {
		return nil
	}
	if err := p.cfg.Store.DeleteSent(ctx, p.fence, *r, sent.Mod); err != nil {
		return err
	}

	p.log.Info("deleted what was sent to a receiver that is gone", zap.String("task", name))

	return nil
}

// writeDecision writes what Diff has decided, with the runs of a new message.
func (p *pass) writeDecision(ctx context.Context, r *store.Receiver, in *alert.Input, d *alert.Decision) error {
	if !d.Write {
		return nil
	}

	var runs []task.Waiting
	if d.Message {
		m, err := p.newMessage(ctx, r, in, d)
		if err != nil {
			return err
		}

		sending, messages := d.Sent.Sending, []*alert.Message{m}
		if r.Entry.Receiver.Group == task.GroupTask {
			messages = m.Split(sending, d.Sent.Uncertain)
		} else {
			sending.Named = p.keysOf(m.Named())
		}

		for _, one := range messages {
			w := newRun(r, one.Env(r.Entry.Accept.Env), p.now)
			runs = append(runs, w)
			sending.Runs = append(sending.Runs, w.ID)
		}
	}

	rev, err := p.cfg.Store.WriteSent(ctx, p.fence, *r, d.Sent, p.freezesMod, runs...)
	if err != nil {
		return err
	}
	p.written[r.Ref.String()] = rev

	for _, ok := range in.Ended {
		outcome := outcomeDelivered
		if !ok {
			outcome = outcomeFailed
		}
		p.messages.WithLabelValues(outcome).Inc()
	}
	if d.Message {
		p.log.Info("sent a message about alerts", zap.String("task", r.Ref.String()), zap.Strings("runs", d.Sent.Sending.Runs),
			zap.Int("opened", len(d.Opened)), zap.Int("closed", len(d.Closed)), zap.Int("repeated", len(d.Repeated)), zap.Bool("plain", d.Sent.Sending.Plain))
	}

	return nil
}

// newRun returns the run of a message. Like every manual run, its owner starts it.
func newRun(r *store.Receiver, env map[string]string, now time.Time) task.Waiting {
	at := task.At(now)
	return task.Waiting{Env: env, Run: task.Run{
		ID: task.ManualRunID(now, r.Entry.UID), Namespace: r.Ref.Namespace, Task: r.Ref.Name, Shard: r.Ref.Shard,
		UID: r.Entry.UID, ScheduledTime: at, CreatedAt: at, Attempt: 1,
		State: task.Queued, Reason: task.ReasonManual, Trigger: task.TriggerManual,
		Requests: task.Requests{CreatedBy: task.NewActor(task.CreatedByCarillon), EnvNames: task.EnvNamesOf(env)},
	}}
}

// deleteSilences deletes silences that have ended, and those of namespaces that were deleted since.
func (p *pass) deleteSilences(ctx context.Context) error {
	var ended []task.AlertSilence
	for _, s := range p.known.silences {
		if !s.Until.After(p.now) || p.created[s.Namespace] != s.NamespaceRev {
			ended = append(ended, s)
		}
	}
	if len(ended) == 0 {
		return nil
	}

	if err := p.cfg.Store.DeleteSilences(ctx, p.fence, ended); err != nil {
		return fmt.Errorf("silences that have ended: %w", err)
	}

	return nil
}
