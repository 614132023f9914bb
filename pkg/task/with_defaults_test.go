package task_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// An empty Spec has all defaults, as an empty JSON object: a default that is added later must be added to WithDefaults.
func TestWithDefaults_OfAnEmptySpecAreAllDefaults(t *testing.T) {
	if got, want := (task.Spec{}).WithDefaults(), task.Defaults(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}

	receiver := task.Spec{Receiver: &task.Receiver{}, Action: task.Action{Process: &task.Process{Shell: "mail"}}}
	want := task.ReceiverDefaults(receiver.Action)
	want.Action = receiver.Action
	if got := receiver.WithDefaults(); !reflect.DeepEqual(got, want) {
		t.Errorf("a receiver: got  %+v\nwant %+v", got, want)
	}
}

func TestWithDefaults_KeepsWhatIsSet(t *testing.T) {
	s := task.Spec{Name: "a", Timezone: "Europe/Berlin", Overlap: task.OverlapQueue, KillGrace: task.Duration(time.Second), Retry: task.Retry{Attempts: 3}, Target: task.Target{Count: task.All}}
	got := s.WithDefaults()
	std := task.Defaults()
	want := std
	want.Name, want.Timezone, want.Overlap, want.KillGrace, want.Retry.Attempts, want.Target.Count = "a", s.Timezone, s.Overlap, s.KillGrace, 3, task.All
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}

	s = task.Spec{Name: "a", Retry: task.Retry{Attempts: 3, Factor: 1, On: []task.State{}}}
	if got := s.WithDefaults().Retry; got.Backoff != 0 || got.Jitter != 0 || got.MaxBackoff != 0 || len(got.On) != 0 {
		t.Errorf("a complete retry became %+v", got)
	}
}

// The zeros of a Spec that was read are values, and those of one that somebody wrote are mistakes that must be seen.
func TestWithDefaults_ChangesNoCompleteSpec(t *testing.T) {
	std := task.Defaults()
	zeros := std
	zeros.KillGrace, zeros.Retry.Backoff, zeros.Retry.MaxBackoff, zeros.Retry.Jitter = 0, 0, 0, 0

	decoded, err := task.DecodeSpec([]byte(`{"name":"a","schedule":"@daily","overlap":"","retry":{"backoff":"0s"}}`))
	if err != nil {
		t.Fatal(err)
	}

	for what, s := range map[string]task.Spec{"the defaults": std, "zeros": zeros, "an empty overlap": decoded} {
		if got := s.WithDefaults(); !reflect.DeepEqual(got, s) {
			t.Errorf("%s became %+v", what, got)
		}
	}
}
