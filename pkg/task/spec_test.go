package task

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// drawSpec draws a spec that Validate accepts. Maps and lists that a document omits when they are empty are
// nil.
func drawSpec(t *rapid.T) Spec {
	name := rapid.StringMatching(`[a-z0-9]([a-z0-9_-][a-z0-9]){0,8}`)
	text := rapid.StringOf(rapid.RuneFrom([]rune("aZ09 é<>&\"\\\u2028\U0001F600/=\n\t$")))
	duration := func(low, high Duration) Duration {
		return Duration(rapid.Int64Range(int64(low), int64(high)).Draw(t, "duration"))
	}

	labels := func() map[string]string {
		m := rapid.MapOfN(rapid.StringMatching(`[A-Za-z0-9]([A-Za-z0-9._/-]{0,10}[A-Za-z0-9])?`),
			rapid.StringMatching(`([A-Za-z0-9]([A-Za-z0-9._-]{0,10}[A-Za-z0-9])?)?`), 0, 4).Draw(t, "labels")
		if len(m) == 0 {
			return nil
		}

		return m
	}

	s := Spec{
		Name: name.Draw(t, "name"), Namespace: name.Draw(t, "namespace"), Description: text.Draw(t, "description"), Labels: labels(),
		Schedule:  rapid.SliceOfN(text, 0, 3).Draw(t, "schedule"),
		Timezone:  rapid.SampledFrom([]string{"UTC", "Europe/Berlin"}).Draw(t, "timezone"),
		DST:       DST{Gap: rapid.SampledFrom([]string{GapRunAfter, GapSkip}).Draw(t, "gap"), Fold: rapid.SampledFrom([]string{FoldFirst, FoldBoth}).Draw(t, "fold")},
		Timeout:   duration(0, MaxTimeout),
		KillGrace: duration(0, MaxGrace),
		Overlap:   rapid.SampledFrom([]string{OverlapSkip, OverlapAllow}).Draw(t, "overlap"),
		Retry: Retry{
			Attempts: rapid.IntRange(1, MaxAttempts).Draw(t, "attempts"), Backoff: duration(0, Duration(7*24*time.Hour)), MaxBackoff: duration(0, Duration(7*24*time.Hour)),
			Factor: rapid.Float64Range(1, 100).Draw(t, "factor"), Jitter: rapid.Float64Range(0, 1).Draw(t, "jitter"),
			On: rapid.SliceOfNDistinct(rapid.SampledFrom([]State{Failed, TimedOut, Lost}), 0, 3, rapid.ID).Draw(t, "on"),
		},
		Target: Target{Selector: rapid.SampledFrom([]string{"", "a = b, !c, d in (e, f)", "disk_free > 10Gi"}).Draw(t, "selector"), Strategy: rapid.SampledFrom(Strategies()).Draw(t, "strategy"), Count: 1},
		History: History{Keep: rapid.IntRange(1, MaxKeep).Draw(t, "keep"), Record: rapid.SampledFrom([]string{RecordAll, RecordFailures}).Draw(t, "record"),
			KeepFor: Duration(rapid.Int64Range(0, int64(MaxKeepFor)).Draw(t, "keep for")), Ledger: rapid.Ptr(rapid.Custom(func(t *rapid.T) Duration {
				return Duration(rapid.Int64Range(0, int64(MaxLedger)).Draw(t, "ledger"))
			}), true).Draw(t, "ledger")},
		Paused: rapid.Bool().Draw(t, "paused"),
	}
	switch s.Target.Strategy {
	case StrategyHash:
		s.Target.Key = rapid.SampledFrom([]string{"", "customer 7"}).Draw(t, "key")
	case StrategyFirst:
		s.Target.Order = []string{"n2", "n1"}
	}

	s.Missed = MissedPolicy{Policy: rapid.SampledFrom([]string{MissedLatest, MissedSkip, MissedAll}).Draw(t, "policy"),
		Grace: duration(Duration(time.Second), MaxGrace), Limit: rapid.IntRange(1, MaxMissed).Draw(t, "limit")}
	s.Missed.Window = duration(s.Missed.Grace, MaxTimeout)
	s.KillSignal = rapid.SampledFrom([]string{"", "SIGTERM", "SIGINT", "SIGUSR1", "SIGKILL"}).Draw(t, "kill_signal")
	s.Success = Success{Output: rapid.SampledFrom([]string{"", "^done"}).Draw(t, "output"), NotOutput: rapid.SampledFrom([]string{"", "(?i)error"}).Draw(t, "not_output")}
	if codes := rapid.SliceOfNDistinct(rapid.IntRange(0, 255), 0, 3, rapid.ID).Draw(t, "exit codes"); len(codes) > 0 {
		s.Success.ExitCodes = codes
	}

	switch rapid.IntRange(0, 2).Draw(t, "action") {
	case 0:
		s.Action.Noop = &Noop{}
	case 1:
		s.Action.Process = &Process{Shell: "x" + text.Draw(t, "shell"), Dir: "/tmp", User: "backup"}
	case 2:
		args := append([]string{"x"}, rapid.SliceOfN(text, 0, 3).Draw(t, "arguments")...)
		s.Action.Process = &Process{Command: args}
		if env := rapid.MapOfN(rapid.StringMatching(`[A-Z_.é ]+`), text, 0, 3).Draw(t, "env"); len(env) > 0 {
			s.Action.Process.Env = env
		}
	}

	return s
}

