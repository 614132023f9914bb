package record

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/task"
)

// endOf is EndOf by decoding the record.
func endOf(value []byte) (End, bool) {
	r, err := DecodeRunValue(value)
	if err != nil || r.State == "" || r.EndedAt.IsZero() || r.EndedAt.UnixMilli() == 0 {
		return End{}, false
	}

	e := End{State: r.State, Ended: r.EndedAt.UnixMilli()}
	if !r.StartedAt.IsZero() {
		e.Started = r.StartedAt.UnixMilli()
	}
	if r.LatenessMS != nil {
		e.LatenessMS = *r.LatenessMS
	}

	return e, true
}

func TestEndOf_IsWhatDecodingGives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := EncodeEnded(filled[task.Run](t))
		got, ok := EndOf(value)

		if want, wantOK := endOf(value); ok != wantOK || ok && got != want {
			t.Fatalf("%+v, %t of %s; want %+v, %t", got, ok, value, want, wantOK)
		}
	})
}

func TestEndOf_IgnoresEarlierAttemptsAndOtherLayouts(t *testing.T) {
	const want = 1767355205000

	for text, ok := range map[string]bool{
		`{"attempts":[{"attempt":1,"state":"failed","started_at":"2026-01-01T00:00:00Z","ended_at":"2026-01-01T00:00:01Z"}],"ended_at":"2026-01-02T12:00:05.000Z","state":"lost"}`: true,
		`{ "lateness_ms": 7, "state" : "lost", "ended_at" : "2026-01-02T12:00:05Z" }`:                                                                                              true,
		`{"state":"lost","ended_at":null}`:                  false,
		`{"state":"lost","ended_at":"soon"}`:                false,
		`{"ended_at":"2026-01-02T12:00:05Z"}`:               false,
		`{"state":"lost","ended_at":"2026-01-02T12:00:05Z"`: false,
		`[]`: false, ``: false, `{}`: false,
	} {
		e, is := EndOf([]byte(text))
		if is != ok || ok && (e.State != task.Lost || e.Ended != want) {
			t.Errorf("%s: %+v, %t", text, e, is)
		}
	}
}

// usualEnd is the record of a scheduled run that has succeeded.
func usualEnd() []byte {
	now := task.At(time.UnixMilli(1_700_000_000_123))
	r := task.Run{UID: "vlzil5fydrpbdsib", ScheduledTime: now, State: task.Succeeded, Trigger: task.TriggerSchedule, Node: "node-2", Owner: "node-1",
		Attempt: 1, Token: 1e6, CreatedAt: now, DispatchedAt: now, StartedAt: now, EndedAt: now, ExitCode: new(0), LatenessMS: new(int64(3))}
	r.OutputTail, r.OutputBytes = "backed up 4,711 files in 12 directories\n", 40

	return EncodeEnded(r)
}

func TestEndOf_AllocatesNothing(t *testing.T) {
	value := usualEnd()

	if n := testing.AllocsPerRun(100, func() { EndOf(value) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkEndOf(b *testing.B) {
	value := usualEnd()
	b.ReportAllocs()

	for b.Loop() {
		if _, ok := EndOf(value); !ok {
			b.Fatal("not read")
		}
	}
}
