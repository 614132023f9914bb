package store_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/carillonhq/carillon/pkg/internal/test/etcdhook"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// putAll writes keys with empty records.
func (w *inboxWorld) putAll(keys []string) {
	w.Helper()
	for chunk := range slices.Chunk(keys, 100) {
		ops := make([]clientv3.Op, len(chunk))
		for i, key := range chunk {
			ops[i] = clientv3.OpPut(key, "{}")
		}

		_, err := w.etcd.Txn(w.Context()).Then(ops...).Commit()
		ok(w.T, err)
	}
}

// find returns the runs that FindRuns finds in the namespace x, sorted.
func (w *inboxWorld) find(shards int, prefix string, most int) (found []string) {
	w.Helper()
	refs, ids, err := w.FindRuns(w.Context(), shards, "x", prefix, most)
	ok(w.T, err)

	for i := range refs {
		found = append(found, fmt.Sprint(refs[i], " ", ids[i]))
	}
	slices.Sort(found)

	return found
}

// However long the histories are, a run is found by its id with few reads.
func TestFindRuns_ReadsFewKeysOfLongHistories(t *testing.T) {
	t.Parallel()
	w := newInboxWorld(t)
	const shards, tasks, runs = 4, 40, 500

	id := func(name, run int) string {
		return task.RunID(noon.Add(time.Duration(run)*time.Minute), fmt.Sprintf("u%03d", name))
	}
	var keys []string
	for i := range tasks {
		at := record.Ref{Namespace: "x", Name: fmt.Sprint("t", i), Shard: i % shards}
		if i != 7 { // its entry is gone, and its history is still to be deleted
			keys = append(keys, w.keys.Entry(at))
		}
		for k := range runs {
			keys = append(keys, w.keys.Ended(at, id(i, k)))
		}
	}
	w.putAll(keys)

	var reads etcdhook.Reads
	w.etcd.KV = reads.KV(w.etcd.KV)

	for _, c := range []struct {
		prefix string
		want   []string
	}{
		{id(39, 499), []string{"x/t39 " + id(39, 499)}},
		{id(7, 499), []string{"x/t7 " + id(7, 499)}},
		{id(12, 250)[:len(id(12, 250))-1], []string{
			"x/t10 " + id(10, 250), "x/t11 " + id(11, 250), "x/t12 " + id(12, 250), "x/t13 " + id(13, 250), "x/t14 " + id(14, 250),
			"x/t15 " + id(15, 250), "x/t16 " + id(16, 250), "x/t17 " + id(17, 250), "x/t18 " + id(18, 250), "x/t19 " + id(19, 250),
		}},
		{"20271120", nil},
	} {
		reads.Take()
		found := w.find(shards, c.prefix, 100)
		if n := reads.Take(); !slices.Equal(found, c.want) || n.Keys > 600 || n.Values > 0 || n.Ranges > 120 || n.Requests > 6 {
			t.Errorf("%s: %q, want %q; %+v", c.prefix, found, c.want, n)
		}
	}

	// A prefix of many ids is found out without reading them all.
	if found, n := w.find(shards, "2026", 100), reads.Take(); len(found) != 100 || n.Keys > 1000 {
		t.Errorf("%d runs with %+v", len(found), n)
	}
}

// The result is that of a scan of all keys: of queues and histories that are read as a whole and by task, with names in
// every order, late results, parts, and records of tasks whose entries are gone.
func TestFindRuns_FindsWhatAScanFinds(t *testing.T) {
	t.Parallel()
	const shards = 3
	names := []string{"a", "a-b", "a.b", "a0", "a_b", "b", "z"}

	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 2))
		w := newInboxWorld(t)
		keys, runs := map[string]bool{}, map[string]string{} // runs: the text of each run, and its id

		for _, namespace := range []string{"x", "x-y", "w"} {
			for i, name := range names {
				at := record.Ref{Namespace: namespace, Name: name, Shard: i % shards}
				if r.IntN(3) > 0 {
					keys[w.keys.Entry(at)] = true
				}

				for range r.IntN([]int{1, 20, 400, 2500}[r.IntN(4)]) {
					id := task.RunID(noon.Add(time.Duration(r.IntN(4000))*time.Second), "u"+name)
					if r.IntN(3) == 0 {
						id += "-rand"
					}

					switch r.IntN(10) {
					case 0:
						keys[w.keys.Run([]string{"n", "n-1"}[r.IntN(2)], at, id)] = true
					case 1, 2:
						keys[w.keys.Queued(at, id)] = true
					case 3:
						keys[w.keys.Late(at, id, 7)] = true
						continue
					case 4:
						keys[w.keys.Queued(at, task.PartID(id, 3))] = true
						continue
					default:
						keys[w.keys.Ended(at, id)] = true
					}
					if namespace == "x" {
						runs[fmt.Sprint(at, " ", id)] = id
					}
				}
			}
		}
		w.putAll(slices.Collect(maps.Keys(keys)))

		ids := append(slices.Sorted(maps.Values(runs)), "20261120T120000.000Z-none")
		for range 20 {
			id := ids[r.IntN(len(ids))]
			prefix := id[:r.IntN(len(id)+1)]

			var want []string
			for text, id := range runs {
				if strings.HasPrefix(id, prefix) {
					want = append(want, text)
				}
			}
			slices.Sort(want)

			if found := w.find(shards, prefix, 1<<20); !slices.Equal(found, want) {
				t.Fatalf("seed %d, %q: %d runs, want %d", seed, prefix, len(found), len(want))
			}
		}
	}
}
