package authority_test

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/internal/test/mutant"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// The simulation of this file tests G27 and G28: two nodes write on behalf of callers whose rights come and go, in virtual
// time, while watches of the nodes stall, and requests are late, lost or applied after their sender has given up.
//
//	administrator ──As──▶ kvmem ◀──links── nodes (Keeper, Rights, Batcher) ◀── callers
//	                        └── every revision ──▶ check.Check
const (
	simTasks   = 4 // names of tasks in each namespace
	simCallers = 5
	simLength  = 12 * time.Second // of virtual time
)

var (
	simNamespaces = []string{"a", "ab"}
	simSubjects   = []string{"user:u0", "user:u1", "service:s0", "cert:c0"}
	simTokens     = []string{"t0", "t1", "t2", "t3", "t4"}
	simLabels     = []map[string]string{nil, {"team": "x"}, {"team": "y"}}
	simRoles      = []string{"viewer", "operator", "editor", "editor", "own"}
	simStart      = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

// revocations is one simulation.
type revocations struct {
	memory *kvmem.Store
	keys   record.Keys
	nodes  []*apiNode
	admin  *apiNode // has no faults
	life   context.Context
	late   sync.WaitGroup // requests that outlive their sender

	mu     sync.Mutex
	counts map[string]int
}

// apiNode is what a node that serves the API has: a copy of the access records, and a Store.
type apiNode struct {
	*revocations
	rng    *rand.Rand
	store  *store.Store // through the Batcher
	direct *store.Store
	keeper *authority.Keeper
	link   *slowLink
}

// simResult is what a simulation has shown.
type simResult struct {
	violations []check.Violation
	counts     map[string]int
}

// simulateRevocations runs one seed.
func simulateRevocations(t *testing.T, seed uint64) (r simResult) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(simStart))
		life, end := context.WithCancel(context.WithoutCancel(t.Context()))
		rng := rand.New(rand.NewPCG(seed, 1))

		keys, err := record.NewKeys("/test")
		if err != nil {
			t.Fatal(err)
		}

		w := &revocations{memory: kvmem.New(kvmem.Config{}), keys: keys, life: life, counts: map[string]int{}}
		var running sync.WaitGroup
		var clients []*kv.Client
		add := func(link *slowLink) *apiNode {
			c := w.memory.Client(life)
			if link != nil {
				link.wrap(c)
			}
			client := kv.Wrap(c, 0)
			clients = append(clients, client)
			batcher := kv.NewBatcher(client, kv.BatcherConfig{InFlight: 1})
			direct := store.New(client, kv.Direct(client), keys)
			n := &apiNode{revocations: w, rng: rand.New(rand.NewPCG(seed, rng.Uint64())), direct: direct, store: direct.Batching(batcher), keeper: authority.New(client, keys, nil), link: link}
			running.Go(func() { _ = batcher.Run(life) })

			return n
		}

		w.admin = add(nil)
		first := store.FirstAccess{}
		for i, id := range simTokens {
			first.Tokens = append(first.Tokens, w.token(id, simSubjects[i%3]))
		}
		for _, ns := range simNamespaces {
			first.Namespaces = append(first.Namespaces, store.OpenNamespace(ns))
		}
		first.Bindings = []task.Binding{{Name: "b0", Role: "editor", RoleUID: access.BuiltInUID, Subjects: simSubjects, Namespaces: []string{"*"}}}
		if _, _, err := w.admin.direct.Bootstrap(life, 1, time.Now(), first); err != nil {
			t.Fatal(err)
		}

		for range 2 {
			w.nodes = append(w.nodes, add(&slowLink{world: w, rng: rand.New(rand.NewPCG(seed, rng.Uint64())), moved: make(chan struct{})}))
		}
		for _, n := range append(w.nodes, w.admin) {
			running.Go(func() { _ = n.keeper.Run(life) })
		}

		active, stop := context.WithTimeout(life, simLength)
		var actors sync.WaitGroup
		actors.Go(func() { w.administrate(active, rand.New(rand.NewPCG(seed, 2))) })
		for _, n := range w.nodes {
			actors.Go(func() { n.link.stallAndGoOn(active) })
		}
		for i := range simCallers {
			actors.Go(func() { w.call(active, rand.New(rand.NewPCG(seed, uint64(10+i)))) })
		}

		actors.Wait()
		stop()

		// Time for late requests to arrive. Only when no batcher runs any more, no request is added to those that are waited for.
		time.Sleep(5 * time.Second)
		end()
		running.Wait()
		w.late.Wait()

		for _, c := range clients {
			_ = c.Close()
		}
		w.memory.Close()
		synctest.Wait()

		defer mutant.Suspend()()

		r = simResult{counts: w.counts}
		events := w.history()
		for _, v := range check.Check(keys, events, check.Options{Audited: true}).Violations {
			if v.Promise == "G27" || v.Promise == "G28" || v.Promise == "form" {
				r.violations = append(r.violations, v)
			}
		}
		for _, e := range events {
			if strings.HasPrefix(e.Key, keys.AuditRecords()) {
				w.counts["audit record"]++
			}
		}
	})

	return r
}

