package node

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
)

func TestScanner_AnswersFromAScanThatBeganAfterTheQuestion(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) { // so that the questions come within the time in which they are gathered
		ctx, cancel := context.WithCancel(t.Context())
		began, goOn := make(chan int), make(chan struct{})
		scans := 0
		s := NewActiveScanner(func(context.Context) ([]store.ActiveKey, int64, error) {
			scans++
			began <- scans
			<-goOn

			if scans == 2 {
				return nil, 0, errors.New("the connection is cut")
			}

			return []store.ActiveKey{{RunKey: record.RunKey{Ref: record.Ref{Shard: 7}, Run: fmt.Sprint(scans)}}}, 0, nil
		})

		done := make(chan struct{})
		go func() { defer close(done); _ = s.Run(ctx) }()
		ask := func() <-chan map[int][]store.ActiveKey {
			answer, err := s.Ask(ctx)
			if err != nil {
				t.Error(err)
			}
			return answer
		}

		a, b := ask(), ask()
		<-began
		second := make(chan (<-chan map[int][]store.ActiveKey))
		go func() { second <- ask() }() // during the first scan
		goOn <- struct{}{}

		if got := (<-a)[7][0].Run + (<-b)[7][0].Run; got != "11" {
			t.Errorf("the first two got the scans %s", got)
		}

		c := <-second

		for range 2 { // a scan that fails, and its repetition
			<-began
			goOn <- struct{}{}
		}

		if got := (<-c)[7][0].Run; got != "3" {
			t.Errorf("the third got scan %s", got)
		}

		cancel()
		<-done

		if _, err := s.Ask(ctx); err == nil {
			t.Error("a question after the end has an answer")
		}
	})
}
