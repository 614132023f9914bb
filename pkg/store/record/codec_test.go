package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

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
		if f, ok := v.Addr().Interface().(*task.Fan); ok && f.Flow != nil {
			makeUsable(t, f)
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

// makeUsable changes the numbers of steps, parts and items so that they fit together.
func makeUsable(t *rapid.T, f *task.Fan) {
	f.Count = 8
	for i := range f.Parts {
		f.Parts[i].Index = i
	}

	if len(f.Flow.Steps) == 0 {
		f.Flow.Steps = make([]task.FlowStep, 1)
	}
	for i := range f.Flow.Steps {
		s := &f.Flow.Steps[i]
		s.Name, s.Needs, s.When, s.IsMap, s.MaxParallel, s.Kept, s.First, s.Count = fmt.Sprint("s", i), nil, "", true, 1+i, i, 0, 0
		if i > 0 {
			s.Needs, s.When = task.PartNumbers{i - 1}, rapid.SampledFrom([]task.When{"", task.WhenFailed, task.WhenAlways}).Draw(t, "When")
		}
		if s.IsOpened() {
			s.Items = s.Items[:min(len(s.Items), 3)]
			s.First, s.Count, s.IsKept, s.Reason = 3*i, len(s.Items), false, ""
		}
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

// codecOf is the codec of one kind of record.
type codecOf[T any] struct {
	encode func(T) []byte
	decode func([]byte) (T, error)
	// prepare removes what a record does not contain. usual is the record before its fields are read, and complete sets the
	// fields that the encoder has omitted.
	prepare  func(t *rapid.T, v *T)
	usual    T
	complete func(*T)
	unknown  func(*T) *task.Fields // nil if the record does not preserve unknown fields
}

var runCodec = codecOf[task.Run]{
	encode: EncodeEnded,
	decode: DecodeRunValue,
	prepare: func(_ *rapid.T, v *task.Run) {
		*v = keyless(*v)
		v.Checkpoint = "" // a run that has ended needs no checkpoint
	},
	complete: func(v *task.Run) { completeRun(v, wasDispatched(v)) },
	unknown:  func(v *task.Run) *task.Fields { return &v.Unknown },
}

var waitingCodec = codecOf[task.Waiting]{
	encode:   EncodeWaiting,
	decode:   DecodeWaitingValue,
	prepare:  func(_ *rapid.T, v *task.Waiting) { v.Run = keyless(v.Run) },
	complete: func(v *task.Waiting) { completeRun(&v.Run, wasDispatched(&v.Run)) },
	unknown:  func(v *task.Waiting) *task.Fields { return &v.Unknown },
}

var assignedCodec = codecOf[task.Assigned]{
	encode: func(v task.Assigned) []byte { return EncodeAssigned(&v, Encode(v.Action)) },
	decode: func(b []byte) (v task.Assigned, err error) {
		err = DecodeAssignedValue(b, &v)
		return v, err
	},
	prepare: func(t *rapid.T, v *task.Assigned) {
		v.Run = keyless(v.Run)
		v.Node, v.Token = "", 0
		if v.DispatchedAt.IsZero() {
			v.DispatchedAt = v.CreatedAt
		}

		if rapid.Bool().Draw(t, "usual grace") {
			v.KillGrace = usualGrace
		}

		if omitsRetry(v.Retry) {
			v.Retry = task.Retry{Attempts: 1, MaxBackoff: usualMaxBackoff}
		}
	},
	usual:    task.Assigned{KillGrace: usualGrace, Retry: task.Retry{Attempts: 1, MaxBackoff: usualMaxBackoff}},
	complete: func(v *task.Assigned) { completeRun(&v.Run, true) },
	unknown:  func(v *task.Assigned) *task.Fields { return &v.Unknown },
}

var watermarkCodec = codecOf[Watermark]{
	encode: EncodeWatermark,
	decode: DecodeWatermark,
	prepare: func(_ *rapid.T, v *Watermark) {
		v.Time, v.Seen, v.Nonce = task.At(time.UnixMilli(7)), max(v.Seen, 0), "n"+v.Nonce
	},
	complete: func(*Watermark) {},
	unknown:  func(v *Watermark) *task.Fields { return &v.Unknown },
}

var auditCodec = codecOf[task.AuditRecord]{
	encode:   func(v task.AuditRecord) []byte { return []byte(EncodeAudit(&v)) },
	decode:   decodeAuditRecord,
	prepare:  func(*rapid.T, *task.AuditRecord) {},
	complete: func(*task.AuditRecord) {},
}

// A record that is encoded without reflection decodes to the same value, and so does one of encoding/json. encoding/json
// decodes both as well.
func TestCodec_AgreesWithEncodingJSON(t *testing.T) {
	t.Run("run", func(t *testing.T) { checkCodec(t, runCodec) })
	t.Run("waiting", func(t *testing.T) { checkCodec(t, waitingCodec) })
	t.Run("assigned", func(t *testing.T) { checkCodec(t, assignedCodec) })
	t.Run("watermark", func(t *testing.T) { checkCodec(t, watermarkCodec) })
	t.Run("audit", func(t *testing.T) { checkCodec(t, auditCodec) })
}

func checkCodec[T any](t *testing.T, c codecOf[T]) {
	rapid.Check(t, func(t *rapid.T) {
		v := filled[T](t)
		c.prepare(t, &v)

		same := func(what string, written []byte, decode func([]byte) (T, error)) {
			got, err := decode(written)
			if err != nil || !reflect.DeepEqual(normal(got), normal(v)) {
				t.Fatalf("%s reads back as\n%+v, %v\nwant\n%+v\nfrom %s", what, got, err, v, written)
			}
		}

		same("a record", c.encode(v), c.decode)

		if c.unknown != nil {
			*c.unknown(&v) = ""
		}

		plain, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}

		same("a record of encoding/json", plain, c.decode)
		same("a record, by encoding/json,", c.encode(v), c.decodePlain)
	})
}

// decodePlain decodes a record with encoding/json.
func (c codecOf[T]) decodePlain(b []byte) (T, error) {
	v := c.usual
	err := json.Unmarshal(b, &v)
	c.complete(&v)

	// The decoders also reject steps that cannot be used.
	switch r := any(v).(type) {
	case task.Run:
		err = requireValidSteps(&r, err)
	case task.Waiting:
		err = requireValidSteps(&r.Run, err)
	case task.Assigned:
		err = requireValidSteps(&r.Run, err)
	}

	return v, err
}

// normal returns v with numbers of values of any type as encoding/json reads them.
func normal[T any](v T) any {
	if r, ok := any(v).(task.AuditRecord); ok {
		b, err := json.Marshal(r)
		if err != nil {
			panic(err)
		}
		return number(b)
	}

	return v
}

// FuzzCodec compares the decoders with encoding/json: they accept the same documents, with the same values. Documents in which
// a field is repeated are made unambiguous first.
func FuzzCodec(f *testing.F) {
	at := task.At(time.UnixMilli(1_700_000_000_000))
	r := task.Run{UID: "u", State: task.Failed, ScheduledTime: at, CreatedAt: at, Token: 7, ExitCode: new(3), LatenessMS: new(int64(4)), Usage: task.Usage{CPUMS: 5}}
	r.Attempts, r.Unsent, r.Unknown = []task.Attempt{r.AsAttempt()}, &task.Unsent{Count: 2, First: at}, `"later":{"x":[1]}`
	f.Add(EncodeEnded(r))
	f.Add(EncodeWaiting(task.Waiting{Run: r, Env: map[string]string{"A": "1"}}))
	f.Add(EncodeAssigned(&task.Assigned{Run: r, Timeout: task.Duration(time.Minute), Success: task.Success{Output: "ok"}}, noopJSON))
	f.Add(EncodeWatermark(Watermark{Time: at, Last: "a/b", Nonce: "n"}))
	f.Add([]byte(EncodeAudit(&task.AuditRecord{Time: at, Subject: "user:a", Objects: []task.AuditObject{{Kind: "task", Fields: []string{"b"}}}, Gap: &task.AuditGap{Why: "age"}})))
	f.Add([]byte(`{"uid":null,"attempts":[null,{"attempt":null}],"usage":{"cpu_ms":1.0},"token":1e2}`))

	f.Fuzz(func(t *testing.T, b []byte) {
		var doc map[string]any
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		if d.Decode(&doc) != nil || doc == nil || bytes.ContainsFunc(b, unicode.IsUpper) && hasUpperName(doc) {
			return // encoding/json also accepts names in upper case
		}

		for _, name := range []string{"id", "namespace", "task", "shard", "progress"} { // not part of a run's record
			delete(doc, name)
		}

		b, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}

		compareDecoders(t, b, runCodec)
		compareDecoders(t, b, waitingCodec)
		compareDecoders(t, b, assignedCodec)
		compareDecoders(t, b, auditCodec)

		if w, err := DecodeWatermark(b); err == nil { // it also rejects incomplete records
			compareDecoders(t, EncodeWatermark(w), watermarkCodec)
		}
	})
}

// hasUpperName reports whether the name of a field, at any level, contains upper case letters.
func hasUpperName(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if strings.ToLower(name) != name || hasUpperName(value) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, hasUpperName)
	}

	return false
}