func (re *revocations) history() []check.Event {
	var events []check.Event
	for _, e := range re.memory.Events() {
		events = append(events, check.Event{
			Revision: e.Kv.ModRevision, Key: string(e.Kv.Key), Value: e.Kv.Value, Deleted: e.Type == mvccpb.Event_DELETE,
			ModRevision: e.Kv.ModRevision, CreateRevision: e.Kv.CreateRevision,
		})
	}

	return events
}

func (re *revocations) count(what string) {
	re.mu.Lock()
	defer re.mu.Unlock()
	re.counts[what]++
}

func (re *revocations) token(id, subject string) record.Token {
	return record.Token{Token: task.Token{ID: id, Subject: subject}, Hash: hex.EncodeToString(sum(id))}
}

// pick draws an element of a list.
func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}

// administrate gives and takes rights until ctx ends.
func (re *revocations) administrate(ctx context.Context, r *rand.Rand) {
	for clock.Sleep(ctx, between(r, 20*time.Millisecond, 800*time.Millisecond)) {
		what, err := re.changeAccess(ctx, r)
		if err == nil {
			re.count(what)
		}
	}
}

func (re *revocations) changeAccess(ctx context.Context, r *rand.Rand) (string, error) {
	n := re.admin
	v := n.keeper.View()
	rights := n.judge(time.Now).RightsOf(httpapi.Caller{Who: "unix:root"}, "administrate")
	if err := rights.Require(access.Need{Verb: access.Grant, Kind: access.Access}); err != nil {
		return "", err
	}

	s, now := n.direct.As(rights), time.Now()
	subject, id := pick(r, simSubjects), pick(r, simTokens)
	soon := func(one int) (at task.Time) {
		if r.IntN(one) == 0 {
			at = task.At(now.Add(between(r, 100*time.Millisecond, 3*time.Second)))
		}
		return at
	}

	switch r.IntN(12) {
	case 0, 1, 2, 3: // gives rights widely, or to some; a binding that exists may be narrowed by that
		b := task.Binding{Name: fmt.Sprintf("b%d", r.IntN(2)), Role: "editor", Namespaces: []string{"*"}, Subjects: simSubjects}
		if r.IntN(2) == 0 {
			b.Role, b.Until, b.Labels = pick(r, simRoles), soon(3), pick(r, simLabels)
			b.Namespaces, b.Subjects = []string{pick(r, []string{"*", "a", "ab", "a*"})}, slices.DeleteFunc(slices.Clone(simSubjects), func(s string) bool { return s == subject })
		}
		role, _ := v.Role(b.Role)
		b.RoleUID = role.UID
		_, err := s.PutBinding(ctx, v.Mod(re.keys.Binding(b.Name)), b, now)

		return "put a binding", err
	case 4:
		name := fmt.Sprintf("b%d", r.IntN(2))
		if mod := v.Mod(re.keys.Binding(name)); mod > 0 {
			return "delete a binding", s.DeleteBinding(ctx, name, mod, now)
		}
	case 5:
		verbs := pick(r, [][]string{{"read"}, {"read", "trigger"}, {"read", "create", "update", "pause", "trigger", "set"}})
		_, err := s.PutRole(ctx, v.Mod(re.keys.Role("own")), task.Role{Name: "own", UID: pick(r, []string{"1", "1", "2"}), Rules: []task.Rule{{Verbs: verbs, Objects: []string{"*"}}}}, now)

		return "put a role", err
	case 6:
		if mod := v.Mod(re.keys.Role("own")); mod > 0 && r.IntN(2) == 0 {
			return "delete a role", s.DeleteRole(ctx, "own", mod, now)
		}
	case 7, 8: // at most one subject is disabled
		for _, other := range simSubjects {
			if mod := v.Mod(re.keys.DisabledSubject(other)); mod > 0 {
				return "enable", s.EnableSubject(ctx, other, mod, now)
			}
		}

		return "disable", s.DisableSubject(ctx, subject, now)
	default: // tokens come and go, under the same ids, and so do the sessions of deleted ones
		if r.IntN(4) == 0 {
			id = pick(r, simSessions)
		}
		if created := v.Created(id); created > 0 {
			return "delete a token", s.DeleteToken(ctx, id, created)
		}

		if slices.Contains(simSessions, id) {
			return "nothing", nil // only callers create sessions
		}

		t := re.token(id, pick(r, simSubjects[:3]))
		t.Until = soon(5)
		if r.IntN(5) == 0 {
			t.Scope = &task.TokenScope{Role: pick(r, simRoles[:3]), RoleUID: access.BuiltInUID, Namespaces: pick(r, [][]string{nil, {"a"}})}
		}

		return "create a token", s.CreateToken(ctx, t)
	}

	return "nothing", nil
}

