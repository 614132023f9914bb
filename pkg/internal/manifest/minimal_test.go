package manifest

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/task"
)

// MinimalSpec leaves out only defaults: reading its output, as YAML or as JSON, yields the same task, and the schema
// accepts it.
//
// Verifies: G44
func TestMinimalSpec_IsReadAsTheSameTask(t *testing.T) {
	s := compiled(t)
	rapid.Check(t, func(t *rapid.T) {
		spec := drawSpec(t)
		if err := Check(&spec); err != nil {
			t.Fatalf("drawn: %v", err)
		}

		bare := spec.Namespace == "default" && rapid.Bool().Draw(t, "bare")
		least, err := MinimalSpec(spec, bare)
		if err != nil {
			t.Fatal(err)
		}

		yaml, err := WriteYAML(least)
		if err != nil {
			t.Fatal(err)
		}

		want, _ := json.Marshal(spec)

		for file, text := range map[string][]byte{"x.yaml": yaml, "x.json": least, "x.ndjson": append(least, '\n')} {
			objects, err := Read(file, text, "default")
			if err != nil || len(objects) != 1 || objects[0].Err != nil {
				t.Fatalf("%v: %+v\n%s", err, objects, text)
			}

			if got, _ := json.Marshal(objects[0].Spec); !bytes.Equal(got, want) {
				t.Fatalf("%s:\n%s\n is read as\n%s\nwant\n%s", file, text, got, want)
			}
		}

		docs, _ := splitDocuments("x.json", least)
		var v any
		if err := json.Unmarshal(docs[0].toJSON(), &v); err != nil {
			t.Fatal(err)
		}

		if err := s.Validate(v); err != nil {
			t.Fatalf("%s: %v", yaml, err)
		}
	})
}

// A receiver has other defaults. What differs from them is kept, even if it is the default of other tasks.
func TestMinimalSpec_OfAReceiver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		action := rapid.SampledFrom([]task.Action{{Noop: &task.Noop{}}, {HTTP: &task.HTTP{URL: "https://a", UnsentFor: new(task.Duration)}}}).Draw(t, "action")
		spec := task.ReceiverDefaults(action)
		spec.Name, spec.Action, spec.Accept.Env = "slack", action, []string{"ALERT_TEXT"}
		spec.Retry.Attempts = rapid.SampledFrom([]int{1, 4}).Draw(t, "attempts")
		spec.Retry.MaxBackoff = rapid.SampledFrom([]task.Duration{0, task.Duration(time.Minute)}).Draw(t, "max_backoff")
		spec.MaxActive = rapid.SampledFrom([]int{1, 20}).Draw(t, "max_active")
		spec.Timeout = rapid.SampledFrom([]task.Duration{spec.Timeout, task.Duration(5 * time.Minute)}).Draw(t, "timeout")
		spec.History.Keep = rapid.SampledFrom([]int{50, 80}).Draw(t, "keep")
		if rapid.Bool().Draw(t, "fields") {
			no := false
			spec.Receiver = &task.Receiver{From: []string{"shop"}, Repeat: new(task.Duration), Output: &no}
			spec.Alerts = &task.Alerts{Notify: []string{"ops/mail"}, Failures: new(int), SuccessBy: "0 6 * * *", Output: true}
		}
		if err := Check(&spec); err != nil {
			t.Fatal(err)
		}

		least, err := MinimalSpec(spec, true)
		if err != nil {
			t.Fatal(err)
		}

		objects, err := Read("x.json", least, "default")
		if err != nil || objects[0].Err != nil {
			t.Fatalf("%v: %+v\n%s", err, objects, least)
		}

		got, _ := json.Marshal(objects[0].Spec)
		if want, _ := json.Marshal(spec); !bytes.Equal(got, want) {
			t.Fatalf("%s\n is read as\n%s\nwant\n%s", least, got, want)
		}
	})

	// The default of a receiver is not written.
	spec := task.ReceiverDefaults(task.Action{})
	spec.Name, spec.Action.Noop = "slack", &task.Noop{}
	if b, err := MinimalSpec(spec, true); err != nil || string(b) != `{"name":"slack","schedule":"@manual","action":{"noop":{}},"receiver":{}}` {
		t.Errorf("%s, %v", b, err)
	}
}

func TestMinimalSpec_SaysOnlyWhatIsNotTheDefault(t *testing.T) {
	s := task.Defaults()
	s.Name, s.Schedule, s.Action.Noop = "a", task.Schedules{"@daily"}, &task.Noop{}
	s.Retry.Attempts, s.Retry.On = 3, []task.State{}

	for bare, want := range map[bool]string{
		true:  "name: a\nschedule: \"@daily\"\naction:\n  noop: {}\nretry:\n  attempts: 3\n  \"on\": []\n",
		false: "name: a\nnamespace: default\nschedule: \"@daily\"\naction:\n  noop: {}\nretry:\n  attempts: 3\n  \"on\": []\n",
	} {
		b, err := MinimalSpec(s, bare)
		if err != nil {
			t.Fatal(err)
		}

		if got, _ := WriteYAML(b); string(got) != want {
			t.Errorf("got\n%s", got)
		}
	}
}

