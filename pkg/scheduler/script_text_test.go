package scheduler

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// A fact is one line of a commit.
type fact struct {
	task string
	rank int
	id   string
	text string
}

// The order of the facts of one task.
const (
	rankEntry = iota
	rankRecord
	rankDead
	rankLeave
	rankDequeue
	rankQueue
	rankStart
	rankAsk
	rankPurge
)

// writeCommit shows what a commit would change, one fact per line, and what it compares.
func (s *script) writeCommit(out *strings.Builder, txn kv.Txn) {
	keys := s.store.Keys()
	var facts []fact
	mark, before := s.markOf(txn), s.owner.mark
	written := map[string]bool{}

	guarded := map[string]bool{}
	for i := range txn.If {
		guarded[string(txn.If[i].KeyBytes())] = true
	}

	for _, op := range txn.Then {
		key := string(op.KeyBytes())
		written[key] = true
		old := s.get(key)

		if key == keys.Watermark(0) {
			continue
		}

		if sk, ok := keys.ParseShard(key); ok {
			facts = append(facts, s.shardFact(sk, op, old, guarded[key]))
			continue
		}

		if rk, ok := keys.ParseRun(key); ok {
			facts = append(facts, s.runFact(rk, op, old, guarded[key]))
			continue
		}

		facts = append(facts, fact{text: "an unknown key: " + key})
	}

	if s.counts != nil || s.summary {
		s.writeSummary(out, facts, s.markText(mark, before))
		return
	}

	fmt.Fprintf(out, "commit\n")
	fmt.Fprintf(out, "  %s\n", s.markText(mark, before))
	slices.SortStableFunc(facts, func(a, b fact) int {
		return cmp.Or(strings.Compare(a.task, b.task), cmp.Compare(a.rank, b.rank), strings.Compare(a.id, b.id), strings.Compare(a.text, b.text))
	})

	for _, f := range facts {
		fmt.Fprintf(out, "  %s\n", f.text)
	}

	s.writeConditions(out, txn, written, !mark.Time.Equal(before.Time.Time) || mark.Last != before.Last)
}

// writeSummary shows how many facts of each kind a commit has.
func (s *script) writeSummary(out *strings.Builder, facts []fact, mark string) {
	counts := map[string]int{}
	for _, f := range facts {
		kind, _, _ := strings.Cut(f.text, " ")
		if _, reason, ok := strings.Cut(f.text, ": "); ok && f.rank != rankEntry {
			kind += " (" + reason + ")"
		}

		counts[kind]++
		if s.counts != nil {
			s.counts[kind]++
		}
	}

	fmt.Fprintf(out, "commit: %s; %s\n", mark, countsText(counts))
}

func countsText(counts map[string]int) string {
	if len(counts) == 0 {
		return "nothing"
	}

	var list []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		list = append(list, fmt.Sprintf("%d %s", counts[kind], kind))
	}

	return strings.Join(list, ", ")
}

// markText shows up to where ticks are decided, and which entries the watermark covers from now on.
func (s *script) markText(mark, before record.Watermark) string {
	text := "watermark stays"

	switch {
	case mark.Time.Before(before.Time.Time):
		text = "watermark goes back to " + clockText(mark.Time.Time)
	case !mark.Time.Equal(before.Time.Time) || mark.Last != before.Last:
		text = "watermark " + clockText(mark.Time.Time)
		if mark.Last != "" {
			text += " up to " + shortName(mark.Last)
		}
	}

	res, err := s.client.Get(s.ctx, s.store.Keys().Entries(0), clientPrefix)
	s.ok(err)

	var covers []string
	for _, e := range res.Kvs {
		if e.CreateRevision > before.Seen && e.CreateRevision <= mark.Seen {
			covers = append(covers, shortName(strings.TrimPrefix(string(e.Key), s.store.Keys().Entries(0))))
		}
	}

	if len(covers) > 3 {
		covers = append(covers[:1:1], fmt.Sprintf("%d others", len(covers)-1))
	}

	if len(covers) > 0 {
		text += ", covers " + strings.Join(covers, ", ")
	}

	return text
}

