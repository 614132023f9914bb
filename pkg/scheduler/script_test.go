package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// TestScripts runs the scripts in testdata/scripts. Their README.md explains how to read and write one. A
// script describes what happens in a cluster and what the clock shows. The commits with which a scheduler
// responds are compared with the text of the script.
//
// The scripts do not depend on how decisions are made. Everything that is specific to the code under test
// is behind the interface decider.
func TestScripts(t *testing.T) {
	t.Parallel()

	files, err := filepath.Glob("testdata/scripts/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}

	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()

			// In a bubble, the pauses between two attempts of a scheduler take no time.
			synctest.Test(t, func(t *testing.T) {
				s := &script{}
				datadriven.RunTest(t, file, s.run)
				s.requireNothingUnderWay(t)
			})
		})
	}
}

// Policies are alike for all kinds of actions: with tasks that send requests, a scheduler responds with the same commits. The
// scripts that are left out have nodes without free slots, which processes need.
func TestScripts_AreAlikeForRequests(t *testing.T) {
	t.Parallel()

	for _, name := range []string{
		"after_completion", "catch_up_pace", "delete", "edits", "fan_out", "fan_out_more", "freeze", "lost", "manual", "max_runs", "missed", "overlap_allow", "overlap_queue",
		"overlap_replace", "overlap_skip", "pause", "pause_after_failures", "retry", "shadow", "start_deadline", "suspect",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			synctest.Test(t, func(t *testing.T) {
				s := &script{requests: true}
				datadriven.RunTest(t, "testdata/scripts/"+name+".txt", s.run)
				s.requireNothingUnderWay(t)
			})
		})
	}
}

// decider is the code under test. It owns shard 0 and decides what its commits contain. It reads and writes
// through a store.Store whose writes pass through the script.
type decider interface {
	// open opens and loads the shard as its owner. It can be called again.
	open() error
	// learn returns when all changes of the shard up to a revision are known, and no later ones.
	learn(rev int64)
	// learnNodes replaces the known nodes.
	learnNodes(nodes []task.Node)
	// learnFreezes signals that the freezes have changed.
	learnFreezes()
	// decide decides and commits until nothing is left to do now, or until it ends with one of the errors
	// below. Some work may be left for another call.
	decide(ctx context.Context) error
	// nextLook returns when it must decide again at the latest.
	nextLook() time.Time
	// known returns what is known about a task (namespace/name).
	known(name string) knownTask
	// deletions carries out the deletions of tasks that were requested since the last call.
	deletions(ctx context.Context) []string
}

// The errors that end decide.
var (
	errOpenAgain = errors.New("the shard has to be opened again")
	errStopped   = errors.New("another node owns the shard, or the session is over")
	errUnsettled = errors.New("the outcome of the commit is unknown")
)

// knownTask is what a decider knows about a task. Runs are run ids.
type knownTask struct {
	absent  bool
	next    time.Time // the first undecided tick; zero if there is none
	waiting []string
	active  []string
}

// deciderConfig is what a script passes to a decider.
type deciderConfig struct {
	node    string
	fences  store.Fences
	store   Store
	now     func() time.Time
	cluster func() task.Cluster
	freezes func() (*task.Freezes, int64)

	namespaces func() Namespaces
}

// script runs the commands of one file. Each cluster command starts over.
type script struct {
	*world
	tasks     int                          // number of tasks that were created, for the next uid
	manual    int                          // number of manual runs
	revisions int64                        // of the record of the namespace
	specs     map[string]map[string]string // by task: the lines of its file, by field
	uids      map[string][]string          // by task: its uids, the current one last
	cluster   task.Cluster
	// namespace is the record of the namespace default. It has revision 0 and is open until the command
	// namespace changes it. namespaces are the records that are known: nil before they are loaded.
	namespace  *task.Namespace
	namespaces Namespaces
	joined     map[string]task.Node
	failing    map[string]bool  // reads that fail
	marks      map[string]int64 // revisions by name
	summary    bool             // show only the number of facts of each kind in a commit
	counts     map[string]int   // if not nil: the facts of several decisions, by kind
	requests   bool             // tasks send requests unless the script says otherwise

	owners map[string]*owner
	owner  *owner // the owner that the commands refer to
}

// owner is a node that owns the shard, or did so before.
type owner struct {
	decider
	gate *gate

	mark                         record.Watermark // as the owner knows it
	nodesChanged, freezesChanged bool
	freezes                      store.FreezeRecord // as it was reported

	lost   kv.Txn     // the last commit whose answer the script has lost
	ended  chan error // of the current decision, or nil
	cancel context.CancelFunc
	rounds int    // how often it was asked to continue
	unseen bool   // no events are delivered to it
	told   string // the mark up to which events are delivered; empty: all
	commit bool   // the current call of decide has sent a commit
}

