package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

var loadFaults = []*fault{
	{name: "herd", group: "load", what: "20,000 ticks in one second", hold: lasting(8, 8), alone: true, inject: herd},
	{name: "poison-record", group: "load", what: "an entry that cannot be read, in each shard", hold: lasting(3, 5), inject: poison},
	{name: "full-history", group: "load", what: "a history of 300 records a task, cut to one", hold: lasting(5, 5), inject: fullHistory},
}

// poisonSpace is the namespace of records that are broken on purpose. Carillon did not write them, so they are left
// out when the history is judged.
const poisonSpace = "poison"

// fullSpace is the namespace of tasks with a long history.
const fullSpace = "full"

// herdSpace is the namespace of the tasks that tick in the same second.
const herdSpace = "herd"

func herd(w *world, in *injection) (func() error, error) {
	const many = 20_000
	at := time.Now().Add(8 * time.Second).Truncate(time.Second)

	all := make([]task.Spec, many)
	for i := range all {
		s := task.Defaults()
		s.Namespace, s.Name = herdSpace, fmt.Sprintf("h%s-%05d", at.Format("150405"), i)
		s.Schedule, s.History.Keep = task.Schedules{"@at " + at.UTC().Format(time.RFC3339)}, 1
		s.Action.Noop = &task.Noop{}
		all[i] = s
	}

	began := time.Now()

	if err := w.create(all...); err != nil {
		return nil, err
	}

	in.note = fmt.Sprintf("created in %.1fs", time.Since(began).Seconds())
	time.Sleep(time.Until(at))

	return func() error { return nil }, nil
}

func poison(w *world, in *injection) (func() error, error) {
	ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
	defer cancel()

	var keys []string
	for i := range w.shards {
		key := w.keys.Entry(record.Ref{Namespace: poisonSpace, Name: "p", Shard: i})
		bad := []string{"", "{", "null", `{"uid":"x","schedule":["* * * * * *"],"timezone":"Nowhere/None"}`, "\x00\xff"}[in.rnd.IntN(5)]
		if _, err := w.client.Put(ctx, key, bad); err != nil {
			return nil, err
		}

		keys = append(keys, key)
	}

	return func() (err error) {
		for _, k := range keys {
			err = errors.Join(err, w.delete(k))
		}
		return err
	}, nil
}

// fullHistory lets tasks fill their history, and then keep only one record of it.
func fullHistory(w *world, _ *injection) (func() error, error) {
	var all []task.Spec
	for i := range 10 {
		s := task.Defaults()
		s.Namespace, s.Name, s.Schedule = fullSpace, fmt.Sprintf("f%02d", i), task.Schedules{"@every 100ms"}
		s.Action.Noop, s.History.Keep = &task.Noop{}, 300
		all = append(all, s)
	}

	if err := w.create(all...); err != nil {
		return nil, err
	}

	return func() error {
		for i := range all {
			all[i].History.Keep, all[i].Paused = 1, true
		}
		return w.create(all...)
	}, nil
}