// shardFact describes a write below shards/.
func (s *script) shardFact(sk record.ShardKey, op clientv3.Op, old *mvccpb.KeyValue, guarded bool) fact {
	f := fact{task: sk.Ref.String(), id: sk.Run}
	name := s.runOf(sk.Ref.Name, sk.Run)

	unchecked := ""
	if !guarded {
		unchecked = ", unchecked"
	}

	switch sk.Kind {
	case record.KindEntry:
		f.rank, f.text = rankEntry, fmt.Sprintf("entry %s: %s%s", sk.Ref.Name, s.entryChanges(op, old), unchecked)

	case record.KindQueued:
		if op.IsDelete() {
			f.rank, f.text = rankDequeue, fmt.Sprintf("dequeue %s%s", name, unchecked)
			break
		}

		w, err := record.DecodeWaiting(sk, op.ValueBytes())
		s.ok(err)

		verb := "queue"
		if old != nil {
			verb = "requeue"
		}

		f.rank, f.text = rankQueue, fmt.Sprintf("%s %s%s%s", verb, name, waitingText(w), unchecked)

	case record.KindEnded, record.KindPart:
		if op.IsDelete() {
			f.rank, f.text = rankPurge, fmt.Sprintf("purge %s%s", name, unchecked)
			break
		}

		r, err := record.DecodeEnded(sk, op.ValueBytes())
		s.ok(err)

		verb := "record"
		if old != nil {
			verb = "extend" + unchecked
		}

		f.rank, f.text = rankRecord, fmt.Sprintf("%s %s %s", verb, s.spanOf(r), outcomeText(r))

	case record.KindDead:
		f.rank, f.text = rankDead, fmt.Sprintf("dead letter %s", name)
		if op.IsDelete() {
			f.rank, f.text = rankPurge, fmt.Sprintf("purge the dead letter %s%s", name, unchecked)
		}
	}

	return f
}

// runFact describes a write into an inbox.
func (s *script) runFact(rk record.RunKey, op clientv3.Op, old *mvccpb.KeyValue, guarded bool) fact {
	f := fact{task: rk.Ref.String(), id: rk.Run}
	name := s.runOf(rk.Ref.Name, rk.Run)

	if op.IsDelete() {
		f.rank, f.text = rankLeave, fmt.Sprintf("remove %s from %s", name, rk.Node)
		return f
	}

	a, err := record.DecodeAssigned(rk, 0, op.ValueBytes())
	s.ok(err)

	if a.CancelRequested {
		f.rank, f.text = rankAsk, fmt.Sprintf("ask %s to end %s: %s", rk.Node, name, cmp.Or(a.CancelReason, task.ReasonCancelled))
		if !guarded {
			f.text += ", unchecked"
		}
		return f
	}

	var more []string

	switch {
	case a.Trigger == task.TriggerCatchUp:
		more = append(more, "catch-up")
	case a.Trigger == task.TriggerSchedule && a.Attempt <= 1:
		due := a.ScheduledTime.Time
		if !a.DueAt.IsZero() {
			due = a.DueAt.Time
		}

		if late := s.clock().Sub(due); late > 0 && !a.DueAt.IsZero() {
			more = append(more, "after its jitter")
		} else if late > 0 {
			more = append(more, late.Round(time.Millisecond).String()+" late")
		}
	}

	if a.Attempt > 1 {
		more = append(more, fmt.Sprintf("attempt %d", a.Attempt))
	}

	if !a.StartBefore.IsZero() && a.Attempt <= 1 {
		more = append(more, "before "+clockText(a.StartBefore.Time))
	}

	if a.EffectiveLostAfter() != task.DefaultLostAfter {
		more = append(more, "lost after "+a.EffectiveLostAfter().String())
	}

	if instance := s.joined[rk.Node].Instance; a.Instance != instance {
		more = append(more, "for the former instance")
	}

	f.rank, f.text = rankStart, strings.Join(append([]string{fmt.Sprintf("start %s on %s", name, rk.Node)}, more...), ", ")
	if old != nil {
		f.text += ", over another attempt"
	}

	return f
}