// What a task that runs after others has by default is not written. With a schedule, it must say what happens if both want to run.
func TestMinimalSpec_OfDependents(t *testing.T) {
	for text, want := range map[string]string{
		`{"name": "a", "after": "etl", "action": {"noop": {}}}`:                                                 "name: a\nafter: etl\naction:\n  noop: {}\n",
		`{"name": "a", "after": "etl", "overlap": "skip", "schedule": "@daily", "action": {"noop": {}}}`:        "name: a\nschedule: \"@daily\"\nafter: etl\naction:\n  noop: {}\noverlap: skip\n",
		`{"name": "a", "after": ["b", "c"], "join": "any", "queue": {"limit": 9}, "action": {"noop": {}}}`:      "name: a\nafter:\n  - b\n  - c\njoin: any\naction:\n  noop: {}\nqueue:\n  limit: 9\n",
		`{"name": "a", "after": {"task": "etl", "when": "failed"}, "overlap": "allow", "action": {"noop": {}}}`: "name: a\nafter:\n  task: etl\n  when: failed\naction:\n  noop: {}\noverlap: allow\n",
	} {
		s, err := task.DecodeSpec([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		b, err := MinimalSpec(s, true)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := WriteYAML(b); string(got) != want {
			t.Errorf("%s: got\n%s", text, got)
		}
		if again, err := task.DecodeSpec(b); err != nil || len(task.Differences(s, again)) > 0 {
			t.Errorf("%s: %v, %v", text, err, task.Differences(s, again))
		}
	}
}

// drawSpec draws any valid task.
func drawSpec(t *rapid.T) task.Spec {
	s := task.Defaults()
	some := func(what string) bool { return rapid.IntRange(0, 2).Draw(t, what) == 0 }
	text := rapid.StringOf(rapid.SampledFrom([]rune("aZ09 -:#'\"\\{}[]&*!|>%@`,?\n\tüß🙂~=")))
	duration := func(what string, most time.Duration) task.Duration {
		return task.Duration(time.Duration(rapid.Int64Range(1, most.Milliseconds()).Draw(t, what)) * time.Millisecond)
	}

	s.Name = rapid.SampledFrom([]string{"a", "null", "true", "123", "1e3", "0x1f", "no", "2026-12-24", "nightly-backup", "a.b_c"}).Draw(t, "name")
	s.Namespace = rapid.SampledFrom([]string{"default", "team", "1", "on"}).Draw(t, "namespace")
	s.Schedule = rapid.SampledFrom([]task.Schedules{{"@daily"}, {"30 2 * * *", "@every 90s"}, {"@manual"}, {"H * * * *"}, {"*/5 * * * *"}}).Draw(t, "schedule")
	s.Description = text.Draw(t, "description")
	if some("labels") {
		s.Labels = map[string]string{"team": "data", "yes": "1", "a/b": "", "x": "null"}
	}

	if some("zone") {
		s.Timezone, s.DST = "Europe/Berlin", task.DST{Gap: task.GapSkip, Fold: task.FoldBoth}
	}

	if some("span") {
		s.Start, s.End = task.At(time.Date(2026, 12, 1, 0, 0, 0, 1e6, time.UTC)), task.At(time.Date(2027, 12, 1, 0, 0, 0, 0, time.UTC))
		s.Jitter, s.MaxRuns, s.TTL = duration("jitter", time.Hour), rapid.Int64Range(0, 9).Draw(t, "max_runs"), task.Duration(time.Hour)
	}

	p := &task.Process{}

	switch rapid.IntRange(0, 2).Draw(t, "action") {
	case 0:
		s.Action.Noop = &task.Noop{}
	case 1:
		p.Shell = "x" + text.Draw(t, "shell")
		s.Action.Process = p
	default:
		p.Command = append([]string{"true"}, rapid.SliceOf(text).Draw(t, "args")...)
		p.Env, p.Dir = map[string]string{"A": text.Draw(t, "env"), "n": "1"}, "/x y"
		s.Action.Process = p
	}

	if some("time") {
		s.Timeout, s.KillGrace = duration("timeout", time.Hour), 0
	}

	switch s.Overlap = rapid.SampledFrom([]string{task.OverlapSkip, task.OverlapQueue, task.OverlapAllow}).Draw(t, "overlap"); s.Overlap {
	case task.OverlapQueue:
		s.Queue = task.QueuePolicy{Limit: rapid.IntRange(1, 3).Draw(t, "limit"), Drop: rapid.SampledFrom([]string{"", task.DropOldest}).Draw(t, "drop")}
	case task.OverlapAllow:
		s.MaxActive = rapid.IntRange(0, 3).Draw(t, "max_active")
	}

	if some("after") {
		s.After = task.Sources{{Task: "etl", When: task.WhenFailed, Results: []string{"rows"}}}
		if some("several") {
			s.After, s.Join = append(s.After, task.Source{Task: "yes"}), task.JoinAny
		}
		if s.Overlap == task.OverlapQueue && some("large") {
			s.Queue.Limit = task.DefaultTriggerQueue
		}
	}
	if len(s.After) > 0 && !s.Schedule.HasTicks() {
		s.Start, s.End, s.Jitter, s.MaxRuns, s.TTL = task.Time{}, task.Time{}, 0, 0, 0
	} else if some("missed") {
		s.Missed.Policy, s.Missed.Limit = task.MissedAll, 7
		s.Missed.Grace = task.Duration(time.Minute)
	}

	if some("retry") {
		s.Retry.Attempts, s.Retry.Jitter = rapid.IntRange(1, 3).Draw(t, "attempts"), rapid.Float64Range(0, 1).Draw(t, "part")
		s.Retry.On = rapid.SampledFrom([][]task.State{{}, {task.Lost}, {task.Failed, task.Lost}}).Draw(t, "on")
		if len(s.Retry.On) == 2 {
			s.Retry.ExitCodes = []int{75, 1}
		}
	}

	if some("target") {
		s.Target.Selector, s.History.Keep, s.History.Record = "role = db, !gpu", 3, task.RecordFailures
	}

	if some("pause") {
		s.Paused, s.PauseReason, s.PauseAfter = true, text.Draw(t, "reason"), 3
		if len(s.PauseReason) > 200 {
			s.PauseReason = "x"
		}
	}

	return s
}