// run runs one command.
func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	a := &scriptArgs{script: s, t: t, d: d, used: map[string]bool{}}
	if at := a.text("at", ""); at != "" && s.world != nil {
		s.setClock(a.time(at))
	}

	commands := map[string]func(*scriptArgs) string{
		"cluster": s.newCluster, "node": s.node, "lost": s.leaves, "cleared": s.cleared, "setting": s.setting,
		"task": s.task, "edit": s.edit, "delete": s.delete, "trigger": s.trigger, "end": s.end, "hand-back": s.handBack,
		"cancel": s.cancelRun, "freeze": s.freezeNamespace, "thaw": s.thaw, "namespace": s.changeNamespace, "put": s.putRecord, "remove": s.removeRecord,
		"own": s.own, "open": s.open, "decide": s.decide, "propose": s.propose, "deliver": s.deliver, "refuse": s.refuse,
		"lose-request": s.loseRequest, "lose-answer": s.loseAnswer, "state": s.state, "herd": s.herd, "mark": s.mark,
		"runs": s.runs, "next": s.next, "reads": s.reads, "arrives": s.arrives,
	}
	command, ok := commands[d.Cmd]
	if !ok {
		d.Fatalf(t, "unknown command %q", d.Cmd)
	}

	if s.world == nil && d.Cmd != "cluster" {
		d.Fatalf(t, "a script begins with the command cluster")
	}

	out := command(a)

	for _, arg := range d.CmdArgs {
		if !a.used[arg.Key] {
			d.Fatalf(t, "%s does not take %q", d.Cmd, arg.Key)
		}
	}

	return out
}

// scriptArgs are the arguments of a command.
type scriptArgs struct {
	*script
	t    *testing.T
	d    *datadriven.TestData
	used map[string]bool
}

func (a *scriptArgs) texts(key string) []string {
	for _, arg := range a.d.CmdArgs {
		if arg.Key == key {
			a.used[key] = true
			return arg.Vals
		}
	}

	return nil
}

func (a *scriptArgs) text(key, otherwise string) string {
	if v := a.texts(key); len(v) > 0 {
		return v[0]
	}

	return otherwise
}

func (a *scriptArgs) number(key string, otherwise int) int {
	text := a.text(key, "")
	if text == "" {
		return otherwise
	}

	n, err := strconv.Atoi(text)
	if err != nil {
		a.d.Fatalf(a.t, "%s: %v", key, err)
	}

	return n
}

// has reports whether a word without a value is present.
func (a *scriptArgs) has(key string) bool { a.used[key] = true; return a.d.HasArg(key) }

// subject returns the first argument, a name without a value.
func (a *scriptArgs) subject() string {
	for _, arg := range a.d.CmdArgs {
		if len(arg.Vals) == 0 {
			a.used[arg.Key] = true
			return arg.Key
		}
	}

	a.d.Fatalf(a.t, "%s of what?", a.d.Cmd)

	return ""
}

// scriptDay is the day of all scripts.
var scriptDay = start.Truncate(24 * time.Hour)

// time parses 12:00:05, or 01-03T12:00:05 on another day.
func (a *scriptArgs) time(text string) time.Time {
	for _, layout := range []string{"15:04:05", "01-02T15:04:05"} {
		t, err := time.Parse(layout, text)
		if err != nil {
			continue
		}
		if layout == "15:04:05" {
			return scriptDay.Add(t.Sub(t.Truncate(24 * time.Hour)))
		}

		return t.AddDate(scriptDay.Year(), 0, 0)
	}

	a.d.Fatalf(a.t, "%q is no time", text)

	return time.Time{}
}

// clockText formats a time as scripts do.
func clockText(t time.Time) string {
	layout := "15:04:05.999"
	if !t.Truncate(24 * time.Hour).Equal(scriptDay) {
		layout = "01-02T15:04:05.999"
	}

	return t.UTC().Format(layout)
}

func (s *script) setClock(t time.Time) { s.at(t.Sub(start).Seconds()) }

// The cluster.