// entryChanges describes what an owner changes in an entry.
func (s *script) entryChanges(op clientv3.Op, old *mvccpb.KeyValue) string {
	now, err := record.DecodeEntry(op.ValueBytes())
	s.ok(err)

	if old == nil {
		return "created"
	}

	was, err := record.DecodeEntry(old.Value)
	s.ok(err)

	var ownNow, ownWas task.Own
	if now.Own != nil {
		ownNow = *now.Own
	}

	if was.Own != nil {
		ownWas = *was.Own
	}

	var list []string
	add := func(changed bool, format string, args ...any) {
		if changed {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}

	add(!now.From.Equal(was.From.Time), "decided up to %s", clockText(now.From.Time))
	add(!now.Anchor.Equal(was.Anchor.Time), "counts from %s", clockText(now.Anchor.Time))
	add(ownNow.Runs != ownWas.Runs, "%d of %d runs", ownNow.Runs, now.MaxRuns)
	add(ownNow.Failures != ownWas.Failures, "failures in a row: %d", ownNow.Failures)
	add(ownNow.Counted != ownWas.Counted && ownNow.Failures == ownWas.Failures, "ends counted")
	add(ownNow.Node != ownWas.Node, "stays with %s", ownNow.Node)
	add(now.Paused && !was.Paused, "paused")
	add(!now.Paused && was.Paused, "resumed")

	// What only users change must be unchanged.
	now.From, now.Anchor, now.Paused, now.Own = was.From, was.Anchor, was.Paused, was.Own
	a, err := json.Marshal(now)
	s.ok(err)
	b, err := json.Marshal(was)
	s.ok(err)

	if !bytes.Equal(a, b) {
		list = append(list, "fields of its user changed")
	}

	if len(list) == 0 {
		return "as it was"
	}

	return strings.Join(list, "; ")
}

// waitingText describes why a run waits, and for how long.
func waitingText(w task.Waiting) string {
	var more []string
	if f := w.Fan; f != nil {
		more = append(more, fmt.Sprintf("%d parts", f.Count))
		if f.Need != f.Count {
			more = append(more, fmt.Sprintf("%d have to succeed", f.Need))
		}

		if len(f.Nodes) > 0 {
			more = append(more, "on "+strings.Join(f.Nodes, " "))
		}

		more = append(more, fmt.Sprintf("%d left", len(f.Left)))
		if f.Ended > 0 {
			more = append(more, fmt.Sprintf("%d ended", f.Ended))
		}

		if f.Cancel != "" {
			more = append(more, "to end: "+f.Cancel)
		}
	}

	if w.Trigger == task.TriggerCatchUp && w.Reason != task.ReasonCatchUp {
		more = append(more, "catch-up")
	}

	if w.Attempt > 1 {
		more = append(more, fmt.Sprintf("attempt %d", w.Attempt))
	}

	if !w.NotBefore.IsZero() {
		more = append(more, "not before "+clockText(w.NotBefore.Time))
	}

	if !w.StartBefore.IsZero() && w.Attempt <= 1 {
		more = append(more, "before "+clockText(w.StartBefore.Time))
	}

	text := ""
	if w.Reason != "" {
		text = ": " + w.Reason
	}

	for _, m := range more {
		text += ", " + m
	}

	return text
}

// outcomeText returns a run's state and its reason.
func outcomeText(r task.Run) string {
	text := string(r.State)
	if r.Reason != "" {
		text += ": " + r.Reason
	}

	if r.Trigger == task.TriggerCatchUp && r.Reason != task.ReasonCatchUp {
		text += ", catch-up"
	}

	if r.Attempt > 1 {
		text += fmt.Sprintf(", attempt %d", r.Attempt)
	}

	if r.State.Final() && r.Fan != nil {
		text += fmt.Sprintf(", %d of %d parts succeeded", r.Fan.Succeeded+r.Fan.Kept, r.Fan.Count)
	}

	if !r.State.Final() && r.Node != "" {
		text += " on " + r.Node
	}

	return text
}

// spanOf returns the run of a record, or the range of ticks that it describes.
func (s *script) spanOf(r task.Run) string {
	if r.Last.IsZero() {
		return s.runOf(r.Task, r.ID)
	}
	return fmt.Sprintf("%s to %s (%d ticks)", s.runOf(r.Task, r.ID), clockText(r.Last.Time), r.Count)
}

// runOf describes a run by its task, its tick, and the rest of its id.
func (s *script) runOf(name, id string) string { return name + " " + s.runTextOf(name, id) }

func (s *script) runText(id string) string { return s.runTextOf("", id) }

func (s *script) runTextOf(name, id string) string {
	at, ok := task.TimeOfRunID(id)
	if !ok {
		return id
	}

	text := clockText(at)
	whole := id
	parent, part, isPart := task.ParentOf(id)
	if isPart {
		whole = parent
	}

	if _, manual, ok := strings.Cut(whole, "-m"); ok {
		text += " manual " + strings.TrimLeft(manual, "0")
	}

	if isPart {
		text += fmt.Sprintf(" part %d", part)
	}

	if uids := s.uids[name]; len(uids) > 0 && !task.RunBelongs(id, uids[len(uids)-1]) {
		text += " of an earlier task"
	}

	return text
}

// writeConditions shows what a commit compares in addition to what it writes. Comparisons that every commit
// has are shown only if they are missing. moves reports whether the commit moves the watermark's time.
func (s *script) writeConditions(out *strings.Builder, txn kv.Txn, written map[string]bool, moves bool) {
	keys := s.store.Keys()
	always := map[string]string{keys.Owner(0): "owner", keys.Watermark(0): "watermark", keys.Freezes(): "freezes"}
	if moves {
		always[keys.Revised(0)] = "edits of schedules"
	}

	var list []string
	nodes := 0
	for i := range txn.If {
		key := string(txn.If[i].KeyBytes())
		if _, ok := always[key]; ok {
			delete(always, key)
			continue
		}

		if strings.HasPrefix(key, keys.Nodes()) {
			if nodes++; nodes == 1 { // its own session
				continue
			}
		} else if written[key] {
			continue
		}

		text := s.keyText(key)
		if expectsAbsent(&txn.If[i]) {
			text = "no " + text
		}

		list = append(list, text)
	}

	slices.Sort(list)
	list = slices.Compact(list)
	if len(list) > 6 {
		list = append(list[:1:1], fmt.Sprintf("%d others", len(list)-1))
	}

	if len(list) > 0 {
		fmt.Fprintf(out, "  if unchanged: %s\n", strings.Join(list, ", "))
	}

	for _, what := range always {
		fmt.Fprintf(out, "  without comparing the %s\n", what)
	}

	if nodes == 0 {
		fmt.Fprintf(out, "  without comparing its own session\n")
	}
}

func expectsAbsent(c *clientv3.Cmp) bool {
	switch v := c.GetCompare().TargetUnion.(type) {
	case *etcdserverpb.Compare_ModRevision:
		return v.ModRevision == 0
	case *etcdserverpb.Compare_CreateRevision:
		return v.CreateRevision == 0
	}

	return false
}

// keyText describes a key.
func (s *script) keyText(key string) string {
	keys := s.store.Keys()

	switch key {
	case keys.Owner(0):
		return "owner"
	case keys.Watermark(0):
		return "watermark"
	case keys.Freezes():
		return "freezes"
	case keys.Revised(0):
		return "edits of schedules"
	}

	if node, ok := strings.CutPrefix(key, keys.Nodes()); ok {
		return "node " + node
	}
	if rk, ok := keys.ParseRun(key); ok {
		return fmt.Sprintf("attempt %s on %s", s.runOf(rk.Ref.Name, rk.Run), rk.Node)
	}

	if sk, ok := keys.ParseShard(key); ok {
		switch sk.Kind {
		case record.KindEntry:
			return "entry " + sk.Ref.Name
		case record.KindQueued:
			return "queued " + s.runOf(sk.Ref.Name, sk.Run)
		case record.KindEnded, record.KindPart:
			return "record " + s.runOf(sk.Ref.Name, sk.Run)
		case record.KindDead:
			return "dead letter " + s.runOf(sk.Ref.Name, sk.Run)
		}
	}

	return key
}

// conflictText describes the comparisons of a commit that do not hold.
func (s *script) conflictText(txn kv.Txn) string {
	var list []string
	for i := range txn.If {
		c := &txn.If[i]
		now := s.get(string(c.KeyBytes()))
		held, what := false, "changed"

		switch v := c.GetCompare().TargetUnion.(type) {
		case *etcdserverpb.Compare_ModRevision:
			held = now.GetModRevision() == v.ModRevision
		case *etcdserverpb.Compare_CreateRevision:
			held = now.GetCreateRevision() == v.CreateRevision
		default:
			held = true
		}

		if held {
			continue
		}

		switch {
		case now == nil:
			what = "gone"
		case expectsAbsent(c):
			what = "there already"
		case strings.HasPrefix(string(c.KeyBytes()), s.store.Keys().Nodes()):
			what = "another session"
		}

		list = append(list, s.keyText(string(c.KeyBytes()))+": "+what)
	}

	slices.Sort(list)
	list = slices.Compact(list)
	if len(list) == 0 {
		return "nothing that is known here"
	}

	return strings.Join(list, ", ")
}

func (s *script) get(key string) *mvccpb.KeyValue {
	res, err := s.client.Get(s.ctx, key)
	s.ok(err)

	if len(res.Kvs) == 0 {
		return nil
	}

	return res.Kvs[0]
}

// markOf returns the watermark that a commit writes.
func (s *script) markOf(txn kv.Txn) (m record.Watermark) {
	for _, op := range txn.Then {
		if string(op.KeyBytes()) != s.store.Keys().Watermark(0) {
			continue
		}

		var err error
		m, err = record.DecodeWatermark(op.ValueBytes())
		s.ok(err)
	}

	return m
}

// sameContent reports whether two commits are copies of one: they differ only in the nonce.
func (s *script) sameContent(a, b kv.Txn) bool {
	mark := s.store.Keys().Watermark(0)
	return slices.EqualFunc(a.Then, b.Then, func(a, b clientv3.Op) bool {
		return bytes.Equal(a.KeyBytes(), b.KeyBytes()) && a.IsDelete() == b.IsDelete() &&
			(string(a.KeyBytes()) == mark || bytes.Equal(a.ValueBytes(), b.ValueBytes()))
	})
}

// shortName returns namespace/name without the default namespace.
func shortName(name string) string { return strings.TrimPrefix(name, "default/") }

// plainError returns an error in the vocabulary of scripts.
func plainError(err error) string {
	for _, known := range []error{errOpenAgain, errStopped, errUnsettled, task.ErrFenced, task.ErrUnavailable} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}

	return err.Error()
}
