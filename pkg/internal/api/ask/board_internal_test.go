package ask

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/internal/overview"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// callBy returns a call of a caller.
func callBy(ctx context.Context, who string) *httpapi.Call {
	r := httptest.NewRequest(http.MethodGet, "/v1/board", nil)
	return &httpapi.Call{Request: r.WithContext(httpapi.WithCaller(ctx, httpapi.Caller{Who: who})), Writer: httptest.NewRecorder()}
}

// boardsOf returns the Boards of a node whose etcd is empty.
func boardsOf(t *testing.T, a *Asker) *Boards {
	t.Helper()

	keys, err := record.NewKeys("/carillon")
	if err != nil {
		t.Fatal(err)
	}
	etcd := kvtest.Memory(t)

	return &Boards{
		Asker: a, Store: store.New(etcd, kv.Direct(etcd), keys),
		Status:      func(context.Context) (client.ClusterStatus, error) { return client.ClusterStatus{}, nil },
		AddProgress: func(context.Context, *task.Board, []task.Node) {},
	}
}

// Clients that ask every second always get a new board. However many ask at the same time, the owners are asked once.
func TestAsker_SharesABoardForLessThanASecond(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		a := ownAsker(nil)
		asked := 0
		ask := func(context.Context, httpapi.Caller, *Question, time.Duration) (Answer, error) {
			time.Sleep(100 * time.Millisecond)
			asked++
			return Answer{}, nil
		}

		board := Question{Board: &readmodel.BoardRange{Span: time.Minute, Limit: 10}}
		for i, c := range []struct {
			pause time.Duration
			q     Question
			want  int
		}{
			{0, board, 1},
			{500 * time.Millisecond, board, 1},
			{100 * time.Millisecond, board, 2}, // 0.7 s after the first began, and some more
			{0, Question{}, 3},
			{800 * time.Millisecond, Question{}, 3}, // lists are shared for longer
		} {
			time.Sleep(c.pause + time.Millisecond)
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() {
					if _, err := a.share(callBy(t.Context(), "user:ann"), c.q, ask); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()

			if asked != c.want {
				t.Errorf("step %d: the owners were asked %d times, want %d", i, asked, c.want)
			}
		}
	})
}

// Others wait for the board that a caller has asked for, so it does not end when that caller hangs up.
func TestAsker_ACallerThatHangsUpTakesNothingFromOthers(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		a := ownAsker(nil)
		asked := 0
		ask := func(ctx context.Context, _ httpapi.Caller, _ *Question, _ time.Duration) (Answer, error) {
			time.Sleep(100 * time.Millisecond)
			asked++
			return Answer{}, ctx.Err()
		}

		board := Question{Board: &readmodel.BoardRange{Span: time.Minute, Limit: 10}}
		gone, hangUp := context.WithCancel(t.Context())
		var both sync.WaitGroup
		both.Go(func() { _, _ = a.share(callBy(gone, "user:ann"), board, ask) })
		both.Go(func() {
			time.Sleep(10 * time.Millisecond)
			hangUp()
			if _, err := a.share(callBy(t.Context(), "user:bob"), board, ask); err != nil || asked != 1 {
				t.Errorf("asked %d times: %v", asked, err)
			}
		})
		both.Wait()
	})
}

// A node that is too busy delays the board of those who have none, and then fails it with the time to wait. It is not
// shown as one that does not answer.
func TestRefusal_IsTheLongestWait(t *testing.T) {
	t.Parallel()
	failures := map[string]error{"a": errors.New("gone"), "b": &readmodel.Busy{Node: "b", RetryAfter: 1}, "c": &readmodel.Busy{Node: "c", RetryAfter: 2}}

	var busy *readmodel.Busy
	if err := refusal(failures); !errors.As(err, &busy) || busy.Node != "c" {
		t.Errorf("got %v", err)
	}
	if err := refusal(map[string]error{"a": errors.New("gone")}); err != nil {
		t.Errorf("got %v", err)
	}
}

// A caller who reads very many namespaces makes the question too long. Lists and the board refuse it. The nodes are not to
// blame, so the board must not show them as silent.
func TestAsker_RefusesAQuestionThatIsTooLong(t *testing.T) {
	t.Parallel()

	a := ownAsker(func(context.Context) (readmodel.NodeAnswer, error) { return readmodel.NodeAnswer{Node: "n1"}, nil })
	boards := boardsOf(t, a)
	q := Question{Board: &readmodel.BoardRange{Span: time.Minute, Limit: 10}}
	for i := range 10_000 {
		q.Within = append(q.Within, fmt.Sprint("team-", i))
	}

	for name, ask := range map[string]func(context.Context, httpapi.Caller, *Question, time.Duration) (Answer, error){"a list": a.askAll, "the board": boards.ask} {
		_, err := ask(t.Context(), httpapi.Caller{Who: "user:ann"}, &q, 0)
		var refused *task.Error
		if !errors.As(err, &refused) || refused.Code != task.CodeTooLong {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a board says of a silent node names the node once, as do the last words about a cluster without any answer.
func TestBoards_NameASilentNodeOnce(t *testing.T) {
	t.Parallel()

	a := ownAsker(func(context.Context) (readmodel.NodeAnswer, error) { return readmodel.NodeAnswer{Node: "n1"}, nil })
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("connection refused") }
	a.Peers = peers.New(peers.Config{Node: "n1", Key: key, Now: time.Now, Dial: dial})
	a.Nodes = func(context.Context) ([]task.Node, error) {
		return []task.Node{{Name: "n2", Address: "http://10.0.0.2:7070", Roles: []string{task.RoleScheduler}}}, nil
	}

	q := Question{Board: &readmodel.BoardRange{Span: time.Minute, Limit: 10}}
	answer, err := boardsOf(t, a).ask(t.Context(), httpapi.Caller{Who: "user:ann"}, &q, 0)
	if err != nil {
		t.Fatal(err)
	}

	const want = "node n2: 10.0.0.2:7070: connection refused: its data is missing"
	var got []string
	for _, g := range overview.Problems(answer.board) {
		for _, p := range g.Problems {
			if g.Kind == overview.Silent {
				got = append(got, p.Text())
			}
		}
	}
	if !slices.Equal(got, []string{want}) {
		t.Errorf("the board says %q", got)
	}

	var gone *away
	if _, err := a.askAll(t.Context(), httpapi.Caller{Who: "user:ann"}, &q, 0); !errors.As(err, &gone) || gone.why != "node n2: 10.0.0.2:7070: connection refused" {
		t.Errorf("the list says %v", err)
	}
}