// call makes requests of one caller after another, until ctx ends.
func (re *revocations) call(ctx context.Context, r *rand.Rand) {
	for clock.Sleep(ctx, between(r, 2*time.Millisecond, 60*time.Millisecond)) {
		n := pick(r, re.nodes)
		caller := httpapi.Caller{Who: "cert:c0"}
		if r.IntN(6) > 0 {
			id := pick(r, simCredentials)
			t, ok := n.keeper.View().Verify(id, [32]byte(sum(id)))
			if !ok {
				continue
			}
			caller = httpapi.Caller{Who: t.Subject, Token: id}
		}

		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		request := n.request
		if r.IntN(5) == 0 || slices.Contains(simLinks, caller.Token) {
			request = n.requestSession
		}
		what, err := request(ctx, r, caller)
		cancel()

		if err == nil {
			re.count(what)
		} else {
			re.count(what + " refused")
		}
	}
}

func (n *apiNode) judge(now func() time.Time) *httpapi.Judge {
	return &httpapi.Judge{Keeper: n.keeper, Node: "n", Now: now, Late: func(task.AuditRecord) {}}
}

// request makes one request, as the handlers of the API do.
func (n *apiNode) request(ctx context.Context, r *rand.Rand, caller httpapi.Caller) (operation string, err error) {
	operation = pick(r, []string{"create-task", "create-task", "update-task", "update-task", "pause-task", "delete-task", "trigger-task", "trigger-task", "cancel-run", "set-secret", "freeze-namespace", "apply-tasks"})

	came := time.Now()
	rights := n.judge(time.Now).RightsOf(caller, operation)
	reads := n.direct
	s := n.store.As(rights)
	if r.IntN(2) == 0 {
		s = n.direct.As(rights)
	}

	ns, name := pick(r, simNamespaces), fmt.Sprintf("x%d", r.IntN(simTasks))
	ref := record.Ref{Namespace: ns, Name: name}
	draw := func(generation int64) (task.Task, task.Entry) {
		t := task.Task{Spec: task.Defaults(), UID: "u-" + name, Generation: generation}
		t.Name, t.Namespace, t.Action.Noop, t.Labels = name, ns, &task.Noop{}, pick(r, simLabels)

		return t, task.NewEntry(t, task.At(came), task.At(came))
	}

	switch operation {
	case "create-task":
		t, e := draw(1)
		if err := rights.Require(access.NeedsOfChange(nil, &t.Spec)...); err != nil {
			return operation, err
		}
		_, err = s.CreateTask(ctx, ref, t, e)
	case "update-task", "pause-task", "delete-task", "trigger-task", "apply-tasks":
		var st store.Stored
		if st, err = reads.Task(ctx, ref); err != nil {
			return operation, err
		}

		err = n.change(ctx, r, operation, rights, s, st, draw)
	case "cancel-run":
		var queued *clientv3.GetResponse
		if queued, err = reads.Client().Get(ctx, n.keys.QueueOf(ref), clientv3.WithPrefix(), clientv3.WithLimit(1)); err != nil || len(queued.Kvs) == 0 {
			return "nothing to cancel", err
		}
		if err = rights.RequireOnTask(ctx, reads, ref, access.Cancel, access.Runs); err == nil {
			k, _ := n.keys.ParseShard(string(queued.Kvs[0].Key))
			_, err = s.CancelQueued(ctx, ref, k.Run, task.NewActor(caller.Who), came)
		}
	case "set-secret":
		if err = rights.Require(access.Need{Verb: access.Set, Kind: access.Secrets, Namespace: ns}); err != nil {
			return operation, err
		}

		var old *clientv3.GetResponse
		if old, err = reads.Client().Get(ctx, n.keys.Secret(ns, name)); err == nil {
			mod := int64(0)
			if len(old.Kvs) > 0 {
				mod = old.Kvs[0].ModRevision
			}
			_, err = s.PutSecret(ctx, mod, record.Secret{Secret: task.Secret{Namespace: ns, Name: name}})
		}
	case "freeze-namespace":
		if err = rights.Require(access.Need{Verb: access.Pause, Kind: access.Tasks, Namespace: ns}); err != nil {
			return operation, err
		}

		var z store.FreezeRecord
		if z, err = reads.Freezes(ctx); err == nil {
			next := task.Freezes{Holding: slices.DeleteFunc(slices.Clone(z.Holding), func(z task.Freeze) bool { return z.Namespace == ns })}
			if len(next.Holding) == len(z.Holding) {
				next.Holding = append(next.Holding, task.Freeze{Namespace: ns, Since: task.At(came)})
			}
			_, err = s.SetFreezes(ctx, z, next)
		}
	}

	return operation, err
}