func (s *script) newCluster(a *scriptArgs) string {
	s.requireNothingUnderWay(a.t)
	memory := kvmem.New(kvmem.Config{})
	a.t.Cleanup(memory.Close)

	*s = script{
		world: newWorldOn(a.t, "/s", func() *kv.Client { return kvtest.ClientOf(a.t, memory) }),
		specs: map[string]map[string]string{}, uids: map[string][]string{}, joined: map[string]task.Node{},
		failing: map[string]bool{}, marks: map[string]int64{}, owners: map[string]*owner{},
		namespace: &openNamespace, namespaces: OpenNamespaces{}, requests: s.requests,
	}

	if at := a.text("at", ""); at != "" {
		s.setClock(a.time(at))
	}

	for _, node := range a.texts("nodes") {
		s.joinNode(task.Node{Name: node})
	}

	return ""
}

// node makes a node present, or changes it. With again, it is a new instance.
func (s *script) node(a *scriptArgs) string {
	name := a.subject()
	n, known := s.joined[name]
	n.Name = name

	n.Slots = a.number("slots", n.Slots)
	n.State = a.text("state", n.State)
	if labels := a.texts("labels"); labels != nil {
		n.Labels = map[string]string{}
		for _, l := range labels {
			k, v, _ := strings.Cut(l, "=")
			n.Labels[k] = v
		}
	}

	if again := a.has("again"); known && !again {
		s.ok(s.store.Announce(s.ctx, s.sessions[name], s.complete(n), 0))
		s.joined[name] = n
		s.nodesChange()

		return ""
	}

	if _, there := s.sessions[name]; there {
		s.leave(name)
	}

	s.joinNode(n)

	return ""
}

func (s *script) joinNode(n task.Node) {
	s.joins++
	n.Instance = fmt.Sprintf("%s-%d", n.Name, s.joins)
	n = s.complete(n)

	session, _, err := s.store.Register(s.ctx, n, 0, s.clusterRecord())
	s.ok(err)
	s.sessions[n.Name], s.joined[n.Name] = session, n
	s.nodesChange()
}

func (s *script) complete(n task.Node) task.Node {
	if n.Slots == 0 {
		n.Slots = 100
	}

	if n.State == "" {
		n.State = task.NodeReady
	}

	n.Roles = both

	labels := maps.Clone(n.Labels)
	if labels == nil {
		labels = map[string]string{}
	}

	labels["node"] = n.Name
	n.Labels = labels

	return n
}

func (s *script) nodesChange() {
	for _, o := range s.owners {
		o.nodesChanged = true
	}
}

// leaves ends the sessions of nodes.
func (s *script) leaves(a *scriptArgs) string {
	s.leave(a.subject())
	s.nodesChange()
	return ""
}

// cleared records that no process of a node's last instance is left.
func (s *script) cleared(a *scriptArgs) string {
	s.ok(s.store.PutCleared(s.ctx, s.joined[a.subject()].Instance, task.At(s.clock())))
	return ""
}

// setting changes the cluster's record.
func (s *script) setting(a *scriptArgs) string {
	s.cluster.CatchUpRate = a.number("catch-up-rate", s.cluster.CatchUpRate)
	if text := a.text("lost-after", ""); text != "" {
		d, err := time.ParseDuration(text)
		s.ok(err)
		s.cluster.LostAfter = task.Duration(d)
	}

	return ""
}

func (s *script) freezeNamespace(a *scriptArgs) string {
	s.freeze(a.text("namespace", ""))
	s.freezesChange()
	return ""
}

func (s *script) thaw(a *scriptArgs) string {
	s.unfreeze(a.text("namespace", ""))
	s.freezesChange()
	return ""
}

// oneNamespace has the record of a single namespace, default.
type oneNamespace struct{ record *task.Namespace }

func (o oneNamespace) Namespace(name string) *task.Namespace {
	if name != "default" {
		return nil
	}
	return o.record
}

// changeNamespace gives the namespace default another record, with the next revision. The owners know it at once.
func (s *script) changeNamespace(a *scriptArgs) string {
	switch {
	case a.has("unknown"):
		s.namespaces = nil
	case a.has("gone"):
		s.namespace, s.namespaces = nil, oneNamespace{}
	default:
		s.revisions++
		s.namespace = &task.Namespace{
			Name: "default", RunAs: a.texts("run-as"), Groups: a.texts("groups"), Shell: a.has("shell"), EnvFiles: a.texts("env-files"),
			Nodes: strings.Join(a.texts("nodes"), ", "), Revision: s.revisions,
		}
		s.namespaces = oneNamespace{s.namespace}
	}

	for _, o := range s.owners {
		o.freezesChanged = true // the owners examine what waits, as Engine.WakeWorkers makes them do
	}

	return ""
}

