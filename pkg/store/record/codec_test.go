package record

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/task"
)

// filled draws a value in which every field of its type is set, so that the test detects a field that the codec does
// not know.
func filled[T any](t *rapid.T) T {
	var v T
	fill(t, reflect.ValueOf(&v).Elem(), "value")
	return v
}

var text = rapid.OneOf(rapid.SampledFrom([]string{"", "a", "ü \"quoted\" \\ \n\t\x01 \u2028 <&>", "nightly-backup"}), rapid.String())

func fill(t *rapid.T, v reflect.Value, name string) {
	switch p := v.Addr().Interface().(type) {
	case *task.Time:
		if rapid.Bool().Draw(t, name) {
			*p = task.At(time.UnixMilli(rapid.Int64Range(0, 4e12).Draw(t, name)))
		}
		return
	case *task.Fields:
		if rapid.Bool().Draw(t, name) {
			b, _ := json.Marshal(map[string]any{"later": []any{text.Draw(t, name), map[string]any{"x": 7.5}}})
			*p = task.Fields(b[1 : len(b)-1])
		}
		return
	case *task.Duration:
		*p = task.Duration(rapid.Int64Range(0, 1e15).Draw(t, name))
		return
	case *task.PartNumbers:
		for i := range 8 {
			if rapid.Bool().Draw(t, name) {
				*p = append(*p, i)
			}
		}
		return
	case *task.Size:
		*p = task.Size(rapid.Int64Range(0, 1<<50).Draw(t, name))
		return
	case *task.Action:
		*p = rapid.SampledFrom([]task.Action{
			{Noop: &task.Noop{}}, {Process: &task.Process{Command: []string{"a", "b c"}, Env: map[string]string{"A": "1"}, Dir: "/x", User: "me"}},
		}).Draw(t, name)
		return
	}

	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.Name != "Checkpoint" || f.Tag.Get("json") != "-" { // the checkpoint of a part is not in the record of its run
				fill(t, v.Field(i), f.Name)
			}
		}
	case reflect.Pointer:
		if rapid.Bool().Draw(t, name) {
			v.Set(reflect.New(v.Type().Elem()))
			fill(t, v.Elem(), name)
		}
	case reflect.Slice:
		if n := rapid.IntRange(0, 2).Draw(t, name); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
		}

		for i := range v.Len() {
			fill(t, v.Index(i), name)
		}
	case reflect.Interface: // a value of a field that changed
		if rapid.Bool().Draw(t, name) {
			v.Set(reflect.ValueOf(rapid.SampledFrom([]any{"a", true, json.Number("7"), []any{"x", map[string]any{"y": "z"}}}).Draw(t, name)))
		}
	case reflect.Map:
		if rapid.Bool().Draw(t, name) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(t, key, name)
			fill(t, value, name)
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(key, value)
		}
	case reflect.String:
		v.SetString(text.Draw(t, name))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, name))
	case reflect.Int, reflect.Int64:
		v.SetInt(rapid.OneOf(rapid.Int64Range(-3, 3), rapid.Int64()).Draw(t, name))
	case reflect.Float64:
		v.SetFloat(rapid.Float64Range(0, 10).Draw(t, name))
	default:
		t.Fatalf("%s is a %s: fill must learn it", name, v.Kind())
	}
}

// keyless returns r without the fields that its key contains, and with consistent values.
func keyless(r task.Run) task.Run {
	r.ID, r.Namespace, r.Task, r.Shard, r.Progress = "", "", "", 0, nil
	if r.Token != 0 && r.DispatchedAt.IsZero() {
		r.DispatchedAt = r.CreatedAt
	}
	return r
}

