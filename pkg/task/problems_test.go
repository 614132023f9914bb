package task

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

func TestJSONPointer(t *testing.T) {
	for field, want := range map[string]string{
		"":                               "#",
		"name":                           "#/name",
		"schedule[1]":                    "#/schedule/1",
		"action.process.command[0]":      "#/action/process/command/0",
		"action.process.env.A.B":         "#/action/process/env/A.B",
		"labels.app.kubernetes.io/name":  "#/labels/app.kubernetes.io~1name",
		"labels.a~b":                     "#/labels/a~0b",
		"action.process.env_from[2].key": "#/action/process/env_from/2/key",
		"retry.bakoff":                   "#/retry/bakoff",
		"nothing.like[3].this":           "#/nothing/like/3/this",
		"labels.ü 1":                     "#/labels/%C3%BC%201",
	} {
		if got := JSONPointer(reflect.TypeFor[Spec](), field); got != want {
			t.Errorf("%s: %s, want %s", field, got, want)
		}
	}
}

func TestProblems(t *testing.T) {
	of := func(field string) *Error { return Invalid(CodeBadValue, field, "is wrong") }
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{ErrNotFound, ""},
		{fmt.Errorf("read: %w", of("a")), "a"},
		{errors.Join(of("a"), of("b"), of("a")), "a b"},
		{fmt.Errorf("line 1: %w", errors.Join(of("a.b"), nil, errors.Join(of("a"), of("ab")))), "a.b ab"}, // a is wrong only because of a.b
		{errors.Join(of("a[0]"), of("a"), of("")), "a[0] "},
	} {
		var fields []string
		for _, p := range Problems(c.err) {
			fields = append(fields, p.Field)
		}
		if got := strings.Join(fields, " "); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

// Somebody who corrects a file sees all that is wrong with it, and not what follows from that.
func TestDecodeSpec_ReportsAllFieldsAtOnce(t *testing.T) {
	_, err := DecodeSpec([]byte(`{"name": 5, "shedule": {"x": [1, {"y": 2}]}, "timeout": "soon", "labels": {"a": null, "a": "b"}, "retry": {"attempts": "x", "on": [null]}, "action": {"noop": {}, "process": []}}`))

	var got []string
	for _, p := range Problems(err) {
		got = append(got, p.Field+" "+p.Code)
	}
	want := "name bad_value,shedule unknown_field,timeout bad_duration,labels.a bad_value,retry.attempts bad_value,retry.on[0] bad_value,action.process bad_value"
	if strings.Join(got, ",") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, ","), want)
	}

	var first *Error
	if !errors.As(err, &first) || first.Field != "name" {
		t.Errorf("the first problem is %v", first)
	}

	// What cannot be read as JSON ends the search, and no document makes the list long.
	_, err = DecodeSpec([]byte(`{"x": 1, "name": `))
	if p := Problems(err); len(p) != 2 || p[1].Code != CodeBadJSON {
		t.Errorf("got %v", err)
	}
	if n := len(Problems(DecodeStrict([]byte(`{`+strings.Repeat(`"x":1,`, 200)+`"y":1}`), &Spec{}))); n > maxProblems {
		t.Errorf("%d problems are reported", n)
	}
	many := "{"
	for i := range 200 {
		many += fmt.Sprintf(`"x%d":1,`, i)
	}
	if n := len(Problems(DecodeStrict([]byte(many+`"y":1}`), &Spec{}))); n != maxProblems {
		t.Errorf("%d problems are reported, want %d", n, maxProblems)
	}
}

// allocatedBytes returns how many bytes f allocates.
func allocatedBytes(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)

	return after.TotalAlloc - before.TotalAlloc
}

// The memory for a document depends on its size only. If each value had its path, the paths of these would take 200 MB, and those
// of the longest body that the API accepts 125 GB.
func TestDecodeStrict_TakesMemoryForItsSizeOnly(t *testing.T) {
	const key, values = 100_000, 2_000
	long := strings.Repeat("k", key)

	for what, doc := range map[string]string{
		"a list below an unknown field":    `{"` + long + `":` + list(values, "1") + `}`,
		"an object below an unknown field": `{"` + long + `":{"a":` + pairs(values, "1") + `}}`,
		"a list below a label":             `{"labels":{"` + long + `":` + list(values, "1") + `}}`,
		"lists below a duplicate":          `{"x":1,"x":{"` + long + `":` + list(values, "[]") + `}}`,
	} {
		var err error
		if got := allocatedBytes(func() { err = DecodeStrict([]byte(doc), &Spec{}) }); got > 10<<20 {
			t.Errorf("%s: %d MB are allocated for %d kB", what, got>>20, len(doc)>>10)
		}

		problems := Problems(err)
		if len(problems) == 0 {
			t.Errorf("%s is accepted", what)
		}
		for _, p := range problems {
			if len(p.Field) > 2*maxKeyInPath {
				t.Errorf("%s: the path of a problem has %d bytes", what, len(p.Field))
			}
		}
	}
}

// Paths are still complete, also behind a key that is cut.
func TestDecodeStrict_CutsLongKeysInPaths(t *testing.T) {
	err := DecodeStrict([]byte(`{"action":{"process":{"env":{"`+strings.Repeat("ü", 300)+`":{}},"command":["a",[1]]}}}`), &Spec{})
	p := Problems(err)
	if want := "action.process.env." + strings.Repeat("ü", maxKeyInPath/2) + "…"; len(p) != 2 || p[0].Field != want || p[1].Field != "action.process.command[1]" {
		t.Errorf("got %v", err)
	}
}

// A pointer takes one allocation for each of its parts, and few for the whole.
func TestJSONPointer_CreatesNothingForEachPart(t *testing.T) {
	field := strings.Repeat("a.", 1000)
	if got := testing.AllocsPerRun(10, func() { JSONPointer(reflect.TypeFor[Spec](), field) }); got > 2100 {
		t.Errorf("%v allocations for 1000 parts", got)
	}
}