// checkedBy records in an entry, as the API does, which version of the namespace's record has allowed it.
func (s *script) checkedBy(e *task.Entry) {
	if s.namespace != nil {
		e.NamespaceRev = s.namespace.Revision
	}
}

func (s *script) freezesChange() {
	for _, o := range s.owners {
		o.freezesChanged = true
	}
}

// reads sets which reads fail from now on.
func (s *script) reads(a *scriptArgs) string {
	clear(s.failing)

	for _, what := range a.texts("fail") {
		if !slices.Contains([]string{"attempts", "histories", "records", "queue", "cleared"}, what) {
			a.d.Fatalf(a.t, "no such reads: %s", what)
		}
		s.failing[what] = true
	}

	return ""
}

// Tasks and runs, as the API and the nodes write them.

// fields parses the lines of a task's file, one field per line.
func (a *scriptArgs) fields(into map[string]string) {
	for line := range strings.Lines(a.d.Input) {
		line = strings.TrimSpace(line)
		name, _, ok := strings.Cut(line, ":")
		if !ok {
			a.d.Fatalf(a.t, "a line of a task is a field, a colon and a value: %q", line)
		}

		into[name] = line
	}
}

func (a *scriptArgs) spec(name string, fields map[string]string) task.Spec {
	lines := slices.Collect(maps.Values(fields))
	slices.Sort(lines)

	objects, err := manifest.Read("task", []byte(strings.Join(lines, "\n")), "default")
	if err != nil || len(objects) != 1 || objects[0].Err != nil {
		a.d.Fatalf(a.t, "the task %s: %v %v", name, err, objects)
	}

	return objects[0].Spec
}

// task creates tasks. By default they tick every second, and their action is noop.
func (s *script) task(a *scriptArgs) string {
	for _, arg := range a.d.CmdArgs {
		if len(arg.Vals) > 0 {
			continue
		}

		name := arg.Key
		a.used[name] = true

		s.createTask(a, name)
	}

	return ""
}

// herd creates a number of similar tasks, or ends all of their attempts.
func (s *script) herd(a *scriptArgs) string {
	if a.has("end") {
		active, err := s.store.Active(s.ctx)
		s.ok(err)

		for _, h := range active {
			s.world.end(h, task.Succeeded)
		}

		return ""
	}

	n, err := strconv.Atoi(a.subject())
	s.ok(err)

	for i := range n {
		s.createTask(a, fmt.Sprintf("task-%03d", i+1))
	}

	return ""
}

func (s *script) createTask(a *scriptArgs, name string) {
	fields := map[string]string{"name": "name: " + name, "schedule": `schedule: "* * * * * *"`, "action": "action: {noop: {}}"}
	if s.requests {
		fields["action"] = `action: {http: {url: "http://svc.test/x"}}`
	}

	a.fields(fields)
	s.specs[name] = fields

	s.tasks++
	now := task.At(s.clock())
	uid := fmt.Sprintf("t%03dabcdefghijkl", s.tasks)
	s.uids[name] = append(s.uids[name], uid)
	t := task.Task{Spec: a.spec(name, fields), UID: uid, Generation: 1, CreatedAt: now, UpdatedAt: now}
	e := task.NewEntry(t, now, now)
	if t.Paused {
		e.Own = &task.Own{Pauses: []task.Pause{{Since: now, By: task.NewActor("ann"), Until: t.PausedUntil}}}
	}
	s.checkedBy(&e)

	_, err := s.store.CreateTask(s.ctx, s.ref(name), t, e)
	s.ok(err)
}

func (s *script) ref(name string) record.Ref { return ref(name) }

// edit changes fields of a task as the API does. Undecided ticks up to now are void if the schedule
// changes, a pause ends, the task may run more often, or its entry could not be read.
func (s *script) edit(a *scriptArgs) string {
	name := a.subject()
	fields := s.specs[name]
	a.fields(fields)

	old, err := s.store.Task(s.ctx, s.ref(name))

	mend := errors.Is(err, task.ErrInvalid) && old.EntryMod != 0
	if !mend {
		s.ok(err)
	}

	now := task.At(s.clock())
	t := old.Task
	t.Spec, t.UpdatedAt = a.spec(name, fields), now
	t.Generation++

	from, anchor := old.Entry.From, old.Entry.Anchor
	if mend || !task.SameTicks(old.Task.Spec, t.Spec) {
		from, anchor = now, now
	}

	own := task.Own{}
	if old.Entry.Own != nil {
		own = *old.Entry.Own
	}

	if before := old.Task.MaxRuns; before > 0 && own.Runs >= before && (t.MaxRuns == 0 || own.Runs < t.MaxRuns) {
		from = now
	}

	switch {
	case t.Paused && !old.Entry.Paused:
		own.Pauses = append(own.Pauses, task.Pause{Since: now, By: task.NewActor("ann"), Until: t.PausedUntil})
	case !t.Paused && old.Entry.Paused:
		from, own.Failures = now, 0
		if n := len(own.Pauses); n > 0 {
			own.Pauses[n-1].Ended, own.Pauses[n-1].EndedBy = now, task.NewActor("ann")
		}
	}

	e := task.NewEntry(t, from, anchor)
	if len(record.EncodeOwn(&own)) > 0 {
		e.Own = &own
	}
	s.checkedBy(&e)

	_, err = s.store.UpdateTask(s.ctx, old, t, e)
	s.ok(err)

	return ""
}