// change makes a request that changes a task which exists.
func (n *apiNode) change(ctx context.Context, r *rand.Rand, operation string, rights *httpapi.Rights, s *store.Store, st store.Stored, draw func(int64) (task.Task, task.Entry)) error {
	next, entry := draw(st.Task.Generation + 1)

	switch operation {
	case "delete-task":
		if err := rights.Require(access.NeedsOfChange(&st.Task.Spec, nil)...); err != nil {
			return err
		}
		_, err := s.DeleteTaskLeavingTombstone(ctx, st, record.Tombstone{UID: st.Task.UID, DeletedAt: task.At(time.Now())})

		return err
	case "trigger-task":
		if err := rights.Require(access.Need{Verb: access.Trigger, Kind: access.Tasks, Namespace: st.Ref.Namespace, Labels: st.Task.Labels}); err != nil {
			return err
		}

		now := time.Now()
		run := task.Run{ID: task.ManualRunID(now, "uuuu"), UID: st.Task.UID, Namespace: st.Ref.Namespace, Task: st.Ref.Name, ScheduledTime: task.At(now), State: task.Queued, Trigger: task.TriggerManual, Reason: task.ReasonManual, Attempt: 1, CreatedAt: task.At(now)}
		_, err := s.Enqueue(ctx, st, task.Waiting{Run: run})

		return err
	case "pause-task":
		labels := st.Task.Labels
		next.Spec, next.Paused = st.Task.Spec, !st.Task.Paused
		next.Labels, entry = labels, task.NewEntry(next, task.At(time.Now()), task.At(time.Now()))
	}

	needs := access.NeedsOfChange(&st.Task.Spec, &next.Spec)
	if len(needs) == 0 {
		needs = []access.Need{{Verb: access.Update, Kind: access.Tasks, Namespace: st.Ref.Namespace, Labels: st.Task.Labels}}
	}
	if err := rights.Require(needs...); err != nil {
		return err
	}

	if operation != "apply-tasks" {
		_, err := s.UpdateTask(ctx, st, next, entry)
		return err
	}

	// A batch also creates a task, for which the caller needs other rights.
	one := task.Task{Spec: task.Defaults(), UID: "u-batch", Generation: 1}
	one.Name, one.Namespace, one.Action.Noop, one.Labels = fmt.Sprintf("y%d", r.IntN(1000)), st.Ref.Namespace, &task.Noop{}, pick(r, simLabels)
	part := rights.Part()
	if err := part.Require(access.NeedsOfChange(nil, &one.Spec)...); err != nil {
		return err
	}
	rights.Include(part)

	_, _, err := s.ChangeTasks(ctx, []store.Change{
		{Old: &st, New: &store.Stored{Ref: st.Ref, Task: next, Entry: entry}},
		{New: &store.Stored{Ref: record.Ref{Namespace: one.Namespace, Name: one.Name}, Task: one, Entry: task.NewEntry(one, task.At(time.Now()), task.At(time.Now()))}},
	})

	return err
}

// slowLink connects the client of a node to the store: its watch stalls, and its writes are late.
type slowLink struct {
	world *revocations

	mu      sync.Mutex
	rng     *rand.Rand
	stalled bool
	moved   chan struct{} // closed and replaced when stalled changes
}

func (l *slowLink) draw(f func(r *rand.Rand)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.rng)
}

func (l *slowLink) setStalled(yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.stalled = yes
	close(l.moved)
	l.moved = make(chan struct{})
}

