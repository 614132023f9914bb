package executor

import (
	"cmp"
	"context"
	"maps"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/task"
)

// listenEvery is how often attempts that run are listened to.
const listenEvery = time.Second

// talks are what the attempts that run here say of themselves. They are in memory
// only, but for checkpoints, and what is left when an attempt has ended.
type talks struct {
	log *zap.Logger

	mu sync.Mutex
	of map[talkKey]*talk
}

type talkKey struct {
	namespace, task, run string
	attempt              int
}

// talk is one attempt's. nil says nothing.
type talk struct {
	talks *talks
	key   talkKey

	mu     sync.Mutex
	file   talkFile
	said   said
	at     task.Time // of the progress
	told   string    // the checkpoint that onCheckpoint was told of
	failed bool      // to read, which was logged
	still  bool      // it is paused
	on     func(checkpoint string)
}

func newTalks(log *zap.Logger) *talks {
	return &talks{log: cmp.Or(log, zap.NewNop()), of: map[talkKey]*talk{}}
}

// begin listens to an attempt, until its talk's end.
func (ts *talks) begin(a *task.Assigned, m *room) *talk {
	if ts == nil || m == nil {
		return nil
	}
	t := &talk{talks: ts, key: talkKey{a.Namespace, a.Task, a.ID, max(a.Attempt, 1)}, file: talkFile{room: m},
		said: saidBefore(&a.Run), told: a.Checkpoint}
	ts.mu.Lock()
	ts.of[t.key] = t
	ts.mu.Unlock()
	return t
}

// tells has on called with each checkpoint that is heard before the end. It does not
// block.
func (t *talk) tells(on func(checkpoint string)) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.on = on
}

// stands notes whether the attempt stands still.
func (t *talk) stands(still bool) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.still = still
}

// run listens to all attempts until ctx ends.
func (ts *talks) run(ctx context.Context) {
	clock := time.NewTicker(listenEvery)
	defer clock.Stop()
	var all []*talk
	for {
		select {
		case <-ctx.Done():
			return
		case <-clock.C:
		}
		ts.mu.Lock()
		for _, t := range ts.of {
			all = append(all, t)
		}
		ts.mu.Unlock()
		for _, t := range all {
			t.hear(false)
		}
		clear(all)
		all = all[:0]
	}
}

// hear reads what is new.
func (t *talk) hear(last bool) {
	t.mu.Lock()
	if t.file.room == nil { // it has ended
		t.mu.Unlock()
		return
	}
	progress, err := t.file.read(&t.said, last)
	if progress {
		t.at = task.At(time.Now())
	}
	if err != nil && !t.failed {
		t.failed = true
		t.talks.log.Warn("cannot read what an attempt says", zap.String("task", t.key.namespace+"/"+t.key.task), zap.String("run", t.key.run), zap.Error(err))
	}
	checkpoint, news := t.said.checkpoint, t.said.checkpoint != t.told
	t.told = checkpoint
	on := t.on
	t.mu.Unlock()
	if news && on != nil && !last {
		on(checkpoint)
	}
}

// end reads the last of it, before the room is left. wrote: the room is not empty.
func (t *talk) end(r *Result, wrote bool) {
	if t == nil {
		return
	}
	t.talks.mu.Lock()
	if t.talks.of[t.key] == t {
		delete(t.talks.of, t.key)
	}
	t.talks.mu.Unlock()
	if wrote {
		t.hear(true)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.file.room = nil
	r.Talk = new(t.view())
}

// view is what it has said so far. mu is held.
func (t *talk) view() task.Talk {
	v := task.Talk{Namespace: t.key.namespace, Task: t.key.task, Run: t.key.run, Attempt: t.key.attempt, Paused: t.still,
		Results: maps.Clone(t.said.results), Checkpoint: t.said.checkpoint, BadLines: t.said.bad}
	if t.said.percent != nil {
		v.Progress = &task.Progress{Percent: new(*t.said.percent), Text: t.said.text, At: t.at}
	}
	return v
}

func (ts *talks) all(wanted func(talkKey) bool) (list []task.Talk) {
	if ts == nil {
		return nil
	}
	var some []*talk
	ts.mu.Lock()
	for k, t := range ts.of {
		if wanted(k) {
			some = append(some, t)
		}
	}
	ts.mu.Unlock()
	for _, t := range some {
		t.mu.Lock()
		list = append(list, t.view())
		t.mu.Unlock()
	}
	return list
}
