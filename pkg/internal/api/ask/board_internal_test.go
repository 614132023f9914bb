package ask

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
)

// callBy returns a call of a caller.
func callBy(ctx context.Context, who string) *httpapi.Call {
	r := httptest.NewRequest(http.MethodGet, "/v1/board", nil)
	return &httpapi.Call{Request: r.WithContext(httpapi.WithCaller(ctx, httpapi.Caller{Who: who})), Writer: httptest.NewRecorder()}
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
func TestWorstBusy_IsTheLongestWait(t *testing.T) {
	t.Parallel()
	failures := map[string]error{"a": errors.New("gone"), "b": &readmodel.Busy{Node: "b", RetryAfter: 1}, "c": &readmodel.Busy{Node: "c", RetryAfter: 2}}

	if err := worstBusy(failures); err == nil || err.Node != "c" {
		t.Errorf("got %v", err)
	}
	if err := worstBusy(map[string]error{"a": errors.New("gone")}); err != nil {
		t.Errorf("got %v", err)
	}
}
