package record

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/task"
)

// A record of a later version, with fields that this version does not know at any level, is unchanged after it was
// decoded and written again.
func TestGraft_LosesNothing(t *testing.T) {
	check := func(t *rapid.T, v any, decoded func([]byte) (any, error)) {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}

		doc := number(b)
		sow(t, doc, reflect.TypeOf(v))
		b, _ = json.Marshal(doc)

		again, err := decoded(b)
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}

		if got := KeepUnknownFields(b, Encode(again), reflect.TypeOf(v)); !reflect.DeepEqual(number([]byte(got)), doc) {
			t.Fatalf("%s became\n%s", b, got)
		}
	}

	rapid.Check(t, func(t *rapid.T) {
		check(t, filled[task.Task](t), func(b []byte) (any, error) { return Decode[task.Task](b) })
	})

	rapid.Check(t, func(t *rapid.T) {
		check(t, filled[task.Entry](t), func(b []byte) (any, error) { return Decode[task.Entry](b) })
	})

	rapid.Check(t, func(t *rapid.T) {
		check(t, Owner{Node: text.Draw(t, "node"), Term: rapid.Int64().Draw(t, "term"), Previous: filled[[]task.Assignment](t)},
			func(b []byte) (any, error) { return Decode[Owner](b) })
	})

	rapid.Check(t, func(t *rapid.T) {
		check(t, filled[task.Cluster](t), func(b []byte) (any, error) { return Decode[task.Cluster](b) })
	})

	rapid.Check(t, func(t *rapid.T) {
		check(t, filled[task.Node](t), func(b []byte) (any, error) { return Decode[task.Node](b) })
	})
}

// sow adds unknown fields to an object and to the objects in it. An action has exactly one field, so it gets none.
func sow(t *rapid.T, doc map[string]any, of reflect.Type) {
	for name, inner := range fieldsOf(of) {
		if o, ok := doc[name].(map[string]any); ok && inner != nil {
			sow(t, o, inner)
		}
	}

	if of != actionType {
		for range rapid.IntRange(0, 2).Draw(t, "unknown") {
			doc[fmt.Sprint("later", rapid.IntRange(0, 9).Draw(t, "name"))] = map[string]any{"x": []any{text.Draw(t, "unknown"), true}}
		}
	}
}
