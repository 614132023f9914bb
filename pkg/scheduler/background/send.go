package background

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// TriggerStore reads the ended runs of sources, and writes triggers. See store.Shards for the methods.
type TriggerStore interface {
	ReadSource(ctx context.Context, ref record.Ref, from int64) (store.SourceRead, error)
	EndedAt(ctx context.Context, ref record.Ref, records []store.Past, rev int64) ([]store.PastRecord, error)
	HaveUnsent(ctx context.Context, sources []store.SourceCursor) ([]bool, error)
	SendTriggers(ctx context.Context, f store.Fences, t store.TriggerSend) error
}

// Send is a request to send what the ended runs of a source owe to its dependents.
type Send struct {
	Fences store.Fences // every write compares them, so that only the owner of the source sends
	Source record.Ref
	SentTo record.Cursor // up to which nothing is owed any more, as far as the owner knows
}

// Sender turns ended runs of sources into triggers of their dependents. It works in parallel with the workers, so that no tick
// waits for it. The history of a source is the outbox: what ends a run does not know of dependents.
//
//	a run has ended ─► read its source: keys of the history, cursor, subscribers ─► read ended runs ─► write triggers and cursor
//
// The cursor is the last ended run for which all triggers were sent. Each write compares it, so an ended run owes each subscriber
// exactly one trigger, whoever sends it. Trims do not delete records after the cursor (store.HistoryToTrim.KeepUnsent). An ended
// run is owed to the subscribers whose records are older and whose condition it matches, at the revision of the read.
//
// A watch only says when to look. What it has lost is found by looking at all sources of a shard, after it was opened and every
// ten minutes (Look). If etcd cannot be read or written, the Sender tries again.
type Sender struct {
	cfg  SenderConfig
	more chan struct{} // has a token if line is not empty

	mu      sync.Mutex
	sources map[record.Ref]*sending // the sources that are in line, or for which something is sent
	line    []record.Ref            // the sources to send for next; each of them is in sources
	looks   map[int][]Send          // sources to look at, by shard
	looking chan struct{}           // has a token if there are looks

	warnings warnings
}

// SenderConfig is the configuration of a Sender.
type SenderConfig struct {
	Store     TriggerStore
	Ref       func(namespace, name string) record.Ref // of a dependent
	Now       func() time.Time                        // the time of triggers
	Overdue   func() bool                             // the node has more urgent things to do than to look at sources
	CountSent func(n int)                             // is called with the number of triggers that were written
	Logger    *zap.Logger
}

// sending is the state of a source that is in line, or for which something is sent.
type sending struct {
	job      Send
	again    bool // while something is sent: the source was requested again
	failures int  // in a row
}

const (
	// sendersAtOnce is for how many sources a node sends at the same time.
	sendersAtOnce = 8
	// readAtOnce is how many ended runs are read together.
	readAtOnce = 20
	// maxUncounted is how many records of which nothing is owed the cursor may lag behind. To write it for each of them would cost
	// as much as to send a trigger.
	maxUncounted = 16

	// maxSendBytes is the size of the triggers of a transaction. etcd accepts 1.5 MiB.
	maxSendBytes = 1 << 20

	// A trigger is written within 20 s after etcd accepts writes again (G63).
	minSendRetry, maxSendRetry = time.Second, 15 * time.Second
	// lookPause is the pause after store.SourcesAtOnce sources were looked at: 50 sources a second.
	lookPause = store.SourcesAtOnce * time.Second / 50
)

// NewSender returns a Sender. It does nothing until Run is called.
func NewSender(cfg SenderConfig) *Sender {
	return &Sender{cfg: cfg, more: make(chan struct{}, 1), sources: map[record.Ref]*sending{}, looks: map[int][]Send{}, looking: make(chan struct{}, 1)}
}

// Ask requests that what a source owes is sent. It does not block. Requests for one source are joined, so there are never more of
// them than sources.
func (s *Sender) Ask(job Send) {
	s.mu.Lock()
	defer s.mu.Unlock()

	of := s.sources[job.Source]
	switch {
	case of == nil:
		s.sources[job.Source] = &sending{job: job}
		s.addToLine(job.Source)
	default:
		of.job, of.again = job, true
	}
}

