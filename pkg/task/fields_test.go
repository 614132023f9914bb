package task

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// madeUp is a task with fields that no other code knows.
type madeUp struct {
	Spec
	Patience Duration `json:"patience,omitzero" doc:"How long to wait for luck." absent:"forever" min:"1s" max:"2m"`
	Lucky    struct {
		Numbers []int  `json:"numbers,omitempty" doc:"The numbers that bring luck." absent:"none" min:"1" max:"49" maxItems:"3" uniqueItems:"true"`
		Charm   string `json:"charm,omitempty" doc:"What to carry." absent:"clover" enum:"clover,horseshoe" oneof:"aid"`
		Prayer  string `json:"prayer,omitempty" doc:"What to say." maxLength:"5" oneof:"aid"`
	} `json:"lucky,omitzero" doc:"What brings luck."`
}

func madeUpFields(t *testing.T) map[string]Field {
	t.Helper()
	byPath := map[string]Field{}
	for _, f := range Flatten(FieldsOf(madeUp{Spec: Defaults()})) {
		byPath[f.Path] = f
	}

	return byPath
}

// A field is added in one place: the struct and its tags are all that the table needs.
func TestFieldsOf_DescribesAFieldFromItsTags(t *testing.T) {
	fields := madeUpFields(t)

	for _, want := range []string{
		"patience|duration|forever|false|1s|2m|0|",
		"lucky|object||false|||0|",
		"lucky.numbers|list of integers|none|false|1|49|3|",
		"lucky.charm|string|clover|true|||0|lucky.aid",
		"lucky.prayer|string||false|||5|lucky.aid",
		"retry.jitter|number|0.2|true|0|1|0|",
		"retry.on|list of strings|failed,timed_out|true|||0|",
		"action.process.env_from[].optional|boolean|false|true|||0|",
	} {
		path, _, _ := strings.Cut(want, "|")
		f := fields[path]
		got := fmt.Sprintf("%s|%s|%s|%t|%s|%s|%d|%s", f.Path, f.Type, f.Default, f.HasDefault, f.Min, f.Max, f.MaxLen, f.OneOf)
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestField_CheckRange(t *testing.T) {
	fields := madeUpFields(t)

	for _, c := range []struct {
		path  string
		value any
		want  string
	}{
		{"patience", Duration(1e9), ""},
		{"patience", Duration(2 * 60e9), ""},
		{"patience", Duration(1e9 - 1), "patience: 999.999999ms is not between 1s and 2m"},
		{"patience", Duration(2*60e9 + 1), "patience: 2m0.000000001s is not between 1s and 2m"},
		{"lucky.numbers", []int{1, 49}, ""},
		{"lucky.numbers", []int{7, 50}, "lucky.numbers[1]: 50 is not between 1 and 49"},
		{"lucky.numbers", []int{7, 7}, `lucky.numbers[1]: "7" is given twice`},
		{"lucky.numbers", []int{1, 2, 3, 4}, "lucky.numbers: has 4 elements; at most 3 are allowed"},
		{"lucky.charm", "horseshoe", ""},
		{"lucky.charm", "horsesho", `lucky.charm: "horsesho" is not one of clover, horseshoe; did you mean horseshoe?`},
		{"lucky.prayer", "please", "lucky.prayer: is 6 bytes long; at most 5 are allowed"},
		{"retry.factor", 0.9, "retry.factor: 0.9 is not between 1 and 100"},
	} {
		got := ""
		f := fields[c.path]
		if err := f.CheckRange(reflect.ValueOf(c.value)); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%v:\ngot  %s\nwant %s", c.value, got, c.want)
		}
	}
}

// Every field of a task has a description, and its tags fit its type.
func TestSpecFields_AreComplete(t *testing.T) {
	for _, f := range Flatten(SpecFields()) {
		if f.Doc == "" || !strings.HasSuffix(f.Doc, ".") {
			t.Errorf("%s: the description %q is not a sentence", f.Path, f.Doc)
		}
		if strings.Contains(f.Doc, "Default:") || strings.Contains(f.Doc, "(default)") {
			t.Errorf("%s: the description contains the default, which belongs into the tag absent", f.Path)
		}
		if len(f.Enum) > 0 && f.Go.Kind() == reflect.String && f.HasDefault && !slices.Contains(f.Enum, f.Default) {
			t.Errorf("%s: the default %s is not allowed", f.Path, f.Default)
		}
		if f.high.IsValid() && !isBetween(f.low, f.low, f.high) {
			t.Errorf("%s: the range %s to %s is empty", f.Path, f.Min, f.Max)
		}

		isSet := f.Required || f.Default != "" || len(f.Inner) > 0 || f.OneOf != "" || f.Go == reflect.TypeFor[Noop]()
		if !isSet {
			t.Errorf("%s: the tag absent is missing", f.Path)
		}
		if found, ok := FindField(SpecFields(), f.Path); !ok || found.Path != f.Path {
			t.Errorf("%s: FindField returns %q, %t", f.Path, found.Path, ok)
		}
	}
}

// Validate enforces the tags wherever a field is: in an optional object, and in the elements of a list.
func TestSpec_ValidateChecksTheTags(t *testing.T) {
	const rest = `"name": "a", "schedule": "@daily", `
	for field, doc := range map[string]string{
		"output.keep":                     rest + `"action": {"noop": {}}, "output": {"keep": "1s"}`,
		"missed.policy":                   rest + `"action": {"noop": {}}, "missed": {"policy": "some"}`,
		"action.process.limits.memory":    rest + `"action": {"process": {"shell": "x", "limits": {"memory": 1}}}`,
		"action.process.env_from[1].keys": rest + `"action": {"process": {"shell": "x", "env_from": [{"secret": "a"}, {"secret": "b", "keys": {` + manyPairs(257) + `}}]}}`,
		"action.http.unsent_for":          rest + `"action": {"http": {"url": "https://a", "unsent_for": "25h"}}`,
		"action.http.expect.status":       rest + `"action": {"http": {"url": "https://a", "expect": {"status": [` + strings.Repeat(`"200",`, 64) + `"201"]}}}`,
		"retry.on[1]":                     rest + `"action": {"noop": {}}, "retry": {"on": ["failed", "failed"]}`,
		"success.exit_codes[0]":           rest + `"action": {"noop": {}}, "success": {"exit_codes": [256]}`,
		"kill_signal":                     rest + `"action": {"noop": {}}, "kill_signal": "SIGSTOP"`,
		"history.ledger":                  rest + `"action": {"noop": {}}, "history": {"ledger": "2161h"}`,
		"action.process.limits.core":      rest + `"action": {"process": {"shell": "x", "limits": {"core": 1125899906842625}}}`,
		"action.process.command":          rest + `"action": {"process": {"command": [` + strings.Repeat(`"x",`, 1024) + `"x"]}}`,
		"action.process.stdin.text":       rest + `"action": {"process": {"shell": "x", "stdin": {"text": "` + strings.Repeat("x", MaxStdinText+1) + `"}}}`,
		"action.http.limit.per_target":    rest + `"action": {"http": {"url": "https://a", "limit": {"per_target": -1}}}`,
		"action.process.limits.cpu":       rest + `"action": {"process": {"shell": "x", "limits": {"cpu": 0.001}}}`,
		"action.process.groups[1]":        rest + `"action": {"process": {"shell": "x", "groups": ["a", "a"]}}`,
		"target.stagger":                  rest + `"action": {"noop": {}}, "target": {"parts": 2, "stagger": "2h"}`,
		"pause_after_failures":            rest + `"action": {"noop": {}}, "pause_after_failures": 1001`,
		"action.process.limits.file_size": rest + `"action": {"process": {"shell": "x", "limits": {"file_size": 1125899906842625}}}`,
	} {
		s, err := DecodeSpec([]byte("{" + doc + "}"))
		if err == nil {
			err = s.Validate()
		}

		var fault *Error
		if !errors.As(err, &fault) || fault.Field != field {
			t.Errorf("%s: the error is %v", field, err)
		}
	}
}

func manyPairs(n int) string {
	pairs := make([]string, n)
	for i := range pairs {
		pairs[i] = fmt.Sprintf(`"k%d": "K%d"`, i, i)
	}

	return strings.Join(pairs, ",")
}

// Constants that other packages use have the values of the tags, which are checked.
func TestSpecFields_HaveTheConstants(t *testing.T) {
	for path, want := range map[string]string{
		"name": fmt.Sprint(MaxName), "description": fmt.Sprint(MaxDescription), "labels": fmt.Sprint(MaxLabels), "pause_reason": fmt.Sprint(MaxReason),
		"target.selector": fmt.Sprint(MaxSelector), "retry.attempts": fmt.Sprint(MaxAttempts), "history.keep": fmt.Sprint(MaxKeep),
		"missed.limit": fmt.Sprint(MaxMissed), "timeout": MaxTimeout.String(), "kill_grace": MaxGrace.String(), "jitter": MaxJitter.String(), "ttl": maxTTL.String(),
		"queue.limit": fmt.Sprint(MaxTriggerQueue), "max_active": fmt.Sprint(MaxActive), "target.parts": fmt.Sprint(MaxParts),
		"history.keep_for": MaxKeepFor.String(), "history.ledger": MaxLedger.String(), "accept.args": fmt.Sprint(MaxAcceptArgs), "accept.env": fmt.Sprint(MaxEnv),
		"action.process.env": fmt.Sprint(MaxEnv), "action.process.shell": fmt.Sprint(MaxArg), "action.process.env_from": fmt.Sprint(MaxEnvFrom),
		"action.process.env_from[].keys": fmt.Sprint(MaxEnv), "action.process.stdin.text": fmt.Sprint(MaxStdinText), "action.process.nice": fmt.Sprint(MaxNice),
		"action.process.limits.open_files": fmt.Sprint(MaxOpenFiles), "action.http.headers": fmt.Sprint(MaxHeaders), "action.http.form": fmt.Sprint(MaxHeaders),
		"action.http.expect.status": fmt.Sprint(MaxHeaders), "action.http.redirects": fmt.Sprint(MaxRedirects), "action.http.limit.body": MaxHTTPBody.String(),
		"action.http.results": fmt.Sprint(MaxResults), "success.output": fmt.Sprint(MaxPattern), "action.http.expect.body": fmt.Sprint(MaxPattern),
	} {
		f, _ := FindField(SpecFields(), path)
		got := f.Max
		if f.MaxLen > 0 {
			got = fmt.Sprint(f.MaxLen)
		}
		if got != want {
			t.Errorf("%s: the tag is %s, the constant %s", path, got, want)
		}
	}

	for path, want := range map[string]any{
		"queue.limit": DefaultQueue, "queue.drop": DropNewest, "kill_signal": DefaultKillSignal, "action.http.limit.body": DefaultHTTPBody,
		"action.http.limit.per_target": DefaultPerTarget, "action.http.unsent_for": DefaultUnsentFor,
	} {
		if f, _ := FindField(SpecFields(), path); f.Default != fmt.Sprint(want) {
			t.Errorf("%s: the tag is %s, the constant %v", path, f.Default, want)
		}
	}

	for path, words := range map[string][]string{
		"overlap": {OverlapSkip, OverlapQueue, OverlapReplace, OverlapAllow}, "missed.policy": {MissedLatest, MissedSkip, MissedAll},
		"queue.drop": {DropNewest, DropOldest}, "dst.gap": {GapRunAfter, GapSkip}, "dst.fold": {FoldFirst, FoldBoth}, "history.record": {RecordAll, RecordFailures},
		"retry.on": {string(Failed), string(TimedOut), string(Lost)}, "output.streams": {StreamsMerged, StreamsApart},
		"action.process.enforce": {EnforceRequire, EnforceReport}, "action.http.output": {HTTPOutputKeep},
		"target.strategy": {StrategyAuto, StrategyRoundRobin, StrategyRandom, StrategyWeighted, StrategyLeastLoaded, StrategyHash, StrategyFirst, StrategySticky},
	} {
		if f, _ := FindField(SpecFields(), path); !slices.Equal(f.Enum, words) {
			t.Errorf("%s: the tag has %q, the constants are %q", path, f.Enum, words)
		}
	}
}

// A default is a valid value of its field.
func TestField_DefaultValueCanBeDecoded(t *testing.T) {
	for _, f := range Flatten(SpecFields()) {
		value, ok := f.DefaultValue()
		if !ok {
			continue
		}

		b, err := json.Marshal(value)
		if err == nil {
			err = DecodeStrict(b, reflect.New(f.Go).Interface())
		}
		if err != nil {
			t.Errorf("%s: %v: %v", f.Path, value, err)
		}
	}
}
