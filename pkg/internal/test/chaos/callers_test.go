package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/test/apitest"
	"github.com/carillonhq/carillon/pkg/internal/test/check"
	"github.com/carillonhq/carillon/pkg/task"
)

// callers use the API while faults are injected, and record the answers.
type callers struct {
	w     *world
	began time.Time
	stop  context.CancelFunc
	wg    sync.WaitGroup

	mu        sync.Mutex
	acks      []check.Acknowledged
	histories map[string][]porcupine.Operation // by task
	odd       []string                         // answers that no call may have
	unknown   int
	refused   int            // calls that no node could answer
	used      map[string]int // what users did, by call
}

const (
	changers = 3 // each has its own tasks
	readers  = 3 // all read and write the same task, one task after another
	epoch    = 8 * time.Second
)

// registersSpace is the namespace of the tasks that porcupine judges.
const registersSpace = "registers"

// callsSpace is the namespace of one of the callers that change only their own tasks.
func callsSpace(id int) string { return fmt.Sprintf("calls-%d", id) }

func (w *world) call() *callers {
	ctx, cancel := context.WithCancel(w.ctx)
	c := &callers{w: w, began: time.Now(), stop: cancel, histories: map[string][]porcupine.Operation{}, used: map[string]int{}}
	w.closers = append(w.closers, c.end)
	nodes := append([]*node(nil), w.nodes...) // other nodes join and leave

	for i := range changers {
		c.wg.Go(func() { c.change(ctx, i, nodes) })
	}

	for i := range readers {
		c.wg.Go(func() { c.register(ctx, i, nodes) })
	}

	c.wg.Go(func() { c.use(ctx, nodes) })
	c.wg.Go(func() { c.guide(ctx, nodes) })
	c.wg.Go(func() { c.comeAndGo(ctx, nodes) })
	c.wg.Go(func() { c.mind(ctx, nodes) })

	return c
}

func (c *callers) end() {
	c.stop()
	c.wg.Wait()
}

// rest waits a moment between two calls. It returns false when ctx has ended.
func rest(ctx context.Context, r *rand.Rand, most time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Duration(r.Int64N(int64(most)))):
		return true
	}
}

// known is what the only caller of a task knows about it.
type known struct {
	name     string
	exists   bool
	revision int64
	unsure   bool // the latest call had an unknown outcome
}

// change makes changes of all kinds to tasks that no other caller changes.
func (c *callers) change(ctx context.Context, id int, nodes []*node) {
	r := rand.New(rand.NewPCG(c.w.seed, uint64(id)))
	space := callsSpace(id)

	var tasks [6]known
	for i := range tasks {
		tasks[i].name = fmt.Sprintf("c%d", i)
	}

	var runs []check.Acknowledged
	for rest(ctx, r, 150*time.Millisecond) {
		t := &tasks[r.IntN(len(tasks))]
		api := nodes[r.IntN(len(nodes))].client

		what := []string{"update", "update", "pause", "resume", "delete", "trigger", "trigger", "cancel"}[r.IntN(8)]
		if !t.exists && what != "cancel" {
			what = "create"
		}

		if what == "cancel" {
			if len(runs) > 0 {
				last := runs[len(runs)-1]
				_, err := api.Runs.Cancel(ctx, last.Namespace, last.Name, last.Run)
				c.odds("cancel", err, task.ErrNotFound, task.ErrConflict)

				if err == nil {
					last.Cancelled = true
					c.acknowledge(last)
				}
			}

			continue
		}

		a := check.Acknowledged{Namespace: space, Name: t.name, Revision: t.revision}
		got, run, err := c.do(ctx, api, what, space, t.name, r)
		if err != nil {
			absent := errors.Is(err, task.ErrNotFound)
			if absent && t.exists && !t.unsure {
				c.note("%s %s/%s: it is not found, and nobody has deleted it", what, space, t.name)
			}

			switch {
			case absent:
				t.exists, t.unsure = false, t.unsure && what != "create"
			case errors.Is(err, task.ErrExists):
				t.exists = true
			case errors.Is(err, task.ErrUnknown):
				t.unsure, t.exists = true, what != "delete"
			}

			c.odds(what, err, task.ErrNotFound, task.ErrExists, task.ErrConflict)
			continue
		}

		// Only a write rules out that an earlier one takes effect later.
		t.unsure = t.unsure && (what == "trigger" || got.Result == client.Unchanged)

		switch what {
		case "delete":
			t.exists, a.Deleted = false, true
		case "trigger":
			a.Run = run
			runs = append(runs, a)
		default:
			t.exists, t.revision, a.Revision = true, got.Revision, got.Revision
		}

		c.acknowledge(a)
	}
}