// A record that is encoded without reflection decodes to the same value, and is JSON with the names of package task.
// A record that encoding/json has encoded decodes to the same value, too.
func TestCodec_RecordsReadBackAsTheyWere(t *testing.T) {
	same := func(t *rapid.T, what string, want, got any, err error, written string) {
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%s reads back as\n%+v, %v\nwant\n%+v\nfrom %s", what, got, err, want, written)
		}

		if !json.Valid([]byte(written)) {
			t.Fatalf("%s is no JSON: %s", what, written)
		}
	}

	plain := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return b
	}

	rapid.Check(t, func(t *rapid.T) {
		r := keyless(filled[task.Run](t))
		r.Checkpoint = "" // a run that has ended needs no checkpoint
		s := string(EncodeEnded(r))
		got, err := DecodeRunValue([]byte(s))
		same(t, "a run", r, got, err, s)
		r.Unknown = ""
		got, err = DecodeRunValue(plain(r))
		same(t, "a run of encoding/json", r, got, err, s)
	})

	rapid.Check(t, func(t *rapid.T) {
		w := filled[task.Waiting](t)
		w.Run = keyless(w.Run)
		s := string(EncodeWaiting(w))
		got, err := DecodeWaitingValue([]byte(s))
		same(t, "a waiting run", w, got, err, s)
		w.Unknown = ""
		got, err = DecodeWaitingValue(plain(w))
		same(t, "a waiting run of encoding/json", w, got, err, s)
	})

	rapid.Check(t, func(t *rapid.T) {
		a := filled[task.Assigned](t)
		a.Run = keyless(a.Run)
		a.Node, a.Token = "", 0
		if a.DispatchedAt.IsZero() {
			a.DispatchedAt = a.CreatedAt
		}

		if rapid.Bool().Draw(t, "usual grace") {
			a.KillGrace = usualGrace
		}

		if omitsRetry(a.Retry) {
			a.Retry = task.Retry{Attempts: 1, MaxBackoff: usualMaxBackoff}
		}

		s := string(EncodeAssigned(&a, Encode(a.Action)))
		var got task.Assigned
		err := DecodeAssignedValue([]byte(s), &got)
		same(t, "an attempt", a, got, err, s)
		a.Unknown = ""
		got = task.Assigned{}
		err = DecodeAssignedValue(plain(a), &got)
		same(t, "an attempt of encoding/json", a, got, err, s)
	})

	rapid.Check(t, func(t *rapid.T) {
		w := filled[Watermark](t)
		w.Time, w.Seen, w.Nonce = task.At(time.UnixMilli(7)), max(w.Seen, 0), "n"+w.Nonce
		s := string(EncodeWatermark(w))
		got, err := DecodeWatermark([]byte(s))
		same(t, "a watermark", w, got, err, s)
	})
}

func TestCodec_LeavesOutWhatIsNearlyAlwaysSo(t *testing.T) {
	at := task.At(time.UnixMilli(1_700_000_000_000))
	a := task.Assigned{
		Run:      task.Run{UID: "u", ScheduledTime: at, State: task.Dispatched, Trigger: task.TriggerSchedule, Attempt: 1, CreatedAt: at, DispatchedAt: at, Shard: 7},
		Instance: "i", Generation: 1, Action: task.Action{Noop: &task.Noop{}}, KillGrace: usualGrace, Retry: task.Defaults().Retry,
	}
	want := `{"uid":"u","scheduled_time":"2023-11-14T22:13:20.000Z","state":"dispatched","trigger":"schedule","attempt":1,` +
		`"created_at":"2023-11-14T22:13:20.000Z","instance":"i","generation":1,"action":{"noop":{}}}`

	for lostAfter, more := range map[task.Duration]string{
		0: "}", task.DefaultLostAfter: "}", task.Duration(30 * time.Second): `,"lost_after":"30s"}`,
	} {
		a.LostAfter = lostAfter
		if got := string(EncodeAssigned(&a, noopJSON)); got != strings.TrimSuffix(want, "}")+more {
			t.Errorf("written as %s", got)
		}
	}
}

// A node needs the bound of Retry-After, even if the task has no retries.
func TestCodec_KeepsMaxBackoffOfTasksWithoutRetries(t *testing.T) {
	for maxBackoff, written := range map[time.Duration]bool{5 * time.Minute: false, time.Hour: true, 0: true} {
		a := task.Assigned{Retry: task.Defaults().Retry}
		a.Retry.MaxBackoff = task.Duration(maxBackoff)
		text := EncodeAssigned(&a, noopJSON)

		var got task.Assigned
		if err := DecodeAssignedValue(text, &got); err != nil || got.Retry.Attempts != 1 || got.Retry.MaxBackoff != a.Retry.MaxBackoff {
			t.Errorf("max_backoff %v is read back as %+v, %v", maxBackoff, got.Retry, err)
		}
		if has := bytes.Contains(text, []byte(`"retry"`)); has != written {
			t.Errorf("max_backoff %v: the policy is written: %t", maxBackoff, has)
		}
	}
}

