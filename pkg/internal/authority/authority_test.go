package authority_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// caller writes on behalf of a subject, as the API does.
type caller struct {
	keeper *authority.Keeper
	who    access.Caller
	need   access.Need
	known  []task.AuditObject // what the handler knows of the objects
	before func()             // called when a write has been authorised, before it is sent

	mu   sync.Mutex
	late []task.AuditRecord
}

var errRefused = errors.New("refused")

func (c *caller) Authorize(ctx context.Context, lost *store.Proof) (store.Proof, error) {
	v := c.keeper.View()
	if lost != nil {
		var err error
		if v, err = c.keeper.AwaitChange(ctx, *lost); err != nil {
			return store.Proof{}, err
		}
	}

	if !v.Allows(c.who, c.need, now) {
		return store.Proof{}, errRefused
	}

	p := store.Proof{Fence: v.Fence, Token: c.who.Token, TokenCreated: v.Created(c.who.Token)}
	if c.before != nil {
		c.before()
	}

	return p, nil
}

func (c *caller) Record() task.AuditRecord {
	return task.AuditRecord{ID: record.NewAuditID(now), Time: task.At(now), Subject: c.who.Subject, Token: c.who.Token, Operation: "test", Objects: c.known}
}

func (c *caller) GrantsAccess() bool { return false }

func (c *caller) Committed([]int, int64) {}

func (c *caller) Late(r task.AuditRecord) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late = append(c.late, r)
}

type world struct {
	*testing.T
	store  *store.Store
	keeper *authority.Keeper
	memory *kvmem.Store
	etcd   *kv.Client
}

func newWorld(t *testing.T) *world {
	t.Helper()
	memory := kvmem.New(kvmem.Config{})
	t.Cleanup(memory.Close)
	etcd := kvtest.ClientOf(t, memory)
	keys, err := record.NewKeys("/test")
	if err != nil {
		t.Fatal(err)
	}

	w := &world{T: t, memory: memory, store: store.New(etcd, kv.Direct(etcd), keys), keeper: authority.New(etcd, keys, nil), etcd: etcd}
	first := store.OpenAccess()
	first.Bindings = []task.Binding{{Name: "editors", Role: "editor", RoleUID: access.BuiltInUID, Subjects: []string{"user:ann"}, Namespaces: []string{"default"}}}
	first.Tokens = []record.Token{{Token: task.Token{ID: "t1", Subject: "user:ann"}, Hash: hex.EncodeToString(sum("secret"))}}

	if _, _, err := w.store.Bootstrap(t.Context(), 1, now, first); err != nil {
		t.Fatal(err)
	}

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.keeper.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })

	if _, err := w.keeper.AwaitLoaded(t.Context()); err != nil {
		t.Fatal(err)
	}

	return w
}

func sum(s string) []byte {
	h := sha256.Sum256([]byte(s))
	return h[:]
}

func (w *world) ann(token string) *caller {
	return &caller{keeper: w.keeper, who: access.Caller{Subject: "user:ann", Token: token}, need: access.Need{Verb: access.Create, Kind: access.Tasks, Namespace: "default"}}
}

func (w *world) create(c *caller, name string) error {
	s := task.Defaults()
	s.Name, s.Namespace, s.Action.Noop = name, "default", &task.Noop{}
	ref := record.Ref{Namespace: "default", Name: name}
	_, err := w.store.As(c).CreateTask(w.Context(), ref, task.Task{Spec: s, UID: "u-" + name, Generation: 1}, task.Entry{})

	return err
}

