package api

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// etcdOfTokens answers reads of tokens after a second each, and counts them.
type etcdOfTokens struct {
	mu      sync.Mutex
	reads   int
	ids     int
	atOnce  int
	records map[string]record.Token
	err     error
}

func (e *etcdOfTokens) read(_ context.Context, ids []string) ([]store.FoundToken, error) {
	e.mu.Lock()
	e.reads++
	e.ids += len(ids)
	if e.atOnce++; e.atOnce > 1 {
		panic("two reads at once")
	}
	e.mu.Unlock()

	time.Sleep(time.Second)

	e.mu.Lock()
	defer e.mu.Unlock()

	e.atOnce--

	found := make([]store.FoundToken, len(ids))
	for i, id := range ids {
		if t, ok := e.records[id]; ok {
			found[i].Token = t
		} else {
			found[i].Err = task.ErrNotFound
		}
	}

	return found, e.err
}

func TestTokenReader_ReadsForAllWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &etcdOfTokens{records: map[string]record.Token{"good": {Who: "ann"}}}
		r := newTokenReader(etcd.read)

		var all sync.WaitGroup

		for i := range 10 * tokensPerRead {
			all.Go(func() {
				if _, err := r.findToken(t.Context(), fmt.Sprint("unknown", i%tokensPerRead)); !errors.Is(err, task.ErrNotFound) {
					t.Errorf("an unknown token: %v", err)
				}
			})
		}

		synctest.Wait()

		began := time.Now()

		got, err := r.findToken(t.Context(), "good")
		if err != nil || got.Who != "ann" {
			t.Errorf("found %+v, %v", got, err)
		}

		if waited := time.Since(began); waited > 3*time.Second {
			t.Errorf("a valid token waited for %s, while a read takes a second", waited)
		}

		all.Wait()

		if etcd.reads > 3 || etcd.ids > 2*tokensPerRead+1 {
			t.Errorf("%d reads of %d ids in all", etcd.reads, etcd.ids)
		}
	})
}

func TestTokenReader_RemembersWhatIsUnknownForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &etcdOfTokens{records: map[string]record.Token{}}
		r := newTokenReader(etcd.read)

		for range 5 {
			if _, err := r.findToken(t.Context(), "a"); !errors.Is(err, task.ErrNotFound) {
				t.Fatal(err)
			}
		}

		if etcd.reads != 1 {
			t.Errorf("%d reads of the same unknown token", etcd.reads)
		}

		etcd.records["a"] = record.Token{}
		time.Sleep(unknownTokenAge)

		if _, err := r.findToken(t.Context(), "a"); err != nil {
			t.Errorf("a token that was made since: %v", err)
		}
	})
}

func TestTokenReader_DoesNotTakeAFailureForUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &etcdOfTokens{records: map[string]record.Token{"a": {}}, err: task.ErrUnavailable}
		r := newTokenReader(etcd.read)
		if _, err := r.findToken(t.Context(), "a"); !errors.Is(err, task.ErrUnavailable) {
			t.Fatal(err)
		}

		etcd.err = nil
		if _, err := r.findToken(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	})
}

func TestTokenReader_DoesNotKeepACallerWhoGives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTokenReader((&etcdOfTokens{}).read)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()

		if _, err := r.findToken(ctx, "a"); !errors.Is(err, task.ErrUnavailable) {
			t.Error(err)
		}

		time.Sleep(2 * time.Second) // its read continues for others, and ends
	})
}

func TestLogins_BoundsWhatItKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogins(zap.NewNop())

		for range loginBurst {
			if !l.mayTry("10.0.0.1") {
				t.Fatal("refused within the burst")
			}
		}

		if l.mayTry("10.0.0.1") {
			t.Error("allowed beyond the burst")
		}

		if !l.mayTry("10.0.0.2") {
			t.Error("another client is refused")
		}

		time.Sleep(time.Second)

		if !l.mayTry("10.0.0.1") {
			t.Error("still refused a second later")
		}

		for i := range 3 * maxLoginClients {
			l.mayTry(fmt.Sprint("client", i))
		}

		if n := len(l.clients); n > maxLoginClients {
			t.Errorf("%d clients are remembered", n)
		}
	})
}
