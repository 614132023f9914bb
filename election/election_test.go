package election_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv/kvtest/leaktest"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/election"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded/embeddedtest"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

func TestMain(m *testing.M) {
	leaktest.Main(m)
}

const prefix = "/carillon/"

// candidate runs an election and records what happens.
type candidate struct {
	*election.Election
	name   string
	terms  chan election.Term // one for each call of lead
	causes chan error         // the cause with which each context of lead ended
	end    func() error       // ends Run and returns its error

	leading atomic.Bool // lead has been called, and its context has not ended

	mu     sync.Mutex
	leases []clientv3.LeaseID
}

func (c *candidate) lastLease() clientv3.LeaseID {
	c.mu.Lock()
	defer c.mu.Unlock()

	for i := len(c.leases) - 1; i >= 0; i-- {
		if c.leases[i] != 0 {
			return c.leases[i]
		}
	}

	return 0
}

func campaign(t *testing.T, c *kv.Client, name string, cfg election.Config) *candidate {
	t.Helper()
	cand := &candidate{name: name, terms: make(chan election.Term, 100), causes: make(chan error, 100)}

	cfg.Prefix, cfg.Node = prefix, name
	if cfg.TTL == 0 {
		cfg.TTL = time.Minute // so that no session is lost on an overloaded machine
	}

	cfg.Leases = func(id clientv3.LeaseID) error {
		cand.mu.Lock()
		defer cand.mu.Unlock()

		cand.leases = append(cand.leases, id)

		return nil
	}

	cand.Election = election.New(c, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- cand.Run(ctx, func(ctx context.Context, term election.Term) error {
			cand.leading.Store(true)
			cand.terms <- term
			<-ctx.Done()
			cand.leading.Store(false)
			cand.causes <- context.Cause(ctx)

			return nil
		})
	}()

	cand.end = sync.OnceValue(func() error {
		cancel()

		select {
		case err := <-ended:
			return err
		case <-time.After(time.Minute):
			return errors.New("Run did not return")
		}
	})

	t.Cleanup(func() {
		if err := cand.end(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	})

	return cand
}

func within[T any](t *testing.T, d time.Duration, what string, c <-chan T) T {
	t.Helper()

	select {
	case v := <-c:
		return v
	case <-time.After(d):
		t.Fatalf("not in %s: %s", d, what)
		panic("unreachable")
	}
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)

	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// keys returns the candidates' keys, the oldest first.
func keys(t *testing.T, c *kv.Client) []string {
	t.Helper()
	resp, err := c.Get(t.Context(), prefix+"leader/", clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		t.Fatal(err)
	}

	var found []string
	for _, e := range resp.Kvs {
		found = append(found, string(e.Key))
	}

	return found
}

// lead waits until one of the candidates leads.
func lead(t *testing.T, among ...*candidate) (*candidate, election.Term) {
	t.Helper()
	var leader *candidate
	eventually(t, "a leader", func() bool {
		for _, c := range among {
			if c.leading.Load() {
				leader = c
			}
		}

		return leader != nil
	})

	return leader, within(t, time.Minute, "its term", leader.terms)
}

func TestElection_OneLeads(t *testing.T) {
	s := kvtest.StartServer(t)
	all := []*candidate{}
	for i := range 3 {
		all = append(all, campaign(t, s.Dial(), fmt.Sprintf("n%d", i), election.Config{}))
	}

	leader, term := lead(t, all...)
	eventually(t, "three campaigns", func() bool { return len(keys(t, s.Client())) == 3 })

	if want := fmt.Sprintf("%sleader/%x", prefix, leader.lastLease()); term.Fence.Key != want || keys(t, s.Client())[0] != want || term.Node != leader.name {
		t.Errorf("%s leads with %+v, want key %s", leader.name, term, want)
	}

	res, err := kv.Direct(s.Client()).Commit(t.Context(), kv.Txn{If: []clientv3.Cmp{term.Fence.Compare()}, Then: []clientv3.Op{clientv3.OpGet(term.Fence.Key)}})
	if err != nil || !res.Succeeded || string(res.Responses[0].GetResponseRange().Kvs[0].Value) != leader.name {
		t.Errorf("%+v, %v", res, err)
	}

	for _, c := range all {
		if c != leader && (c.leading.Load() || len(c.terms) > 0) {
			t.Errorf("%s leads, too", c.name)
		}
	}
}

// With a client in the same process, an empty range end would reach all keys behind the leader's.
func TestElection_InProcess(t *testing.T) {
	s := embeddedtest.StartServer(t)
	if _, err := s.Client().Put(t.Context(), prefix+"nodes/a", "behind leader/"); err != nil {
		t.Fatal(err)
	}

	a := campaign(t, s.InProcess(), "a", election.Config{})
	term := within(t, time.Minute, "a's term", a.terms)
	b := campaign(t, s.InProcess(), "b", election.Config{})
	eventually(t, "b's campaign", func() bool { return len(keys(t, s.Client())) == 2 })

	select {
	case cause := <-a.causes:
		t.Fatalf("a stepped down: %v", cause)
	case <-time.After(300 * time.Millisecond): // nothing should happen
	}

	if err := a.end(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}

	if next := within(t, time.Minute, "b's term", b.terms); next.Fence.CreateRevision <= term.Fence.CreateRevision {
		t.Errorf("term %d follows %d", next.Fence.CreateRevision, term.Fence.CreateRevision)
	}
}

func TestElection_SucceedsARevokedLeader(t *testing.T) {
	s := kvtest.StartServer(t)
	a, b := campaign(t, s.Dial(), "a", election.Config{TTL: 10 * time.Minute}), campaign(t, s.Dial(), "b", election.Config{TTL: 10 * time.Minute})
	leader, term := lead(t, a, b)
	next := b
	if leader == b {
		next = a
	}

	eventually(t, "both campaigns", func() bool { return len(keys(t, s.Client())) == 2 })

	if _, err := s.Client().Revoke(t.Context(), leader.lastLease()); err != nil {
		t.Fatal(err)
	}

	// This is before the next renewal of the session, because the key is watched.
	if cause := within(t, time.Minute, "the end of the term", leader.causes); !errors.Is(cause, election.ErrLost) {
		t.Errorf("the cause is %v", cause)
	}

	following := within(t, time.Minute, "the next term", next.terms)
	if following.Fence.CreateRevision <= term.Fence.CreateRevision {
		t.Errorf("term %d follows %d", following.Fence.CreateRevision, term.Fence.CreateRevision)
	}

	res, err := kv.Direct(s.Client()).Commit(t.Context(), kv.Txn{If: []clientv3.Cmp{term.Fence.Compare()}})
	if err != nil || res.Succeeded {
		t.Errorf("the former term's fence still holds: %v", err)
	}

	eventually(t, "the former leader campaigns again", func() bool { return len(keys(t, s.Client())) == 2 })
}

func TestElection_StepsDownWhenItsKeyIsTouched(t *testing.T) {
	s := kvtest.StartServer(t)
	a := campaign(t, s.Dial(), "a", election.Config{TTL: 10 * time.Minute})

	for name, touch := range map[string]func(key string) error{
		"deleted":     func(key string) error { _, err := s.Client().Delete(t.Context(), key); return err },
		"overwritten": func(key string) error { _, err := s.Client().Put(t.Context(), key, "mallory"); return err },
	} {
		term := within(t, time.Minute, "a term", a.terms)
		if err := touch(term.Fence.Key); err != nil {
			t.Fatal(err)
		}

		if cause := within(t, time.Minute, "the end of the term", a.causes); !errors.Is(cause, election.ErrLost) {
			t.Errorf("%s: the cause is %v", name, cause)
		}
	}

	term := within(t, time.Minute, "a term", a.terms)
	if got := keys(t, s.Client()); len(got) != 1 || got[0] != term.Fence.Key {
		t.Errorf("the keys are %v, want only %s: what was detached from its lease must go, too", got, term.Fence.Key)
	}
}

// A campaign whose session is lost while it waits starts over. etcd's own campaign would wait forever, or
// win without a key.
func TestElection_CampaignsAnewWhenItsSessionIsLost(t *testing.T) {
	s := kvtest.StartServer(t)
	a := campaign(t, s.Dial(), "a", election.Config{})
	within(t, time.Minute, "a's term", a.terms)
	b := campaign(t, s.Dial(), "b", election.Config{TTL: 2 * time.Second}) // reads every second
	eventually(t, "b's campaign", func() bool { return len(keys(t, s.Client())) == 2 })

	first := b.lastLease()
	if _, err := s.Client().Revoke(t.Context(), first); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) { // it may have expired by itself
		t.Fatal(err)
	}

	eventually(t, "b's next campaign", func() bool { return b.lastLease() != first && len(keys(t, s.Client())) == 2 })

	if err := a.end(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}

	within(t, time.Minute, "b's term", b.terms)
}

