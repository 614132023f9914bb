package main

import (
	"bytes"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

func TestCodec_IsThatOfTheStructs(t *testing.T) {
	structs, err := readPackages("../..")
	if err != nil {
		t.Fatal(err)
	}

	want, err := structs.generateCodec()
	if err != nil {
		t.Fatal(err)
	}

	got, err := os.ReadFile("../../pkg/store/record/codec_generated.go")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the codec of records is not that of their structs (%v): run go generate ./pkg/store/record", err)
	}
}

// A field that is added to a struct needs no other change to be encoded, decoded and described.
func TestRecords_HaveANewFieldOfTheirStruct(t *testing.T) {
	structs, err := readPackages("../..")
	if err != nil {
		t.Fatal(err)
	}

	source, err := os.ReadFile("../../pkg/task/run.go")
	if err != nil {
		t.Fatal(err)
	}

	changed := strings.Replace(string(source), "\tOutputSummary\n", "\tMoonPhase int64 `json:\"moon_phase,omitempty\"` // in days\n\n\tOutputSummary\n", 1)
	file, err := parser.ParseFile(token.NewFileSet(), "run.go", changed, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}

	structs.addFile("task", file)

	codec, err := structs.generateCodec()
	for _, code := range []string{
		"w.writeInt64IfSet(\"moon_phase\", v.MoonPhase)\n", "case \"moon_phase\":\n\t\tr.readInt64(&v.MoonPhase)\n",
	} {
		if err != nil || !bytes.Contains(codec, []byte(code)) {
			t.Errorf("the codec does not contain %q, %v", code, err)
		}
	}

	var row bytes.Buffer
	if err := structs.writeType(&row, "task.Run", new([]string)); err != nil || !strings.Contains(row.String(), "\n| `moon_phase` | number | if set | in days |\n") {
		t.Errorf("the page does not describe the field, %v", err)
	}
}

// The page contains every key in the docs with the fields of its value, and package record builds no other keys.
func TestPage_HasAllKeysAndFields(t *testing.T) {
	file := t.TempDir() + "/records.md"
	if err := run("../..", "", file); err != nil {
		t.Fatal(err)
	}

	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	for _, line := range []string{
		"\n- A key keeps its form.",
		"\n| `owners/<0042>` | node, since, term, former owners | [record.Owner](#recordowner) |\n",
		"\n| `term` | number | always | the term of the leader that wrote the record |\n",
		"\n| `usage` | [task.Usage](#taskusage) | if set | What the attempt used. |\n",
	} {
		if !bytes.Contains(page, []byte(line)) {
			t.Errorf("the page does not contain %q", line)
		}
	}

	keys, err := record.NewKeys("/x")
	if err != nil {
		t.Fatal(err)
	}

	v := reflect.ValueOf(keys)
	for i := range v.NumMethod() {
		method := v.Type().Method(i)
		if method.Type.NumOut() != 1 || method.Type.Out(0).Kind() != reflect.String {
			continue
		}

		args := []reflect.Value{v}
		for n := 1; n < method.Type.NumIn(); n++ {
			args = append(args, sampleOf(method.Type.In(n)))
		}

		key := strings.TrimPrefix(method.Func.Call(args)[0].String(), keys.Root())
		if !isListed(key) {
			t.Errorf("%s builds %q, which no table in %s contains", method.Name, key, keyTables)
		}
	}
}

// sampleOf returns an argument for a method that builds a key.
func sampleOf(t reflect.Type) reflect.Value {
	switch t {
	case reflect.TypeFor[record.Ref]():
		return reflect.ValueOf(record.Ref{Namespace: "ns", Name: "name", Shard: 42})
	case reflect.TypeFor[*task.AuditGap]():
		return reflect.ValueOf(&task.AuditGap{Subject: "user:a"})
	case reflect.TypeFor[string]():
		return reflect.ValueOf("text")
	}

	return reflect.ValueOf(42).Convert(t)
}

// isListed reports whether a key, or a prefix of keys that ends in /, matches a pattern.
func isListed(key string) bool {
	if key == "" { // the prefix of all keys
		return true
	}

	parts := strings.Split(strings.TrimSuffix(key, "/"), "/")

	for pattern := range valueTypes {
		names := strings.Split(pattern, "/")
		matches := len(parts) == len(names) || len(parts) < len(names) && strings.HasSuffix(key, "/")
		for i := 0; matches && i < len(parts); i++ {
			matches = parts[i] == names[i] || strings.HasPrefix(names[i], "<") && parts[i] != ""
		}

		if matches {
			return true
		}
	}

	return false
}