// exists reports whether a task was created.
func (w *world) exists(name string) bool {
	_, err := w.store.Task(w.Context(), record.Ref{Namespace: "default", Name: name})
	return !errors.Is(err, task.ErrNotFound)
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func TestKeeper_VerifiesTokens(t *testing.T) {
	w := newWorld(t)
	v := w.keeper.View()

	if token, ok := v.Verify("t1", [32]byte(sum("secret"))); !ok || token.Subject != "user:ann" {
		t.Errorf("the right secret: %+v, %v", token, ok)
	}
	if _, ok := v.Verify("t1", [32]byte(sum("wrong"))); ok {
		t.Error("a wrong secret was accepted")
	}
	if _, ok := v.Verify("t2", [32]byte{}); ok {
		t.Error("an unknown token was accepted, by the hash of none")
	}
}

// Verifies: G28
func TestWrite_IsAuditedInItsOwnTransaction(t *testing.T) {
	w := newWorld(t)
	c := w.ann("t1")
	c.known = []task.AuditObject{{Kind: "task", Namespace: "default", Name: "a", UID: "u-a", Generation: 1}}
	w.must(w.create(c, "a"))

	records, _, err := w.store.AuditRecords(t.Context(), "", 10)
	w.must(err)
	if len(records) != 1 {
		t.Fatalf("%d audit records, want 1: %+v", len(records), records)
	}

	r, st := records[0], w.revision("a")
	if r.Subject != "user:ann" || r.Token != "t1" || r.Revision != st || len(r.Objects) != 1 {
		t.Fatalf("%+v; the task is of revision %d", r, st)
	}
	if o := r.Objects[0]; o.Kind != "task" || o.Namespace != "default" || o.Name != "a" || o.Change != "put" || o.UID != "u-a" || o.Generation != 1 || o.Hash == "" {
		t.Errorf("object %+v", o)
	}
}

func (w *world) revision(name string) int64 {
	st, err := w.store.Task(w.Context(), record.Ref{Namespace: "default", Name: name})
	w.must(err)

	return st.Task.Revision
}

// TestWrite_NeverCommitsAfterItsRightsAreGone takes away what authorised a write, each way,
// after the write was authorised and before it is sent.
//
// Verifies: G27
func TestWrite_NeverCommitsAfterItsRightsAreGone(t *testing.T) {
	for what, revoke := range map[string]func(*world) error{
		"the binding was deleted": func(w *world) error {
			return w.store.DeleteBinding(w.Context(), "editors", w.keeper.View().Mod(w.store.Keys().Binding("editors")), now)
		},
		"the binding was narrowed": func(w *world) error {
			_, err := w.store.PutBinding(w.Context(), w.keeper.View().Mod(w.store.Keys().Binding("editors")),
				task.Binding{Name: "editors", Role: "viewer", RoleUID: access.BuiltInUID, Subjects: []string{"user:ann"}, Namespaces: []string{"default"}}, now)
			return err
		},
		"the user was disabled": func(w *world) error { return w.store.DisableSubject(w.Context(), "user:ann", now) },
		"the token was deleted": func(w *world) error {
			return w.store.DeleteToken(w.Context(), "t1", w.keeper.View().Created("t1"))
		},
		"the token was deleted and created again": func(w *world) error {
			if err := w.store.DeleteToken(w.Context(), "t1", w.keeper.View().Created("t1")); err != nil {
				return err
			}
			return w.store.CreateToken(w.Context(), record.Token{Token: task.Token{ID: "t1", Subject: "user:bob"}, Hash: hex.EncodeToString(sum("other"))})
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			c := w.ann("t1")
			c.before = sync.OnceFunc(func() { w.must(revoke(w)) })

			if err := w.create(c, "a"); !errors.Is(err, errRefused) || w.exists("a") {
				t.Errorf("the write was made: %v, exists %v", err, w.exists("a"))
			}

			records, _, err := w.store.AuditRecords(t.Context(), "", 10)
			w.must(err)
			if len(records) != 0 {
				t.Errorf("a write that was not made is on record: %+v", records)
			}
		})
	}
}

// TestWrite_IsAuthorizedAgain changes access records of somebody else between the
// authorisation of a write and its commit.
func TestWrite_IsAuthorizedAgain(t *testing.T) {
	w := newWorld(t)
	c := w.ann("t1")
	changes := 0
	c.before = func() {
		if changes++; changes <= 3 {
			w.must(w.store.DisableSubject(t.Context(), "user:someone-"+string(rune('a'+changes)), now.Add(time.Duration(changes)*time.Minute)))
		}
	}

	w.must(w.create(c, "a"))
	if changes != 4 {
		t.Errorf("authorised %d times, want 4", changes)
	}

	c.before = func() {
		changes++
		w.must(w.store.DisableSubject(t.Context(), "user:more-"+string(rune('a'+changes)), now.Add(time.Duration(changes)*time.Minute)))
	}
	if err := w.create(c, "b"); !errors.Is(err, task.ErrUnavailable) || w.exists("b") {
		t.Errorf("with access records that change all the time: %v", err)
	}
}