// Look requests a look at all sources of a shard, which are in the order of their names. It replaces an earlier request for the shard,
// and does not block. If the Sender has not looked at all sources of the earlier request, it begins with the rest: of very many
// sources, it would never come to the last ones otherwise.
func (s *Sender) Look(shard int, sources []Send) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if len(sources) == 0 {
		delete(s.looks, shard)
		return
	}

	if left := s.looks[shard]; len(left) > 0 {
		next := left[0].Source.String()
		if i := slices.IndexFunc(sources, func(one Send) bool { return one.Source.String() >= next }); i > 0 {
			sources = slices.Concat(sources[i:], sources[:i])
		}
	}

	s.looks[shard] = sources
	notify(s.looking)
}

// notify puts a token into a channel with one place, unless it has one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// addToLine adds a source to the line. The caller holds the lock.
func (s *Sender) addToLine(ref record.Ref) {
	s.line = append(s.line, ref)
	notify(s.more)
}

// Run sends until ctx ends, and returns its error.
func (s *Sender) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)

	for range sendersAtOnce {
		g.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-s.more:
					s.SendNext(ctx)
				}
			}
		})
	}

	g.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-s.looking:
				if err := s.lookAtAll(ctx); err != nil {
					return err
				}
			}
		}
	})

	return g.Wait()
}

// SendNext sends for the next source in line. It returns false if there is none. Tests use it in place of Run.
func (s *Sender) SendNext(ctx context.Context) bool {
	job, ok := s.takeNext()
	if !ok {
		return false
	}

	err := s.send(ctx, &job)
	if err != nil && ctx.Err() == nil && !errors.Is(err, task.ErrFenced) {
		s.warn(job.Source, "", "could not start the dependents of a task for runs that have ended; it is tried again", zap.Error(err))
	}
	s.finish(job.Source, err)

	return true
}

// takeNext takes a source off the line.
func (s *Sender) takeNext() (Send, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if len(s.line) == 0 {
		return Send{}, false
	}

	ref := s.line[0]
	s.line[0] = record.Ref{}
	if s.line = s.line[1:]; len(s.line) > 0 {
		notify(s.more)
	}

	of := s.sources[ref]
	of.again = false

	return of.job, true
}

// finish ends the attempt to send for a source. If it has failed, another one follows later. If the source was requested again
// meanwhile, another one follows now.
func (s *Sender) finish(ref record.Ref, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	of := s.sources[ref]
	switch {
	case err == nil && of.again:
		of.failures = 0
		s.addToLine(ref)
	case err == nil, errors.Is(err, task.ErrFenced) && !of.again:
		// A new owner of the shard looks at all of its sources.
		delete(s.sources, ref)
	default:
		wait := min(minSendRetry<<min(of.failures, 10), maxSendRetry)
		of.failures++
		time.AfterFunc(wait, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.addToLine(ref)
		})
	}
}

// maxSendConflicts is how many transactions in a row may fail with a conflict before the Sender waits.
const maxSendConflicts = 4

// send sends everything that a source owes.
func (s *Sender) send(ctx context.Context, job *Send) error {
	for conflicts := 0; ; {
		more, err := s.sendSome(ctx, job)
		switch {
		case errors.Is(err, task.ErrConflict) && conflicts < maxSendConflicts:
			conflicts++ // the source or its cursor has changed: read again
		case err != nil:
			return err
		case !more:
			return nil
		default:
			conflicts = 0
		}
	}
}

