package scheduler

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// buriedBy is who deleted a task whose ttl was over.
const buriedBy = "carillon"

// burial is the deletion of a task that is over and that nobody needs any more.
// While it is under way nothing of the task is dispatched.
type burial struct {
	fences store.Fences
	ref    store.Ref
	mod    int64 // of the entry
	stone  store.Tombstone
	over   atomic.Bool // it has succeeded, or not
	then   func()      // called when it is over
}

// buried reports whether a burial of t is under way.
func (t *taskState) buried() bool {
	return t.past != nil && t.past.burial != nil && !t.past.burial.over.Load()
}

// bury has a task deleted when its schedule has nothing more to come, nothing of
// it waits or is active, and its ttl is over.
func (p *plan) bury(t *taskState) {
	if t.how.ttl == 0 || t.when.manual || t.next != 0 || !t.idle() || p.changesEntry(t) {
		return
	}
	now := p.now.UnixMilli()
	since, over := t.over(now)
	if !over {
		if t.follows() && t.when.end >= now {
			p.s.rest(t, t.when.end+1)
		}
		return
	}
	if until := since + t.how.ttl; now < until {
		p.s.rest(t, until)
		return
	}
	if !t.history().known {
		p.s.study(t)
		return
	}
	if until := max(since, t.past.ended) + t.how.ttl; now < until {
		p.s.rest(t, until)
		return
	}
	p.s.rest(t, now+burialPatience.Milliseconds())
	if t.buried() {
		return
	}
	b := &burial{fences: p.s.fences, ref: t.ref(p.s.shard), mod: t.mod, stone: store.Tombstone{
		UID: t.uidText(), Generation: int64(t.generation), DeletedAt: task.At(p.now), DeletedBy: buriedBy,
		Why: "its schedule had ended, and its ttl of " + task.Duration(time.Duration(t.how.ttl)*time.Millisecond).String() + " was over",
	}}
	t.past.burial = b
	p.deletions = append(p.deletions, b)
}

// burialPatience is when a burial is asked for again that has not succeeded.
const burialPatience = 10 * time.Second

// over reports whether a task has no tick to come, ever, and since when: the last
// one's, or since the entry says that it begins. Nothing of it is undecided.
func (t *taskState) over(now int64) (since int64, over bool) {
	switch {
	case t.spent():
		return t.from, true
	case t.follows():
		return t.when.end, t.when.end != 0 && t.when.end < now
	case t.after(max(t.from, now)) != 0:
		return 0, false
	}
	s := t.schedule()
	last, ok := s.LastDue(instant(now), t.uidText())
	if !ok {
		return t.from, true
	}
	return max(t.from, t.due(last.UnixMilli())), true
}

// burials deletes tasks that are over, beside the workers, so that no tick waits
// for it. What does not fit into the line is asked for again.
type burials struct {
	store  Store
	line   chan *burial
	buried func() // counts
	log    *zap.Logger
}

// undertakers is how many tasks are deleted at once: their deletes then share
// requests.
const undertakers = 8

func newBurials(s Store, buried func(), log *zap.Logger) *burials {
	return &burials{store: s, line: make(chan *burial, 1024), buried: buried, log: log}
}

// askAll asks for deletions; then is called when one is over. One for which there is no room is over
// at once: its task asks again.
func (u *burials) askAll(deletions []*burial, then func()) {
	for _, b := range deletions {
		b.then = then
		select {
		case u.line <- b:
		default:
			b.over.Store(true)
		}
	}
}

func (u *burials) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for range undertakers {
		g.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case b := <-u.line:
					u.bury(ctx, b)
				}
			}
		})
	}
	return g.Wait()
}

// mostBurials is how often in a row a deletion is tried that finds something changed.
const mostBurials = 5

func (u *burials) bury(ctx context.Context, b *burial) {
	err := task.ErrConflict
	for try := 0; try < mostBurials && errors.Is(err, task.ErrConflict); try++ { // the watermark moves all the time
		err = u.store.ExpireTask(ctx, b.fences, b.ref, b.mod, b.stone)
	}
	b.over.Store(true)
	b.then()
	if err != nil {
		u.log.Debug("could not delete a task that is over", zap.String("task", b.ref.String()), zap.Error(err))
		return
	}
	u.buried()
	u.log.Info("deleted a task that is over", zap.String("task", b.ref.String()))
}