// stallAndGoOn stalls the watch at random until ctx ends.
func (l *slowLink) stallAndGoOn(ctx context.Context) {
	defer l.setStalled(false)
	for {
		var works, stalls time.Duration
		l.draw(func(r *rand.Rand) {
			works, stalls = between(r, 10*time.Millisecond, 2*time.Second), between(r, 10*time.Millisecond, 4*time.Second)
		})

		if !clock.Sleep(ctx, works) {
			return
		}
		l.setStalled(true)
		if !clock.Sleep(ctx, stalls) {
			return
		}
		l.setStalled(false)
	}
}

var errNoAnswer = status.Error(codes.Unavailable, "the connection is lost")

func (l *slowLink) wrap(c *clientv3.Client) {
	c.Watcher = stalledWatcher{c.Watcher, l}
	c.KV = etcdhook.KV(c.KV, func(ctx context.Context, op clientv3.Op, next etcdhook.Do) (clientv3.OpResponse, error) {
		var before, after time.Duration
		var fate int
		l.draw(func(r *rand.Rand) {
			before, after, fate = between(r, 0, 3*time.Millisecond), between(r, 0, 3*time.Millisecond), r.IntN(100)
			if r.IntN(5) == 0 {
				before = between(r, 0, time.Second)
			}
		})

		if etcdhook.Writes(op) {
			switch {
			case fate < 4: // the request is lost
				return clientv3.OpResponse{}, errNoAnswer
			case fate < 14: // the request arrives when its sender has given up
				l.world.late.Go(func() {
					clock.Sleep(l.world.life, before+time.Second)
					_, _ = next(context.WithoutCancel(ctx), op)
				})
				return clientv3.OpResponse{}, errNoAnswer
			}
		}

		if !clock.Sleep(ctx, before) {
			return clientv3.OpResponse{}, ctx.Err()
		}

		resp, err := next(ctx, op)
		if fate >= 95 { // the answer is lost
			return clientv3.OpResponse{}, errNoAnswer
		}
		clock.Sleep(ctx, after)

		return resp, err
	})
}

// stalledWatcher delivers events only while its link is not stalled.
type stalledWatcher struct {
	clientv3.Watcher
	link *slowLink
}

// Watch implements clientv3.Watcher.
func (w stalledWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	in, out := w.Watcher.Watch(ctx, key, opts...), make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)

		for r := range in {
			for {
				w.link.mu.Lock()
				stalled, moved := w.link.stalled, w.link.moved
				w.link.mu.Unlock()
				if !stalled {
					break
				}

				select {
				case <-moved:
				case <-ctx.Done():
					return
				}
			}

			select {
			case out <- r:
			case <-ctx.Done():
				return
			}
		}
	}()

	return out
}

// TestRevocations_NoWriteCommitsAfterItsRightsAreGone is the property: G27 and G28 over many seeds.
//
// Verifies: G27
func TestRevocations_NoWriteCommitsAfterItsRightsAreGone(t *testing.T) {
	seeds := uint64(200)
	if testing.Short() {
		seeds = 15
	}

	total := map[string]int{}
	for seed := range seeds {
		r := simulateRevocations(t, seed)
		for _, v := range r.violations {
			t.Errorf("seed %d: %s", seed, v)
		}
		for what, n := range r.counts {
			total[what] += n
		}
		if t.Failed() {
			break
		}
	}

	for _, what := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%7d %s", total[what], what)
	}

	// What the property depends on must have been reached.
	for _, what := range []string{
		"put a binding", "delete a binding", "put a role", "delete a role", "disable", "enable", "create a token", "delete a token",
		"create-task", "update-task", "pause-task", "delete-task", "trigger-task", "cancel-run", "set-secret", "freeze-namespace", "apply-tasks", "create-task refused",
		"create-session", "delete-session", "create-login-link", "use-login-link", "use-login-link refused",
	} {
		if total[what] == 0 {
			t.Errorf("never reached: %s", what)
		}
	}
}

// Each mutant of the authorization must break the property.
func TestMutants_OfAuthorizationAreCaught(t *testing.T) {
	promises := map[string]string{"audit-apart": "G28"} // of the others: G27

	const maxSeeds = 300
	for _, name := range mutant.Names(mutant.Authorization) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if is, _ := mutant.InProcess(t, name); !is {
				return
			}

			promise := cmp.Or(promises[name], "G27")
			for seed := range uint64(maxSeeds) {
				for _, v := range simulateRevocations(t, seed).violations {
					// A write that should not have committed, not only a change of access that looks wrong.
					if v.Promise == promise && (v.Promise == "G28" || strings.Contains(v.Key, "/audit/")) {
						t.Logf("caught by seed %d: %s", seed, v)
						return
					}
				}
			}

			t.Errorf("not caught by %d seeds", maxSeeds)
		})
	}
}