// sendSome reads a source, and sends what its oldest ended runs owe. It reports whether there may be more.
func (s *Sender) sendSome(ctx context.Context, job *Send) (more bool, err error) {
	read, err := s.cfg.Store.ReadSource(ctx, job.Source, max(job.SentTo.Create, 1))
	if err != nil {
		return false, err
	}

	// Without an entry, or with one that cannot be read, it is unknown to which task the records belong.
	if read.EntryCreate == 0 || read.UID == "" || read.Oldest == 0 {
		return false, nil
	}

	if read.CursorErr != nil || read.Cursor.Create > read.Revision {
		return true, s.repairCursor(ctx, job, &read)
	}

	// The owner knows a later position than the cursor: somebody has changed the cursor. The list may lack records.
	sentTo := read.SentUpTo()
	if sentTo.Compare(job.SentTo) < 0 {
		job.SentTo = sentTo
		return true, nil
	}
	job.SentTo = sentTo

	for _, name := range read.Unreadable {
		s.warn(job.Source, name, "cannot decode the record of a dependent; ends of its source do not start it", zap.String("dependent", name))
	}

	out := outbox{gap: job.Fences.Gap, read: &read, ref: s.cfg.Ref, now: s.cfg.Now(), source: job.Source, send: store.TriggerSend{
		Source: job.Source, EntryCreate: read.EntryCreate, CursorMod: read.CursorMod, Cursor: sentTo,
	}}

	list := out.unsent()
	values, err := s.cfg.Store.EndedAt(ctx, job.Source, list[:min(len(list), readAtOnce)], read.Revision)
	if err != nil {
		return false, err
	}

	for _, r := range values {
		ok, err := out.add(r)
		if err != nil {
			s.warn(job.Source, r.ID, "cannot decode how a run of a source has ended; it starts no dependents", zap.String("run", r.ID), zap.Error(err))
		}
		if !ok {
			break
		}
	}

	if len(out.send.Triggers) == 0 && out.passed < maxUncounted {
		return false, nil
	}

	if err := s.cfg.Store.SendTriggers(ctx, job.Fences, out.send); err != nil {
		return false, err
	}

	job.SentTo = out.send.Cursor
	s.cfg.CountSent(len(out.send.Triggers))

	return out.passed < len(list), nil
}

// warn logs a problem of a source, or of something that belongs to it, at most once an hour. In between, it logs for debugging.
func (s *Sender) warn(source record.Ref, what, message string, fields ...zap.Field) {
	level := zap.DebugLevel
	if s.warnings.noteFailure(source.String()+" "+what, s.cfg.Now()) {
		level = zap.WarnLevel
	}

	s.cfg.Logger.Log(level, message, append(fields, zap.String("task", source.String()))...)
}

// repairCursor replaces a cursor that cannot be read, or that is later than everything in etcd, as after a restore from a backup.
// As a position, it would send all kept ends again, or none for a long time. What is not sent by now is not sent any more.
func (s *Sender) repairCursor(ctx context.Context, job *Send, read *store.SourceRead) error {
	s.cfg.Logger.Error("repaired the cursor of a source; its dependents were not started for the runs that have ended since the last trigger",
		zap.String("task", job.Source.String()), zap.Int64("cursor", read.Cursor.Create), zap.Int64("rev", read.Revision), zap.Error(read.CursorErr))

	send := store.TriggerSend{Source: job.Source, EntryCreate: read.EntryCreate, CursorMod: read.CursorMod, Cursor: record.Cursor{Create: read.Revision}}
	if err := s.cfg.Store.SendTriggers(ctx, job.Fences, send); err != nil {
		return err
	}

	job.SentTo = send.Cursor

	return nil
}

// outbox collects what one transaction sends.
type outbox struct {
	gap    *task.Gap
	read   *store.SourceRead
	source record.Ref
	ref    func(namespace, name string) record.Ref // of a dependent
	now    time.Time
	send   store.TriggerSend
	passed int // records that the cursor passes
	bytes  int // at most how large the triggers are
}

// unsent returns the records that the cursor has not passed.
func (o *outbox) unsent() []store.Past {
	list := o.read.Records
	for len(list) > 0 && list[0].Position().Compare(o.send.Cursor) <= 0 {
		list = list[1:]
	}

	return list
}

// add adds what a record owes to the subscribers. It returns false, and adds nothing, if the transaction has no room for it. The
// cursor passes a record that cannot be read, which is an error.
func (o *outbox) add(r store.PastRecord) (ok bool, err error) {
	run, err := o.decode(r)
	if err == nil {
		triggers, bytes := o.triggersOf(&run, r.Create)
		isFull := len(o.send.Triggers)+len(triggers) > store.MaxSent || o.bytes+bytes > maxSendBytes
		if len(o.send.Triggers) > 0 && isFull {
			return false, nil
		}
		o.send.Triggers, o.bytes = append(o.send.Triggers, triggers...), o.bytes+bytes
	}

	o.send.Cursor = r.Position()
	o.passed++

	return true, err
}

// decode returns the ended run in a record. Without an error, the run has no state if the record is none that can be owed.
func (o *outbox) decode(r store.PastRecord) (task.Run, error) {
	// It was deleted by hand, or belongs to a task of the same name that was deleted.
	if r.Value == nil || !task.RunBelongs(r.Run(), o.read.UID) {
		return task.Run{}, nil
	}

	run, err := record.DecodeEnded(record.ShardKey{Kind: record.KindEnded, Ref: o.source, Run: r.Run()}, r.Value)

	// The id has only the first letters of the uid, which both tasks may have in common.
	if err == nil && run.UID != o.read.UID {
		return task.Run{}, nil
	}

	return run, err
}