func (s *script) delete(a *scriptArgs) string {
	s.world.remove(a.subject())
	return ""
}

func (s *script) trigger(a *scriptArgs) string {
	name := a.subject()
	st, err := s.store.Task(s.ctx, s.ref(name))
	s.ok(err)

	s.manual++
	now := task.At(s.clock())
	_, err = s.store.Enqueue(s.ctx, st, task.Waiting{Run: task.Run{
		ID:        fmt.Sprintf("%s-m%03d", task.RunID(now.Time, st.Task.UID), s.manual),
		Namespace: "default", Task: name, UID: st.Task.UID, ScheduledTime: now, CreatedAt: now, Attempt: 1,
		State: task.Queued, Reason: task.ReasonManual, Trigger: task.TriggerManual,
	}})
	s.ok(err)

	return ""
}

// attempt returns the attempt that a command names by task, tick and part: the oldest that matches.
func (a *scriptArgs) attempt() record.Held {
	name := a.subject()
	tick, part := a.text("tick", ""), a.number("part", -1)

	for _, h := range a.active(name) {
		_, index, isPart := task.ParentOf(h.ID)
		if tick != "" && !h.ScheduledTime.Equal(a.time(tick)) || part >= 0 && (!isPart || index != part) {
			continue
		}
		return h
	}

	a.d.Fatalf(a.t, "no such attempt of %s is active", name)

	return record.Held{}
}

// end ends an attempt as its node does.
func (s *script) end(a *scriptArgs) string {
	h := a.attempt()
	now := s.clock()
	end := h.Run
	end.State, end.EndedAt = task.State(a.text("state", string(task.Succeeded))), task.At(now)
	end.Reason = why(h, end.State)
	if exit := a.number("exit", -1); exit >= 0 {
		end.ExitCode = &exit
	}

	if a.has("unsent") {
		end.State, end.Reason, end.Message = task.Failed, task.ReasonUnsent, "connection refused"
	}
	if a.has("started") { // the target has asked to wait
		end.StartedAt = task.At(now)
	}

	next := executor.Next(h.Assigned, end, now, 0.5)
	if text := a.text("retry-after", ""); text != "" && next != nil {
		d, err := time.ParseDuration(text)
		s.ok(err)
		next.NotBefore = task.At(now.Add(d))
	}

	s.ok(s.store.Finish(s.ctx, h, end, next))

	switch {
	case next != nil && next.WaitsForTarget():
		return fmt.Sprintf("%s not sent, %d in all; attempt %d may start at %s", s.runText(h.ID), next.Unsent.Count, next.Attempt, clockText(next.NotBefore.Time))
	case next != nil:
		return fmt.Sprintf("%s %s; attempt %d may start at %s", s.runText(h.ID), end.State, next.Attempt, clockText(next.NotBefore.Time))
	}

	return fmt.Sprintf("%s %s", s.runText(h.ID), end.State)
}

// handBack hands an attempt back that was not started.
func (s *script) handBack(a *scriptArgs) string {
	s.ok(s.store.HandBack(s.ctx, a.attempt()))
	return ""
}

// cancelRun cancels a run as the API does.
func (s *script) cancelRun(a *scriptArgs) string {
	name := a.subject()

	if queued := a.has("queued"); queued {
		_, id := a.address(name)
		_, err := s.store.CancelQueued(s.ctx, s.ref(name), id, task.NewActor("ann"), s.clock())
		s.ok(err)

		return ""
	}

	_, err := s.store.CancelActive(s.ctx, a.attempt(), task.NewActor("ann"))
	s.ok(err)

	return ""
}

