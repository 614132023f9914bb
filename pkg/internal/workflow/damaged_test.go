package workflow_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/workflow"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// flowText is a valid state: a map of three items of which a retry repeats two, one of which has not begun, and cleanup.
const flowText = `{"count":3,"left":"1","flow":{"generation":1,"steps":[
	{"name":"a","kind":"noop","opened_at":"2026-01-01T00:00:00Z","first":2,"count":1},
	{"name":"b","kind":"noop","needs":"0","map":true,"max_parallel":2,"opened_at":"2026-01-01T00:00:00Z","count":2,"items":"4,7","kept":1},
	{"name":"c","kind":"noop","needs":"0-1","when":"always"}]}}`

// damagedFlows are states that somebody edited by hand. An owner would not survive most of them.
var damagedFlows = []string{
	`{"flow":{}}`,
	`{"flow":{"steps":[{"kind":"noop"}]}}`,
	`{"flow":{"steps":[{"name":"a"},{"name":"a"}]}}`,
	`{"flow":{"steps":[{"name":"a","needs":"0"}]}}`,
	`{"flow":{"steps":[{"name":"a","needs":"7"}]}}`,
	`{"flow":{"steps":[{"name":"a","needs":"1"},{"name":"b","needs":"0"}]}}`,
	`{"flow":{"steps":[{"name":"a","when":"failed"}]}}`,
	`{"flow":{"steps":[{"name":"a","when":"always"}]}}`,
	`{"flow":{"steps":[{"name":"a"},{"name":"b","needs":"0","when":"ended"}]}}`,
	`{"count":-1,"flow":{"steps":[{"name":"a"}]}}`,
	`{"count":1101,"flow":{"steps":[{"name":"a"}]}}`,
	`{"count":2,"left":"2","flow":{"steps":[{"name":"a"}]}}`,
	`{"count":1,"parts":[{"index":1}],"flow":{"steps":[{"name":"a"}]}}`,
	`{"count":1,"parts":[{"index":-1}],"flow":{"steps":[{"name":"a"}]}}`,
	`{"count":1,"flow":{"steps":[{"name":"a","count":1}]}}`,
	`{"count":1,"flow":{"steps":[{"name":"a","opened_at":"2026-01-01T00:00:00Z","first":1,"count":1}]}}`,
	`{"count":1,"flow":{"steps":[{"name":"a","opened_at":"2026-01-01T00:00:00Z","first":-1,"count":1}]}}`,
	`{"count":1,"flow":{"steps":[{"name":"a","opened_at":"2026-01-01T00:00:00Z","first":9223372036854775807,"count":1}]}}`,
	`{"count":1,"flow":{"steps":[{"name":"a","map":true,"max_parallel":1,"opened_at":"2026-01-01T00:00:00Z","count":9223372036854775807}]}}`,
	`{"count":1,"flow":{"steps":[{"name":"a","map":true,"max_parallel":1,"opened_at":"2026-01-01T00:00:00Z","count":-1}]}}`,
	`{"count":1,"flow":{"steps":[{"name":"a","map":true,"opened_at":"2026-01-01T00:00:00Z","count":1}]}}`,
	`{"count":2,"flow":{"steps":[{"name":"a","opened_at":"2026-01-01T00:00:00Z","count":2}]}}`,
	`{"count":1,"flow":{"steps":[{"name":"a","opened_at":"2026-01-01T00:00:00Z","count":1,"is_kept":true}]}}`,
	`{"count":1,"flow":{"steps":[{"name":"a","opened_at":"2026-01-01T00:00:00Z","count":1,"reason":"results"}]}}`,
	`{"count":2,"flow":{"steps":[{"name":"a","map":true,"max_parallel":1,"opened_at":"2026-01-01T00:00:00Z","count":2,"items":"3"}]}}`,
	`{"count":1,"flow":{"steps":[{"name":"a","map":true,"max_parallel":1,"opened_at":"2026-01-01T00:00:00Z","count":1,"items":"1000"}]}}`,
	`{"flow":{"steps":[{"name":"a","items":"3"}]}}`,
	`{"flow":{"steps":[{"name":"a","map":true,"max_parallel":1,"kept":-1}]}}`,
	`{"flow":{"steps":[{"name":"a","map":true,"max_parallel":1,"items":"3","kept":1000}]}}`,
	`{"flow":{"steps":[{"name":"a","kept":1}]}}`,
	`{"count":2,"flow":{"steps":[
		{"name":"a","map":true,"max_parallel":1,"opened_at":"2026-01-01T00:00:00Z","count":2},
		{"name":"b","opened_at":"2026-01-01T00:00:00Z","first":1,"count":1}]}}`,
}

// A record of a run whose steps cannot be used counts as one that cannot be read, wherever it is.
func TestDecode_RefusesStepsThatCannotBeUsed(t *testing.T) {
	t.Parallel()

	k := record.ShardKey{Ref: record.Ref{Namespace: "default", Name: "a"}, Run: "r"}
	decode := func(fan string) map[string]error {
		value := []byte(`{"uid":"u","state":"running","fan_out":` + fan + `}`)
		_, waiting := record.DecodeWaiting(k, value)
		_, ended := record.DecodeEnded(k, value)
		_, assigned := record.DecodeAssigned(record.RunKey{}, 1, value)
		return map[string]error{"queue": waiting, "history": ended, "inbox": assigned}
	}

	for where, err := range decode(flowText) {
		if err != nil {
			t.Errorf("a valid record of the %s: %v", where, err)
		}
	}
	for _, text := range damagedFlows {
		for where, err := range decode(text) {
			if err == nil {
				t.Errorf("%s is accepted in the %s", text, where)
			}
		}
	}
}

// What passes the check can be used without a panic, and without a long loop.
func FuzzValidateFlow(f *testing.F) {
	f.Add(flowText, uint64(5), "b")
	for _, text := range damagedFlows {
		f.Add(text, uint64(0), "")
	}

	states := []task.State{"", task.Succeeded, task.Failed, task.Cancelled, task.Lost}
	f.Fuzz(func(t *testing.T, text string, seed uint64, from string) {
		var fan task.Fan
		if json.Unmarshal([]byte(text), &fan) != nil || fan.ValidateFlow() != nil || fan.Flow == nil {
			return
		}

		ends := func(part int) (task.State, bool) {
			s := states[(seed>>(part%60))%uint64(len(states))]
			return s, s != ""
		}

		now := workflow.States(&fan, ends)
		for _, s := range now.Steps {
			for _, part := range s.Next {
				fan.Without(slices.Index(fan.Left, part))
			}
		}

		for part := -1; part <= fan.Count; part++ {
			if s := fan.Flow.StepOf(part); s != nil {
				s.ItemOf(part)
			}
			fan.CutsPart(part)
		}

		// A retry of a valid run is valid, too.
		again, ok := workflow.Retry(&fan, ends, "dead", from)
		if !ok {
			return
		}
		if err := again.ValidateFlow(); err != nil {
			t.Errorf("the retry of %s: %v", text, err)
		}
		workflow.States(again, func(int) (task.State, bool) { return "", false })
	})
}