func compareDecoders[T any](t *testing.T, b []byte, c codecOf[T]) {
	t.Helper()

	got, err := c.decode(b)
	want, plainErr := c.decodePlain(b)
	if (err == nil) != (plainErr == nil) {
		t.Fatalf("%T: %v, encoding/json: %v\n%s", got, err, plainErr, b)
	}

	if err != nil {
		if !errors.Is(err, task.ErrInvalid) {
			t.Errorf("%T: %v", got, err)
		}
		return
	}

	unknown := task.Fields("")
	if c.unknown != nil {
		unknown = *c.unknown(&got)
		*c.unknown(&got) = ""
	}

	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s is read as\n%+v, by encoding/json as\n%+v", b, got, want)
	}

	// What was read can be written again, with the unknown fields.
	if c.unknown != nil {
		*c.unknown(&got) = unknown
	}
	if again := c.encode(got); !json.Valid(again) {
		t.Fatalf("%s is written as %s", b, again)
	}
}

func TestCodec_LeavesOutWhatIsNearlyAlwaysSo(t *testing.T) {
	at := task.At(time.UnixMilli(1_700_000_000_000))
	a := task.Assigned{
		Run:      task.Run{UID: "u", ScheduledTime: at, State: task.Dispatched, Trigger: task.TriggerSchedule, Attempt: 1, CreatedAt: at, DispatchedAt: at, Shard: 7},
		Instance: "i", Generation: 1, Action: task.Action{Noop: &task.Noop{}}, KillGrace: usualGrace, Retry: task.Defaults().Retry,
	}
	for lostAfter, written := range map[task.Duration]string{
		0: "", task.DefaultLostAfter: "", task.Duration(30 * time.Second): `"lost_after":"30s",`,
	} {
		a.LostAfter = lostAfter
		want := `{"uid":"u","scheduled_time":"2023-11-14T22:13:20.000Z","state":"dispatched","trigger":"schedule","attempt":1,` +
			`"created_at":"2023-11-14T22:13:20.000Z","instance":"i","generation":1,` + written + `"action":{"noop":{}}}`
		if got := string(EncodeAssigned(&a, noopJSON)); got != want {
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