// address returns the key of the record that a command names by its kind (entry, queue, history, run), task
// and tick.
func (a *scriptArgs) address(name string) (key, id string) {
	uids := a.uids[name]
	if len(uids) > 0 {
		if tick := a.text("tick", ""); tick != "" {
			id = task.RunID(a.time(tick), uids[len(uids)-1])
		}
	}

	if manual := a.number("manual", 0); manual > 0 {
		id += fmt.Sprintf("-m%03d", manual)
	}

	if part := a.number("part", -1); part >= 0 {
		id = task.PartID(id, part)
	}

	keys, ref := a.store.Keys(), a.ref(name)

	switch kind := a.text("kind", ""); kind {
	case "entry":
		return keys.Entry(ref), id
	case "queue":
		return keys.Queued(ref, id), id
	case "history":
		return keys.Ended(ref, id), id
	case "run":
		return keys.Run(a.text("node", ""), ref, id), id
	case "watermark":
		return keys.Watermark(0), id
	}

	return "", id
}

// putRecord writes a record that no component would write at that time. Without a value, it writes the
// record unchanged, which changes its revision.
func (s *script) putRecord(a *scriptArgs) string {
	key, _ := a.address(a.subject())
	value := a.d.Input
	if value == "" {
		res, err := s.client.Get(s.ctx, key)
		s.ok(err)

		if len(res.Kvs) == 0 {
			a.d.Fatalf(a.t, "there is no %s", key)
		}

		value = string(res.Kvs[0].Value)
	}

	s.world.put(key, value)

	return ""
}

// removeRecord deletes a record by hand.
func (s *script) removeRecord(a *scriptArgs) string {
	key, _ := a.address(a.subject())
	res, err := s.client.Delete(s.ctx, key)
	s.ok(err)

	if res.Deleted == 0 {
		a.d.Fatalf(a.t, "there is no %s", key)
	}

	return ""
}

// The owner.

// own makes a node the owner of the shard, with a new decider.
func (s *script) own(a *scriptArgs) string {
	node := a.subject()
	fences := s.assign(node)

	o := &owner{gate: &gate{Committer: kv.Direct(s.etcd), proposals: make(chan kv.Txn), verdicts: make(chan verdict)}}
	s.owners[node], s.owner = o, o
	o.gate.mark = s.store.Keys().Watermark(0)
	o.decider = newScriptedWorker(s.TB, deciderConfig{
		node: node, fences: fences, now: s.clock,
		store:   &faultyStore{Store: store.New(s.etcd, o.gate, s.store.Keys()), failing: s.failing},
		cluster: func() task.Cluster { return s.cluster },
		freezes: func() (*task.Freezes, int64) {
			if o.freezes.Mod == 0 {
				return nil, 0
			}
			return &o.freezes.Freezes, o.freezes.Mod
		},
		namespaces: func() Namespaces { return s.namespaces },
	})

	s.tellNodes(o)
	s.tellFreezes(o)

	return s.open(a)
}

// open opens the shard again.
func (s *script) open(a *scriptArgs) string {
	if err := s.owner.open(); err != nil {
		return "cannot open the shard: " + plainError(err)
	}
	s.owner.mark = s.world.mark()
	return ""
}

// by selects the node that a command refers to: the owner, or a former one.
func (a *scriptArgs) by() {
	if node := a.text("by", ""); node != "" {
		if a.owners[node] == nil {
			a.d.Fatalf(a.t, "%s has never owned the shard", node)
		}
		a.script.owner = a.owners[node]
	}
}

func (s *script) tellNodes(o *owner) {
	nodes, err := s.store.Nodes(s.ctx)
	s.ok(err)
	o.learnNodes(nodes)
	o.nodesChanged = false
}

func (s *script) tellFreezes(o *owner) {
	record, err := s.store.Freezes(s.ctx)
	s.ok(err)
	o.freezes = record
	o.learnFreezes()
	o.freezesChanged = false
}

// tell delivers all events to the owner.
func (s *script) tell(o *owner) {
	if o.nodesChanged {
		s.tellNodes(o)
	}

	if o.freezesChanged {
		s.tellFreezes(o)
	}

	if o.told != "" {
		o.learn(s.marks[o.told])
		return
	}

	o.learn(s.here())
}

// here returns the current revision.
func (s *script) here() int64 {
	// The watch delivers this key in order. It has no meaning to anybody else.
	return s.world.put(s.store.Keys().Shard(0)+"sync", "")
}

// mark gives the current revision a name.
func (s *script) mark(a *scriptArgs) string {
	s.marks[a.subject()] = s.here()
	return ""
}

