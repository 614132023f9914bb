package check

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// play draws a valid history: owners, nodes and the API take legal steps of the protocol in any order.
func play(t *testing.T, rt *rapid.T) *sim {
	s := newSim(t, 2, "a", "b", "c")
	s.create("one", 0, 1, nil)
	s.create("two", 0, 2, nil)
	s.create("three", 1, 1, nil)

	names := []string{"four", "five", "six", "seven"}
	for range rapid.IntRange(10, 60).Draw(rt, "steps") {
		s.now += rapid.SampledFrom([]int64{0, 100, 500, 1000, 1000, 3000}).Draw(rt, "wait")
		step := rapid.SampledFrom([]string{
			"round", "round", "round", "round", "finish", "finish", "running", "fail", "lose", "hand back", "ask", "ask", "obey", "obey",
			"pause", "resume", "update", "schedule", "manual", "create", "remove", "move", "crash", "restart",
		}).Draw(rt, "step")
		shard := rapid.IntRange(0, 1).Draw(rt, "shard")

		switch step {
		case "round":
			s.round(shard)
			continue
		case "create":
			if len(names) > 0 {
				s.create(names[0], shard, rapid.SampledFrom([]int64{1, 2, 5}).Draw(rt, "period"), nil)
				names = names[1:]
			}
			continue
		case "move":
			s.assign(shard, rapid.SampledFrom([]string{"b", "c"}).Draw(rt, "heir"))
			s.open(shard)
			continue
		case "crash":
			if s.sessions["a"] != "" {
				s.crash("a", "b")
			}
			continue
		case "restart":
			if s.sessions["a"] == "" {
				s.join("a")
				s.assign(shard, "a")
				s.open(shard)
			}

			continue
		}

		if len(s.tasks) > 0 {
			s.act(s.tasks[rapid.IntRange(0, len(s.tasks)-1).Draw(rt, "task")], step)
		}
	}

	for id := range 2 {
		s.round(id)
	}

	return s
}

// act takes a step of one task, if the step is possible.
func (s *sim) act(one *simTask, step string) {
	switch step {
	case "pause":
		if !one.entry.Paused {
			s.pause(one)
		}
		return
	case "resume":
		if one.entry.Paused {
			s.resume(one)
		}
		return
	case "update":
		s.update(one, false, func() { one.entry.Timeout = task.Duration(time.Minute) })
		return

	case "schedule":
		s.update(one, true, func() { one.schedule(map[int64]int64{1: 2, 2: 5, 5: 1}[one.period]) })
		return

	case "manual":
		s.manual(one)
		return
	}

	if one.active == nil || (step != "lose" && s.sessions[one.active.node] != one.active.Instance) {
		return
	}

	switch step {
	case "running":
		if one.active.State == task.Dispatched {
			s.running(one)
		}
	case "ask":
		s.ask(one, !one.active.PauseRequested)
	case "obey":
		s.obey(one)
	case "finish":
		s.finish(one, task.Succeeded)
	case "fail":
		s.finish(one, task.Failed)
	case "lose":
		s.lose(one)
	case "hand back":
		if one.active.State == task.Dispatched {
			s.handBack(one)
		}
	case "remove":
		s.finish(one, task.Succeeded)
		s.remove(one)
	}
}

// asked returns all options that a valid history satisfies. The model's owners see every update at once.
func (s *sim) asked() Options {
	return Options{Until: time.UnixMilli(s.now), Remembered: true, Folded: true}
}

// damage breaks one record of a history at random, and returns a description of it.
func (s *sim) damage(rt *rapid.T) string {
	var records []int // first and last records of runs, and commits with decisions
	for i, ev := range s.events {
		k, ok := s.keys.ParseShard(ev.Key)
		_, attempt := s.keys.ParseRun(ev.Key)

		if strings.Contains(string(ev.Value), `"trigger":"manual"`) {
			continue // without any record the request was never made
		}

		if !ev.Deleted && (attempt && ev.CreateRevision == ev.Revision || ok && (k.Kind == record.KindEnded || k.Kind == record.KindQueued)) {
			records = append(records, i)
		}
	}

	if len(records) == 0 {
		rt.Skip("nothing happened")
	}

	i := rapid.SampledFrom(records).Draw(rt, "record")
	ev := s.events[i]
	_, attempt := s.keys.ParseRun(ev.Key)
	ended := strings.Contains(ev.Key, "/history/")
	ways := []string{"drop", "uid", "state", "run id"}
	if ended || attempt {
		ways = append(ways, "duplicate")
	}

	if strings.Contains(string(ev.Value), `"trigger":"schedule"`) && !strings.Contains(string(ev.Value), `"attempts"`) && (attempt || strings.Contains(string(ev.Value), "skipped")) {
		ways = append(ways, "tick")
	}

	if attempt {
		ways = append(ways, "instance", "generation")
	}

	if ended && strings.Contains(string(ev.Value), `"token":`) {
		ways = append(ways, "token")
	}

	if ended && strings.Contains(string(ev.Value), `"count":`) {
		ways = append(ways, "count")
	}

	way := rapid.SampledFrom(ways).Draw(rt, "way")
	switch way {
	case "drop":
		s.drop(i)
	case "duplicate":
		s.duplicate(ev)
	default:
		s.falsify(rt, i, way)
	}

	return way + " of " + ev.Key
}

// duplicate writes a record a second time, later: an outcome with other content, or an attempt for another node.
func (s *sim) duplicate(ev Event) {
	s.rev++
	ev.Revision, ev.ModRevision = s.rev, s.rev
	if k, ok := s.keys.ParseRun(ev.Key); ok {
		ev.CreateRevision = s.rev
		ev.Key = s.keys.Run("z", k.Ref, k.Run)
	} else {
		ev.Value = []byte(strings.Replace(string(ev.Value), `"ended_at":"20`, `"ended_at":"19`, 1))
	}

	s.events = append(s.events, ev)
}

func (s *sim) falsify(rt *rapid.T, i int, way string) {
	var v map[string]any
	if err := json.Unmarshal(s.events[i].Value, &v); err != nil {
		rt.Fatal(err)
	}

	switch way {
	case "uid":
		v["uid"] = "zzzz"
	case "state":
		v["state"] = "unheard of"
	case "run id":
		s.events[i].Key += "0"
	case "tick":
		at, err := time.Parse(time.RFC3339, v["scheduled_time"].(string))
		if err != nil {
			rt.Fatal(err)
		}
		v["scheduled_time"] = task.At(at.Add(500 * time.Millisecond))
	case "instance":
		v["instance"] = "a stranger"
	case "generation":
		v["generation"] = v["generation"].(float64) + 1
	case "token":
		v["token"] = v["token"].(float64) + 1
	case "count":
		v["count"] = v["count"].(float64) + 1
	}

	b, err := json.Marshal(v)
	if err != nil {
		rt.Fatal(err)
	}

	s.events[i].Value = b
}

func TestCheck_PassesWhateverTheProtocolAllows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := play(t, rt)
		if r := s.check(s.asked()); !r.OK() {
			rt.Fatalf("%s", r)
		}
	})
}

// Verifies: G3-G7
func TestCheck_CatchesADamagedRecord(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := play(t, rt)
		s.events = slices.Clone(s.events)
		how := s.damage(rt)

		if r := s.check(s.asked()); r.OK() {
			rt.Fatalf("not caught: %s", how)
		}
	})
}