func TestSpec_WrittenAndReadIsTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawSpec(t)
		if err := want.Validate(); err != nil {
			t.Fatalf("drew a spec that is not valid: %v", err)
		}

		b, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}

		got, err := DecodeSpec(b)
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}

		if !reflect.DeepEqual(got, want) {
			t.Fatalf("read   %+v\nwrote  %+v\nas     %s", got, want, b)
		}

		stored := Task{Spec: want, UID: NewUID(), Generation: 3, CreatedAt: At(time.UnixMilli(rapid.Int64Range(-1, 1<<42).Draw(t, "created")))}
		if b, err = json.Marshal(stored); err != nil {
			t.Fatal(err)
		}

		var back Task
		if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(back, stored) {
			t.Fatalf("stored %+v\nread   %+v\nas     %s: %v", stored, back, b, err)
		}
	})
}

func TestSchedules_OneIsAString(t *testing.T) {
	for _, c := range []struct {
		s    Schedules
		json string
	}{{Schedules{"@daily"}, `"@daily"`}, {Schedules{"@daily", "@hourly"}, `["@daily","@hourly"]`}, {nil, `[]`}, {Schedules{}, `[]`}} {
		b, err := json.Marshal(c.s)
		if err != nil || string(b) != c.json {
			t.Errorf("%q is written as %s, want %s", []string(c.s), b, c.json)
		}
	}

	var s Schedules
	if err := json.Unmarshal([]byte(`["@daily"]`), &s); err != nil || len(s) != 1 || s[0] != "@daily" {
		t.Errorf("a list of one gave %q, %v", []string(s), err)
	}
}