func TestWrite_TellsAConflictFromALostFence(t *testing.T) {
	w := newWorld(t)
	w.must(w.create(w.ann("t1"), "a"))
	c := w.ann("t1")
	authorized := 0
	c.before = func() { authorized++ }

	if err := w.create(c, "a"); !errors.Is(err, task.ErrExists) || authorized != 1 {
		t.Errorf("a task that exists: %v, authorised %d times", err, authorized)
	}
}

func TestFence_IsWrittenTenTimesASecondAtMost(t *testing.T) {
	w := newWorld(t)
	for i := range record.FenceWrites {
		w.must(w.store.DisableSubject(t.Context(), "user:"+string(rune('a'+i)), now.Add(time.Minute)))
	}

	if err := w.store.DisableSubject(t.Context(), "user:z", now.Add(time.Minute+900*time.Millisecond)); !errors.Is(err, task.ErrTooMany) {
		t.Errorf("the eleventh within a second: %v", err)
	}
	w.must(w.store.DisableSubject(t.Context(), "user:z", now.Add(time.Minute+time.Second)))
}

// TestKeeper_CompilesOnceForManyChanges changes records as quickly as it can: the node must not spend all of its time on
// views that nobody needs, and must know the last change soon.
func TestKeeper_CompilesOnceForManyChanges(t *testing.T) {
	w := newWorld(t)
	began := time.Now()
	views := 0
	all := make(chan error)
	last := "last"

	go func() {
		_, err := w.keeper.Await(w.Context(), func(v *authority.View) bool { views++; return v.Created(last) > 0 })
		all <- err
	}()

	for i := range 300 {
		id := fmt.Sprint("n", i)
		if i == 299 {
			id = last
		}
		w.must(w.store.CreateToken(t.Context(), record.Token{Token: task.Token{ID: id, Subject: "service:x"}, Hash: hex.EncodeToString(sum(id))}))
	}
	w.must(<-all)

	if most := int(time.Since(began)/(20*time.Millisecond)) + 3; views > most {
		t.Errorf("%d views within %v, want at most %d", views, time.Since(began), most)
	}
}

func TestProven(t *testing.T) {
	w := newWorld(t)
	w.must(w.keeper.Proven(t.Context()))

	stale := authority.New(w.etcd, w.store.Keys(), nil) // its watch never begins
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()

	if err := stale.Proven(ctx); !errors.Is(err, task.ErrUnavailable) {
		t.Errorf("a copy that was never filled: %v", err)
	}
	if stale.View().Allows(access.Caller{Subject: access.RootSubject}, access.Need{Verb: access.Read, Kind: access.Tasks}, now) {
		t.Error("before the first list something is allowed")
	}
}

func TestNamespace_WithTasksIsNotDeleted(t *testing.T) {
	w := newWorld(t)
	mod := w.keeper.View().Mod(w.store.Keys().Namespace("default"))
	w.must(w.create(w.ann("t1"), "a"))

	if err := w.store.DeleteNamespace(t.Context(), "default", mod, store.FreezeRecord{}, now.Add(time.Minute)); !errors.Is(err, task.ErrConflict) {
		t.Errorf("a namespace that has tasks: %v", err)
	}

	st, err := w.store.Task(t.Context(), record.Ref{Namespace: "default", Name: "a"})
	w.must(err)
	_, err = w.store.DeleteTaskLeavingTombstone(t.Context(), st, record.Tombstone{})
	w.must(err)
	w.must(w.store.DeleteNamespace(t.Context(), "default", mod, store.FreezeRecord{}, now.Add(time.Minute)))
}