// acknowledge records a change that a node has acknowledged.
func (c *callers) acknowledge(a check.Acknowledged) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acks = append(c.acks, a)
}

func (c *callers) do(ctx context.Context, api *client.Client, what, space, name string, r *rand.Rand) (got client.Task, run string, err error) {
	switch what {
	case "create":
		s := task.Defaults()
		s.Namespace, s.Name, s.Schedule = space, name, task.Schedules{"@every 1s"}
		s.Action.Noop = &task.Noop{}
		got, err = api.Tasks.Create(ctx, space, s)
	case "update":
		every := []string{"@every 700ms", "* * * * * *", "@every 3s", "*/2 * * * * *"}[r.IntN(4)]
		got, err = api.Tasks.Patch(ctx, space, name, fmt.Appendf(nil, `{"schedule": %q, "description": "%d"}`, every, r.Uint32()), 0)
	case "pause":
		got, err = api.Tasks.Pause(ctx, space, name, 0)
	case "resume":
		got, err = api.Tasks.Resume(ctx, space, name, 0)
	case "delete":
		err = api.Tasks.Delete(ctx, space, name, 0)
	case "trigger":
		var t client.Triggered
		t, err = api.Tasks.Trigger(ctx, space, name, nil)
		run = t.ID
	}

	return got, run, err
}

// odds records an error that is neither expected nor due to an outage.
func (c *callers) odds(what string, err error, expected ...error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	switch {
	case err == nil || errors.Is(err, context.Canceled):
		return
	case errors.Is(err, task.ErrUnknown):
		c.unknown++
		return
	case errors.Is(err, task.ErrUnavailable):
		c.refused++
		return
	}

	for _, e := range expected {
		if errors.Is(err, e) {
			return
		}
	}

	c.odd = append(c.odd, fmt.Sprintf("%s: %v", what, err))
}

func (c *callers) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.odd = append(c.odd, fmt.Sprintf(format, args...))
}

// register reads and writes one task together with other callers, for an epoch, and then the next task. Each is a
// history for porcupine.
func (c *callers) register(ctx context.Context, id int, nodes []*node) {
	r := rand.New(rand.NewPCG(c.w.seed, uint64(1000+id)))
	var seen int64 = 1
	for i := 0; rest(ctx, r, 250*time.Millisecond); i++ {
		name := fmt.Sprintf("r%d", time.Since(c.began)/epoch)
		o := apitest.Op{Kind: []string{"get", "get", "put", "cas", "cas", "delete"}[r.IntN(6)], Value: fmt.Sprintf("%d-%d", id, i)}
		if o.Kind == "cas" {
			o.Revision = seen
		}

		api := nodes[r.IntN(len(nodes))].client
		call := time.Since(c.began)
		result, ok, err := apitest.Perform(ctx, api, registersSpace, name, o)
		returned := time.Since(c.began)
		c.odds(o.Kind, err)

		if !ok {
			continue
		}

		if result.Revision > 0 {
			seen = result.Revision
		}

		if result.Err == "unknown" {
			returned = 1000 * time.Hour // it may take effect until then
		}

		c.mu.Lock()
		c.histories[name] = append(c.histories[name], porcupine.Operation{ClientId: id, Input: o, Output: result, Call: call.Nanoseconds(), Return: returned.Nanoseconds()})
		c.mu.Unlock()
	}
}