func TestCodec_RefusesWhatIsNoRecord(t *testing.T) {
	for _, text := range []string{
		``, `{`, `[]`, `7`, `null`, `{"uid":7}`, `{"state":{}}`, `{"attempt":"x"}`, `{"created_at":"yesterday"}`, `{"uid":"a"}{}`, `{"uid":"a"} x`,
		`{"token":1.5}`, `{"unknown":}`,
	} {
		if v, err := DecodeRunValue([]byte(text)); err == nil {
			t.Errorf("%s is read as %+v", text, v)
		}
	}

	if _, err := DecodeWaitingValue([]byte(`{"env":"x"}`)); err == nil {
		t.Error("an invalid environment is accepted")
	}

	if v, err := DecodeRunValue([]byte(`{"uid":"a","reason":null,"later":{"x":[1,2]},"state":"lost"} `)); err != nil || v.UID != "a" || v.State != task.Lost {
		t.Errorf("null and unknown fields: %+v, %v", v, err)
	}

	s := string(EncodeEnded(task.Run{UID: "a", OutputSummary: task.OutputSummary{OutputTail: "\xff!"}}))
	if v, err := DecodeRunValue([]byte(s)); err != nil || v.OutputTail != "\ufffd!" {
		t.Errorf("invalid UTF-8 becomes %q, %v", v.OutputTail, err)
	}
}

// An entry that is split and encoded again is the same, including fields that this version does not know.
func TestEntryParts_LoseNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := filled[task.Entry](t)
		e.Schedule = task.Schedules{"* * * * *", text.Draw(t, "schedule")}
		b, _ := json.Marshal(e)
		doc := number(b)
		doc["later"] = map[string]any{"x": []any{text.Draw(t, "later")}}
		b, _ = json.Marshal(doc)
		var parts EntryParts
		if err := parts.Split(b); err != nil {
			t.Fatal(err)
		}

		if again := number(EncodeParts(parts)); !reflect.DeepEqual(again, number(b)) {
			t.Fatalf("%s became %s", b, EncodeParts(parts))
		}

		timing, err := DecodeTiming(string(parts.Timing))
		policy, perr := DecodePolicy(string(parts.Policy))
		if err != nil || perr != nil || !reflect.DeepEqual(timing.Schedule, e.Schedule) || timing.Timezone != e.Timezone || timing.DST != e.DST ||
			policy.Overlap != e.Overlap || policy.Missed != e.Missed || policy.KillGrace != e.KillGrace || !reflect.DeepEqual(policy.History, e.History) {
			t.Fatalf("%s: timing %+v, %v; policy %+v, %v", b, timing, err, policy, perr)
		}
	})
}

// number decodes a document without converting its numbers.
func number(b []byte) map[string]any {
	var doc map[string]any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()

	if err := d.Decode(&doc); err != nil {
		panic(err)
	}

	return doc
}

func BenchmarkCodec(b *testing.B) {
	now := task.At(time.UnixMilli(1_700_000_000_123))
	a := task.Assigned{
		Run: task.Run{UID: "vlzil5fydrpbdsib", ScheduledTime: now, State: task.Dispatched, Trigger: task.TriggerSchedule, Owner: "node-1",
			Attempt: 1, CreatedAt: now, DispatchedAt: now},
		Instance: "vlzil5fydrpbdsib", Generation: 1, Action: task.Action{Process: &task.Process{Command: []string{"/usr/bin/backup", "--all"}}},
		KillGrace: usualGrace, Retry: task.Defaults().Retry,
	}
	action := Encode(a.Action)
	end := a.Run
	end.State, end.StartedAt, end.EndedAt, end.LatenessMS, end.Token = task.Succeeded, now, now, new(int64(1)), 1e6
	spec := task.Defaults()
	spec.Schedule, spec.Action = task.Schedules{"*/5 * * * *"}, a.Action
	entry := []byte(Encode(task.NewEntry(task.Task{Spec: spec, UID: a.UID, Generation: 1}, now, now)))
	assigned, ended := EncodeAssigned(&a, action), EncodeEnded(end)
	for name, f := range map[string]func() error{
		"encode attempt": func() error { EncodeAssigned(&a, action); return nil },
		"encode end":     func() error { EncodeEnded(end); return nil },
		"decode attempt": func() error { return DecodeAssignedValue(assigned, new(task.Assigned)) },
		"decode end":     func() error { _, err := DecodeRunValue(ended); return err },
		"decode entry":   func() error { _, err := DecodeEntry(entry); return err },
		"split entry":    func() func() error { var p EntryParts; return func() error { return p.Split(entry) } }(),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()

			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