// decide lets the owner decide until it commits nothing more.
func (s *script) decide(a *scriptArgs) string {
	a.by()
	s.begin(a)

	every, until := a.text("every", ""), a.text("until", "")
	if every == "" {
		return s.decideAll(a.has("summary"))
	}

	// Many decisions at regular intervals: their facts are added up.
	pause, err := time.ParseDuration(every)
	s.ok(err)

	s.counts = map[string]int{}
	for {
		var out strings.Builder
		for s.step(&out) {
			s.answer(&out, verdict{})
		}

		if next := s.clock().Add(pause); !next.After(a.time(until)) {
			s.setClock(next)
			s.begin(a)
			continue
		}

		text := countsText(s.counts)
		s.counts = nil

		return "in all: " + text
	}
}

func (s *script) decideAll(summary bool) string {
	s.summary = summary
	var out strings.Builder
	for s.step(&out) {
		s.answer(&out, verdict{})
	}

	return s.conclude(&out)
}

// propose lets the owner decide up to its next commit, which is not sent yet.
func (s *script) propose(a *scriptArgs) string {
	a.by()
	s.summary = a.has("summary")
	s.begin(a)

	var out strings.Builder
	if !s.step(&out) {
		return s.conclude(&out)
	}

	return out.String()
}

// begin starts a decision.
func (s *script) begin(a *scriptArgs) {
	o := s.owner
	if o.ended != nil {
		a.d.Fatalf(a.t, "a commit is under way")
	}

	o.told = a.text("told", "")
	if o.told != "" && s.marks[o.told] == 0 {
		a.d.Fatalf(a.t, "there is no mark %s", o.told)
	}

	if o.unseen = a.has("unseen"); !o.unseen {
		s.tell(o)
	}

	o.rounds = 0
	s.start(o)
}

// requireNothingUnderWay fails a script that ends before its last commit has a verdict.
func (s *script) requireNothingUnderWay(t *testing.T) {
	t.Helper()

	for node, o := range s.owners {
		if o.ended != nil {
			t.Fatalf("a commit of %s is still under way", node)
		}
	}
}

// maxRounds limits how often an owner that commits again and again is asked to continue.
const maxRounds = 20

// start lets the owner decide in a goroutine. The script answers its commits.
func (s *script) start(o *owner) {
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan error, 1)
	o.ended, o.cancel, o.commit = ended, cancel, false
	o.gate.open.Store(true)

	go func() {
		err := o.decider.decide(ctx)
		cancel()
		ended <- err
	}()
}

// step continues to the next commit and writes it to out. It returns false if the decision has ended.
func (s *script) step(out *strings.Builder) bool {
	o := s.owner
	for {
		select {
		case txn := <-o.gate.proposals:
			again := len(o.lost.Then) > 0 && s.sameContent(txn, o.lost)
			o.commit, o.gate.txn = true, txn

			if again {
				fmt.Fprintln(out, "sent again")
			} else {
				s.writeCommit(out, txn)
			}

			return true

		case err := <-o.ended:
			o.ended = nil
			o.gate.open.Store(false)

			if err != nil {
				fmt.Fprintf(out, "stops: %s\n", plainError(err))
				return false
			}

			for _, name := range o.deletions(s.ctx) {
				fmt.Fprintf(out, "delete %s: its time to live is over\n", shortName(name))
				o.commit = true
			}

			if !o.commit {
				return false
			}

			if o.rounds++; o.rounds > maxRounds {
				fmt.Fprintln(out, "does not come to an end")
				return false
			}

			// In a daemon, the watch delivers the commit, which makes the worker run another round.
			if !o.unseen {
				s.tell(o)
			}

			s.start(o)
		}
	}
}

// conclude returns the output of commands that decide.
func (s *script) conclude(out *strings.Builder) string {
	if out.Len() == 0 {
		return "nothing to commit"
	}
	return withoutRepetitions(out.String())
}

// withoutRepetitions shows a commit that is rejected repeatedly only once. Scripts do not depend on the
// number of repetitions.
func withoutRepetitions(text string) string {
	blocks := strings.SplitAfter(text, "\n")
	var list []string
	for _, line := range blocks {
		if n := len(list); n == 0 || strings.HasPrefix(line, "commit") || strings.HasPrefix(list[n-1], "stops") || strings.HasPrefix(line, "stops") {
			list = append(list, line)
		} else {
			list[n-1] += line
		}
	}

	var out strings.Builder
	const again = "the same again, and rejected\n"

	for i, block := range list {
		switch {
		case i == 0 || block != list[i-1] || !strings.Contains(block, "rejected: "):
			out.WriteString(block)
		case !strings.HasSuffix(out.String(), again):
			out.WriteString(again)
		}
	}

	return out.String()
}