func TestElection_ResignsWhenItsContextEnds(t *testing.T) {
	s := kvtest.StartServer(t)
	a := campaign(t, s.Dial(), "a", election.Config{TTL: 10 * time.Minute})
	within(t, time.Minute, "a's term", a.terms)
	b := campaign(t, s.Dial(), "b", election.Config{TTL: 10 * time.Minute})
	eventually(t, "b's campaign", func() bool { return len(keys(t, s.Client())) == 2 })

	if err := a.end(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}

	within(t, time.Minute, "b's term", b.terms)

	if a.leading.Load() || len(keys(t, s.Client())) != 1 {
		t.Errorf("the keys are %v", keys(t, s.Client()))
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	if n := len(a.leases); n != 2 || a.leases[0] == 0 || a.leases[1] != 0 {
		t.Errorf("the announced leases are %x", a.leases)
	}

	if resp, err := s.Client().TimeToLive(t.Context(), a.leases[0]); err != nil || resp.TTL != -1 {
		t.Errorf("the lease lives on: %+v, %v", resp, err)
	}
}

// thief deletes the leader key immediately before the write that confirms it, as if Campaign had returned
// nil without a key.
type thief struct {
	clientv3.KV
	mu     sync.Mutex
	thefts int
}

type stolenTxn struct {
	clientv3.Txn
	steal func()
}

func (s stolenTxn) If(c ...clientv3.Cmp) clientv3.Txn { s.Txn = s.Txn.If(c...); return s }
func (s stolenTxn) Else(o ...clientv3.Op) clientv3.Txn {
	s.Txn = s.Txn.Else(o...)
	return s
}

func (s stolenTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	s.Txn = s.Txn.Then(ops...)
	return s
}

func (s stolenTxn) Commit() (*clientv3.TxnResponse, error) {
	s.steal()
	return s.Txn.Commit()
}

func (th *thief) Txn(ctx context.Context) clientv3.Txn {
	return stolenTxn{Txn: th.KV.Txn(ctx), steal: func() {
		th.mu.Lock()
		defer th.mu.Unlock()

		resp, err := th.Get(ctx, prefix+"leader/", clientv3.WithPrefix())
		if err == nil && len(resp.Kvs) == 1 && th.thefts < 2 {
			th.thefts++
			_, _ = th.Delete(ctx, string(resp.Kvs[0].Key))
		}
	}}
}

func (th *thief) count() int {
	th.mu.Lock()
	defer th.mu.Unlock()
	return th.thefts
}

func TestElection_BelievesOnlyAConfirmedKey(t *testing.T) {
	s := kvtest.StartServer(t)
	c := s.Dial()
	th := &thief{KV: c.KV}
	c.KV = th
	a := campaign(t, c, "a", election.Config{})
	term := within(t, time.Minute, "a term", a.terms)

	if n := th.count(); n != 2 {
		t.Errorf("a leads after %d thefts", n)
	}

	if got := keys(t, s.Client()); len(got) != 1 || got[0] != term.Fence.Key {
		t.Errorf("a leads with %s, the keys are %v", term.Fence.Key, got)
	}
}

// deafWatcher confirms watches on keys and delivers nothing, so etcd's Campaign waits forever.
type deafWatcher struct{ clientv3.Watcher }

func (deafWatcher) Watch(ctx context.Context, _ string, _ ...clientv3.OpOption) clientv3.WatchChan {
	c := make(chan clientv3.WatchResponse)
	context.AfterFunc(ctx, func() { close(c) })
	return c
}

func TestElection_LeadsThoughItsWatchIsDeaf(t *testing.T) {
	s := kvtest.StartServer(t)
	a := campaign(t, s.Dial(), "a", election.Config{})
	within(t, time.Minute, "a's term", a.terms)
	c := s.Dial()
	c.Watcher = deafWatcher{c.Watcher}
	b := campaign(t, c, "b", election.Config{TTL: 2 * time.Second}) // reads every second
	eventually(t, "b's campaign", func() bool { return len(keys(t, s.Client())) == 2 })

	if err := a.end(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}

	within(t, time.Minute, "b's term", b.terms)
}

// The connection of a waiting candidate breaks and comes back. The candidate keeps its place.
func TestElection_KeepsItsPlaceWhenItsConnectionBreaks(t *testing.T) {
	s := kvtest.StartServer(t)
	p := s.Proxy()
	a := campaign(t, s.Client(), "a", election.Config{})
	within(t, time.Minute, "the first term", a.terms)
	b := campaign(t, p.Client(kv.Config{}), "b", election.Config{})
	eventually(t, "two candidates", func() bool { return len(keys(t, s.Client())) == 2 })
	place := keys(t, s.Client())[1]

	for range 3 {
		p.Cut()
		p.Mend()
		time.Sleep(200 * time.Millisecond) // enough time to give up, if it did
	}

	if err := a.end(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}

	if term := within(t, time.Minute, "the second term", b.terms); term.Fence.Key != place {
		t.Errorf("it leads with key %s, it waited with %s", term.Fence.Key, place)
	}
}

func TestElection_ResignsAndBacksOffWhenLeadFails(t *testing.T) {
	c := kvtest.Start(t)
	core, logs := observer.New(zap.ErrorLevel)
	e := election.New(c, election.Config{Prefix: prefix, Node: "a", Logger: zap.New(core)})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	broken := errors.New("broken")
	var begun []time.Time
	err := e.Run(ctx, func(context.Context, election.Term) error {
		if begun = append(begun, time.Now()); len(begun) == 4 {
			cancel()
		}
		return broken
	})

	if !errors.Is(err, context.Canceled) || len(begun) != 4 {
		t.Fatalf("%v after %d terms", err, len(begun))
	}

	if total := begun[3].Sub(begun[0]); total < 350*time.Millisecond { // half of 100, 200 and 400 ms
		t.Errorf("four failing terms in %s", total)
	}

	if n := logs.Len(); n != 3 {
		t.Errorf("%d failures were logged", n)
	}

	if got := keys(t, c); len(got) != 0 {
		t.Errorf("the keys are %v", got)
	}
}

func TestElection_RecoversFromAnOutage(t *testing.T) {
	const failed = "cannot campaign; retrying"
	s := kvtest.StartServer(t)
	p := s.Proxy()
	core, logs := observer.New(zap.InfoLevel)
	a := campaign(t, p.Client(kv.Config{CallTimeout: 500 * time.Millisecond}), "a", election.Config{TTL: time.Second, Logger: zap.New(core)})
	term := within(t, time.Minute, "a term", a.terms)
	p.Cut()

	if cause := within(t, time.Minute, "the end of the term", a.causes); !errors.Is(cause, election.ErrLost) {
		t.Errorf("the cause is %v", cause)
	}

	// On an overloaded machine, a term of a second may be lost and another one won before the connection is
	// cut.
	eventually(t, "a failed campaign", func() bool {
		last := ""
		for _, l := range logs.All() {
			if l.Message == failed || l.Message == "elected" {
				last = l.Message
			}
		}

		return last == failed && !a.leading.Load()
	})

	time.Sleep(2 * time.Second) // several more attempts, without a log entry

	if a.leading.Load() {
		t.Error("it leads without a lease")
	}

	silent := false // it has logged the failure, and logs no more until it is elected
	for _, l := range logs.All() {
		switch {
		case l.Message == "elected":
			silent = false
		case l.Message == failed && silent:
			t.Error("one outage was logged again")
		case l.Message == failed:
			silent = true
		}
	}

	for len(a.terms) > 0 {
		term = <-a.terms
	}

	p.Mend()
	next := within(t, time.Minute, "the next term", a.terms)
	if next.Fence.CreateRevision <= term.Fence.CreateRevision {
		t.Errorf("term %d follows %d", next.Fence.CreateRevision, term.Fence.CreateRevision)
	}
}

func TestElection_ALeaderWithNothingBehindItLosesItsTerm(t *testing.T) {
	c := kvtest.Start(t)
	var gone atomic.Bool
	why := errors.New("the engine stands still")
	e := election.New(c, election.Config{Prefix: "/alive/", Node: "n1", TTL: time.Second, Alive: func() error {
		if gone.Load() {
			return why
		}
		return nil
	}})

	ctx, cancel := context.WithCancel(t.Context())
	causes := make(chan error, 100)
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = e.Run(ctx, func(ctx context.Context, _ election.Term) error {
			gone.Store(true)
			<-ctx.Done()
			causes <- context.Cause(ctx)

			return nil
		})
	})

	defer wg.Wait()
	defer cancel()

	// On an overloaded machine, a term of a second may also end because nothing was renewed.
	for cause := error(nil); !errors.Is(cause, why); {
		select {
		case cause = <-causes:
			if !errors.Is(cause, election.ErrLost) {
				t.Fatalf("the term ended with %v", cause)
			}
		case <-time.After(time.Minute):
			t.Fatal("it leads on")
		}
	}
}
