package api_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/apitest"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// The requests go through two nodes. Some answers of etcd are lost after the write, and some requests before
// it.
//
// Verifies: G14
func TestTask_IsLinearizable(t *testing.T) {
	w := newWorldOn(t, kvtest.Start(t))
	var lose sync.Mutex
	rnd := rand.New(rand.NewPCG(1, 2))
	chance := func(n int) bool {
		lose.Lock()
		defer lose.Unlock()
		return rnd.IntN(n) == 0
	}

	w.writes.set(nil, func(res kv.Result, err error) (kv.Result, error) {
		if chance(15) {
			return kv.Result{}, errLost
		}
		return res, err
	})

	nodes := []*client.Client{w.Client, w.client(w.serve("node-b"))}
	const callers, calls = 6, 30
	began := time.Now()
	var mu sync.Mutex
	var history []porcupine.Operation
	var wg sync.WaitGroup

	for id := range callers {
		wg.Go(func() {
			var seen int64 = 1
			for i := range calls {
				o := apitest.Op{Kind: []string{"get", "get", "put", "cas", "cas", "delete"}[(i*7+id*5)%6], Value: fmt.Sprintf("%d-%d", id, i)}
				if o.Kind == "cas" {
					o.Revision = seen
				}

				call := time.Since(began)
				r, ok, err := apitest.Perform(t.Context(), nodes[(id+i)%2], "default", "x", o)
				if err != nil {
					t.Errorf("%+v: %v", o, err)
				}

				if !ok {
					continue
				}

				if r.Revision > 0 {
					seen = r.Revision
				}

				returned := time.Since(began)
				if r.Err == "unknown" {
					returned = time.Hour // the write may still happen until then
				}

				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: id, Input: o, Output: r, Call: call.Nanoseconds(), Return: returned.Nanoseconds()})
				mu.Unlock()
			}
		})
	}

	wg.Wait()

	if len(history) < callers*calls/2 {
		t.Fatalf("%d of %d calls said something", len(history), callers*calls)
	}

	if found := apitest.Check(history, 2*time.Minute); found != porcupine.Ok {
		t.Errorf("the history is not linearizable: %s", found)
	}

	// A checker must also detect errors, such as a read of a value that was never written.
	for i := range history {
		if r := history[i].Output.(apitest.Result); history[i].Input.(apitest.Op).Kind == "get" && r.Err == "" {
			r.Value = "never"
			history[i].Output = r
			if apitest.Check(history, 20*time.Second) == porcupine.Ok {
				t.Error("a read of what was never written is taken for linearizable")
			}

			return
		}
	}
}