// answer carries out the verdict on the current commit.
func (s *script) answer(out *strings.Builder, v verdict) {
	o := s.owner
	lost := o.lost
	v.conflict = func(txn kv.Txn) {
		if len(lost.Then) > 0 && s.world.mark() == s.markOf(lost) {
			o.mark = s.world.mark()
			fmt.Fprintln(out, "it was written already")
			return
		}

		fmt.Fprintf(out, "rejected: %s\n", s.conflictText(txn))
	}

	v.written = func(txn kv.Txn) { o.mark = s.markOf(txn) }
	o.lost = kv.Txn{}
	if v.lost {
		o.lost = o.gate.txn
	}

	switch {
	case v.refused:
		fmt.Fprintln(out, "refused by etcd")
	case v.dies:
		v.die = o.cancel
	}

	o.gate.verdicts <- v
}

// settle answers the current commit, and continues to the end of the decision.
func (s *script) settle(a *scriptArgs, v verdict) string {
	a.by()

	if s.owner.ended == nil {
		a.d.Fatalf(a.t, "no commit is under way")
	}

	one := a.has("step")
	var out strings.Builder
	s.answer(&out, v)

	for s.step(&out) {
		if one {
			return out.String()
		}
		s.answer(&out, verdict{})
	}

	if out.Len() == 0 {
		return "committed"
	}

	return withoutRepetitions(out.String())
}

// deliver sends the commit that was proposed.
func (s *script) deliver(a *scriptArgs) string { return s.settle(a, verdict{}) }

// refuse lets etcd refuse it with a definite answer.
func (s *script) refuse(a *scriptArgs) string { return s.settle(a, verdict{refused: true}) }

// loseRequest loses it on the way to etcd. With dies, the owner never learns of that.
func (s *script) loseRequest(a *scriptArgs) string {
	return s.settle(a, verdict{lost: true, dies: a.has("dies")})
}

// loseAnswer lets etcd apply it, and loses the answer.
func (s *script) loseAnswer(a *scriptArgs) string {
	return s.settle(a, verdict{lost: true, applied: true, dies: a.has("dies")})
}

// arrives delivers the request that an owner has lost last, after a delay.
func (s *script) arrives(a *scriptArgs) string {
	a.by()
	txn := s.owner.lost
	if len(txn.Then) == 0 {
		a.d.Fatalf(a.t, "no request was lost")
	}

	res, err := s.owner.gate.Committer.Commit(s.ctx, txn)
	s.ok(err)

	if res.Succeeded {
		return "written"
	}

	return "rejected: " + s.conflictText(txn)
}

// next shows when the owner must decide again.
func (s *script) next(a *scriptArgs) string {
	a.by()
	return "looks again at " + clockText(s.owner.nextLook())
}

// state shows what the owner knows about a task.
func (s *script) state(a *scriptArgs) string {
	a.by()
	name := a.subject()

	k := s.owner.known("default/" + name)
	if k.absent {
		return "unknown"
	}

	var out strings.Builder

	if k.next.IsZero() {
		fmt.Fprintln(&out, "no tick to come")
	} else {
		fmt.Fprintf(&out, "next tick %s\n", clockText(k.next))
	}

	for _, id := range k.waiting {
		fmt.Fprintf(&out, "waiting: %s\n", s.runOf(name, id))
	}

	for _, id := range k.active {
		fmt.Fprintf(&out, "active: %s\n", s.runOf(name, id))
	}

	return out.String()
}

// runs shows what etcd holds of a task's runs, the oldest tick first.
func (s *script) runs(a *scriptArgs) string {
	name := a.subject()
	runs, err := s.store.ShardRuns(s.ctx, []int{0}, "")
	s.ok(err)
	active, err := s.store.Active(s.ctx)
	s.ok(err)

	for _, h := range active {
		runs = append(runs, h.Run)
	}

	runs = slices.DeleteFunc(runs, func(r task.Run) bool { return r.Task != name })
	slices.SortFunc(runs, func(a, b task.Run) int { return strings.Compare(a.ID, b.ID) })

	if len(runs) == 0 {
		return "none"
	}

	var out strings.Builder

	for _, r := range runs {
		fmt.Fprintf(&out, "%s %s\n", s.spanOf(r), outcomeText(r))
	}

	return out.String()
}
