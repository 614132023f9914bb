package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/carillonhq/carillon/pkg/clock"
	"github.com/carillonhq/carillon/pkg/task"
)

// listCalls is what users do while lists are read.
var listCalls = []string{"apply", "apply", "pause", "resume", "pause until", "delete", "re-create", "trigger", "trigger", "trigger", "retry"}

// shapeForLists gives tasks few runs, of which many fail, and short histories.
func shapeForLists(s *task.Spec) {
	number := int(s.Name[len(s.Name)-1])
	s.Schedule, s.History.Keep, s.Timeout = task.Schedules{"@manual"}, 1+number%4, 0
	s.Action = task.Action{Process: &task.Process{Command: []string{"sim", "10ms", fmt.Sprint(number % 2)}}}
	if number%3 == 0 {
		s.Schedule = task.Schedules{"*/5 * * * * *"}
	}
}

// startCallers starts users that change tasks, and those that list them, until ctx ends.
func (l *lister) startCallers(ctx context.Context, seed uint64, o ListOptions) {
	draws := func() *rand.Rand { return rand.New(rand.NewPCG(seed, l.rng.Uint64())) }

	for i := range apiUsers {
		u := &user{world: l.world, account: l.accounts[i], rng: draws()}
		l.background.Go(func() { u.makeCalls(ctx) })
	}

	dismisser := &user{world: l.world, account: l.accounts[0], rng: draws()}
	l.background.Go(func() { l.dismissRuns(ctx, dismisser) })

	for i := range o.Askers {
		a := &asker{lister: l, name: fmt.Sprintf("asker %d", i), rng: draws()}
		l.background.Go(func() { a.askAll(ctx) })
	}

	for i := range o.Readers {
		r := &reader{lister: l, name: fmt.Sprintf("reader %d", i), rng: draws()}
		l.background.Go(func() { r.readAll(ctx) })
	}
}

// replaceTasks deletes many tasks within three seconds, and creates as many.
func (l *lister) replaceTasks(ctx context.Context, seed uint64) {
	u := &user{world: l.world, account: l.accounts[0], rng: rand.New(rand.NewPCG(seed, l.rng.Uint64()))}
	until := time.Now().Add(3 * time.Second)

	for _, call := range []string{"delete", "apply"} {
		for i := 0; i < l.opts.Tasks && (call == "apply" || time.Now().Before(until)); i++ {
			u.makeCall(ctx, call)
		}
		l.sleep(time.Until(until))
	}
}

// dismissRuns dismisses dead runs until ctx ends.
func (l *lister) dismissRuns(ctx context.Context, u *user) {
	for clock.Sleep(ctx, durationBetween(u.rng, 500*time.Millisecond, 3*time.Second)) {
		if name, id := u.someDead(); id != "" && u.requestByPath(ctx, u.anyHost(), http.MethodPost, taskPath(name, "runs/"+id+"/dismiss"), nil, nil) == nil {
			u.countReached("dead run dismissed")
		}
	}
}