// triggersOf returns the triggers that an ended run owes, and at most how large they are. It owes none if its request said so.
// create is the create revision of its record.
func (o *outbox) triggersOf(run *task.Run, create int64) (list []record.Pending, bytes int) {
	if run.Alone {
		return nil, 0
	}

	for i := range o.read.Subscribers {
		d := &o.read.Subscribers[i]
		if create <= d.Mod || !d.When.Matches(run.State) {
			continue
		}

		// More dependents than a task may have were written by hand.
		if len(list) == store.MaxSent {
			break
		}

		p := record.Pending{Ref: o.ref(o.source.Namespace, d.Name), Source: o.source.Name, Run: run.ID}
		p.Trigger = task.Trigger{
			IsLost: o.gap.HasRecord(create),
			UID:    d.UID, Generation: d.Generation, Period: run.EffectivePeriod(), At: task.At(o.now),
			Cause: task.Cause{Task: o.source.Name, Run: run.ID, State: run.State, Results: resultsOf(run, d.Results)},
		}
		list = append(list, p)
		bytes += maxEncoded(&p.Trigger)
	}

	// All triggers of an end are in one transaction, so they must fit into one.
	if bytes > maxSendBytes {
		bytes = fitResults(list)
	}

	return list, bytes
}

// maxEncoded returns at most how large the record of a trigger is. JSON writes some characters as six.
func maxEncoded(t *task.Trigger) int {
	n := 1 << 10
	for name, value := range t.Cause.Results {
		n += 6 * (len(name) + len(value))
	}

	return n
}

// fitResults removes the results from triggers whose records take more than their share of a transaction. It returns how large
// the records are. A trigger has at most 4 KiB of results, so only text with very many characters that JSON escapes is affected,
// and only if a task has many dependents.
func fitResults(list []record.Pending) (bytes int) {
	for i := range list {
		t := &list[i].Trigger
		n := len(record.Encode(t))
		if n > maxSendBytes/len(list) {
			t.Cause.Results = nil
			n = len(record.Encode(t))
		}
		bytes += n
	}

	return bytes
}

// resultsOf returns those of a run's results that a dependent asks for; nil if there are none.
func resultsOf(run *task.Run, names []string) map[string]string {
	var results map[string]string
	for _, name := range names {
		value, ok := run.Results[name]
		if !ok {
			continue
		}

		if results == nil {
			results = map[string]string{}
		}
		results[name] = value
	}

	return results
}

// lookAtAll looks at the sources of all shards that were requested, a few at a time, so that it disturbs no tick.
func (s *Sender) lookAtAll(ctx context.Context) error {
	for {
		some, ok := s.nextLooks()
		if !ok {
			return nil
		}

		for s.cfg.Overdue() {
			if !clock.Sleep(ctx, lookPause) {
				return ctx.Err()
			}
		}

		s.lookAt(ctx, some)

		if !clock.Sleep(ctx, lookPause) {
			return ctx.Err()
		}
	}
}

// nextLooks takes sources to look at next, all of one shard.
func (s *Sender) nextLooks() ([]Send, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for shard, all := range s.looks {
		n := min(len(all), store.SourcesAtOnce)
		if s.looks[shard] = all[n:]; n == len(all) {
			delete(s.looks, shard)
		}

		return all[:n], true
	}

	return nil, false
}

// lookAt requests a send for those of some sources that have ended runs after their cursors. If etcd cannot be read, for all of
// them: a request that fails is repeated.
func (s *Sender) lookAt(ctx context.Context, some []Send) {
	cursors := make([]store.SourceCursor, len(some))
	for i, job := range some {
		cursors[i] = store.SourceCursor{Ref: job.Source, SentTo: job.SentTo}
	}

	unsent, err := s.cfg.Store.HaveUnsent(ctx, cursors)
	for i, job := range some {
		if err != nil || unsent[i] {
			s.Ask(job)
		}
	}
}

// LookNow looks at all requested sources without pauses. Tests use it in place of Run.
func (s *Sender) LookNow(ctx context.Context) {
	for some, ok := s.nextLooks(); ok; some, ok = s.nextLooks() {
		s.lookAt(ctx, some)
	}
}
