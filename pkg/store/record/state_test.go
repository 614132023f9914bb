package record

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestStateOf_FindsTheRecordsOwnState(t *testing.T) {
	for _, s := range task.States() {
		code := 1
		r := task.Run{
			UID: `"state":"lost"`, ScheduledTime: task.At(time.Now()), State: s, ExitCode: &code, Trigger: task.TriggerSchedule,
			Attempts: []task.Attempt{{Attempt: 1, State: task.TimedOut}}, OutputSummary: task.OutputSummary{OutputTail: `{"state":"lost"}`},
		}
		plain, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}

		indented, _ := json.MarshalIndent(r, "", " ")
		for how, value := range map[string]string{"ours": string(EncodeEnded(r)), "plain": string(plain), "indented": string(indented)} {
			if got := StateOf([]byte(value)); got != s {
				t.Errorf("%s, %s: %q", s, how, got)
			}
		}
	}

	for value, want := range map[string]task.State{
		`{"attempts":[{"state":"lost"}],"state":"failed"}`: task.Failed,
		`{"state":"new"}`: "new",
		`{"state":null}`:  "",
		`{"uid":"a"}`:     "",
		`{"state":"fai`:   "",
		`[]`:              "",
		``:                "",
	} {
		if got := StateOf([]byte(value)); got != want {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
}