// Users can send anything. A spec that decodes and validates can be encoded and decoded again without a change.
func FuzzDecodeSpec(f *testing.F) {
	for _, seed := range []string{
		doc(""), doc(`"schedule": ["@daily", "@hourly"], "labels": {"a": "b"}`), doc(process(`"command": ["a", "b\u0000"], "env": {"A": "é"}`)),
		doc(`"retry": {"on": [], "factor": 1e2, "attempts": 1e1}`), doc(`"dst": {"gap": ""}`), doc(`"schedule": null, "labels": {}`),
		doc(`"timeout": "1h0m0s", "kill_grace": "-0s"`), `{"name": "a", "Name": "a"}`, `[[[[`, `{"a":{"a":`, `null`, "\"\xff\"", `{"name":"\ud800"}`,
		doc(`"labels": {"a": null}`), doc(`"labels": {"a": "b", "a": "b"}`), doc(`"labels": {"\u0061": "b", "a": "b"}`), doc(`"schedule": [null]`),
		doc(`"Overlap": "skip"`), doc(`"overlop": "skip"`), doc(`"overlap": "skip"`) + `{}`, " " + doc(`"retry" : { "on" : [ "lost" , null ] }`),
		doc(process(`"command": [], "shell": "x", "env": {}`)), doc(`"kill_signal": "SIGINT", "success": {"exit_codes": [], "output": "^x$"}`), doc(`"retry": {"jitter": -0.0}`),
		doc(httpAction(`"url": "https://a/${run.id}?b=${node.name}", "json": [{"a": "<${secret:b/c}>", "b": [null, 1e400]}], "auth": {"bearer": "d/e"}, "results": {"f": "/g"}`)),
		doc(httpAction(`"url": "secret:a/b", "headers": {"C": "${part.index}"}, "form": {"d": "e"}`)),
		doc(httpAction(`"url": "http://a", "headers": {}, "form": {}, "results": {}, "expect": {"status": []}, "tls": {}`)),
		doc(httpAction(`"url": "http://a", "json": null`)), doc(`"accept": {"env": []}, "success": {"exit_codes": []}, "retry": {"exit_codes": []}`),
	} {
		f.Add([]byte(seed))
	}

	f.Fuzz(func(t *testing.T, b []byte) {
		if into := Defaults(); utf8.Valid(b) && isStrictJSON(b, reflect.TypeOf(&into), false) && json.Unmarshal(b, &into) == nil {
			c := checker{Decoder: json.NewDecoder(bytes.NewReader(b)), problems: new([]error)}
			c.UseNumber()
			if err := c.checkValue(reflect.TypeOf(&into), nil, 0, true); err != nil || len(*c.problems) > 0 {
				t.Fatalf("%q passes at a glance: %v, %v", b, err, *c.problems)
			}
		}

		s, err := read(string(b))
		if err != nil {
			if len(Problems(err)) == 0 {
				t.Fatalf("%q: %v has no *Error", b, err)
			}
			return
		}

		written, err := json.Marshal(s)
		if err != nil {
			t.Fatalf("%+v cannot be written: %v", s, err)
		}

		again, err := read(string(written))
		if err != nil {
			t.Fatalf("%s is refused when it is read back: %v", written, err)
		}

		if twice, _ := json.Marshal(again); string(twice) != string(written) {
			t.Fatalf("%s became %s", written, twice)
		}

		if a, b := normal(s), normal(again); !reflect.DeepEqual(a, b) {
			t.Fatalf("%+v became %+v", a, b)
		}

		if len(written) > 2*MaxAction+64<<10 {
			t.Fatalf("a valid task of %d bytes", len(written))
		}
	})
}

// normal returns a spec in which equivalent values have the same form: a list or an object without entries is an
// absent one. It changes the values that s points to.
func normal(s Spec) Spec {
	dropEmpty(reflect.ValueOf(&s).Elem())
	return s
}

// dropEmpty sets each empty slice and map of v to nil.
func dropEmpty(v reflect.Value) {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		if v.Len() == 0 {
			v.SetZero()
		}
	case reflect.Pointer:
		if !v.IsNil() {
			dropEmpty(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Field(i); field.CanSet() {
				dropEmpty(field)
			}
		}
	}
}

func TestSelector(t *testing.T) {
	labels := map[string]string{"role": "db", "zone": "eu-1", "gpu": "", "in": "x"}

	for selector, want := range map[string]bool{
		"": true, " \t": true,
		"role": true, "gpu": true, "gpus": false, "!gpus": true, "! gpus": true, "!gpu": false,
		"role = db": true, "role=db": true, "role == db": true, "role = web": false, "gpu =": true, "role =": false, "gpus =": false,
		"role != db": false, "role != web": true, "gpus != a": true, "gpu != ": false,
		"role in (db, web)": true, "role in(db)": true, "role in ( web )": false, "gpus in (a)": false, "gpu in ()": true,
		"role notin (db)": false, "role notin (web)": true, "gpus notin (a)": true,
		"role = db, zone = eu-1": true, "role = db, zone = eu-2": false, "role = web, zone = eu-1": false,
		"zone in (eu-1, eu-2), !gpus , role": true, "role in (a, b), zone": false,
		"in": true, "in = x": true, "in in (x)": true, "notin": false, "!in": false,
	} {
		s, err := ParseSelector(selector)
		if err != nil {
			t.Errorf("%q: %v", selector, err)
		} else if s.Matches(labels) != want {
			t.Errorf("%q matches: %v", selector, !want)
		}

		if nobody := s.Matches(nil); err == nil && nobody != nobodyMatches(selector) {
			t.Errorf("%q matches a node without labels: %v", selector, nobody)
		}
	}
}

// nobodyMatches evaluates a selector without labels: terms that require something are false, and terms that
// forbid something are true.
func nobodyMatches(selector string) bool {
	depth := 0
	for _, term := range strings.FieldsFunc(selector, func(r rune) bool {
		switch r {
		case '(':
			depth++
		case ')':
			depth--
		}

		return r == ',' && depth == 0
	}) {
		if strings.TrimSpace(term) != "" && !strings.Contains(term, "!") && !strings.Contains(term, " notin (") {
			return false
		}
	}

	return true
}

func TestSelector_RefusesWhatItDoesNotKnow(t *testing.T) {
	for selector, code := range map[string]string{
		",": CodeBadSelector, "role,": CodeBadSelector, ",role": CodeBadSelector, "role,,zone": CodeBadSelector,
		"= db": CodeBadSelector, "!": CodeBadSelector, "!!a": CodeBadSelector, "!a = b": CodeBadSelector, "a b": CodeBadSelector,
		"a === b": CodeBadSelector, "a = b = c": CodeBadSelector, "a > b": CodeBadSelector, "a =! b": CodeBadSelector,
		"a in b": CodeBadSelector, "a in (b": CodeBadSelector, "a in b)": CodeBadSelector, "a in ((b))": CodeBadSelector, "in (b)": CodeBadSelector,
		"a IN (b)": CodeBadSelector, "a = (b)": CodeBadSelector, "a) , (b": CodeBadSelector, "a;b": CodeBadLabel,
		"a = b/c": CodeBadLabel, "-a": CodeBadLabel, "a\x00": CodeBadLabel, "é": CodeBadLabel, "a = é": CodeBadLabel,
		"a in (b, -)": CodeBadLabel, strings.Repeat("a", 64): CodeBadLabel, "a = " + strings.Repeat("a", 64): CodeBadLabel,
		strings.Repeat("a,", 600): CodeTooLong,
	} {
		_, err := ParseSelector(selector)
		e, ok := err.(*Error)
		if !ok || e.Code != code {
			t.Errorf("%q: %v, want %s", cut(selector), err, code)
		}
	}
}

// Somebody who corrects a spec sees one problem of each group of fields.
func TestSpec_ValidateAll(t *testing.T) {
	s := Defaults()
	s.Namespace, s.Name, s.Action = "default", "No Name", Action{Noop: &Noop{}}
	s.Retry.Attempts, s.History.Keep = -1, 0

	joined, ok := s.ValidateAll().(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("the error is %v", s.ValidateAll())
	}
	var fields []string
	for _, one := range joined.Unwrap() {
		var problem *Error
		if !errors.As(one, &problem) {
			t.Fatalf("the error is %v", one)
		}
		fields = append(fields, problem.Field)
	}
	if want := []string{"name", "retry.attempts", "history.keep"}; !slices.Equal(fields, want) {
		t.Errorf("the problems are about %q, want %q", fields, want)
	}

	s.Name, s.Retry.Attempts, s.History.Keep = "name", 1, 1
	if err := s.ValidateAll(); err != nil {
		t.Error(err)
	}
}
