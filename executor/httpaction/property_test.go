package httpaction

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Whatever a value is, it changes nothing of the URL but its own place.
func TestEscapeInURL_KeepsThePlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.String().Draw(t, "value")

		if got, err := escapeInURL("https://api.corp/a/x", value); err == nil {
			u, err := parseURL("https://api.corp/a/x" + got + "/b?c=d")
			if err != nil {
				t.Fatalf("%q: %v", got, err)
			}
			if u.Host != "api.corp" || u.Path != "/a/x"+value+"/b" || strings.Count(u.EscapedPath(), "/") != 3 || u.RawQuery != "c=d" {
				t.Fatalf("%q became %s", value, u)
			}
		} else if value != "" && value != "." && value != ".." && !strings.ContainsAny(value, `/\%`) && strings.IndexFunc(value, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }) < 0 {
			t.Fatalf("%q was refused: %v", value, err)
		}

		got, err := escapeInURL("https://api.corp/a?b=1&c=x", value)
		if err != nil {
			t.Fatal(err)
		}
		u, err := parseURL("https://api.corp/a?b=1&c=x" + got + "&d=2")
		if err != nil {
			t.Fatalf("%q: %v", got, err)
		}
		if q, err := url.ParseQuery(u.RawQuery); err != nil || len(q) != 3 || q.Get("c") != "x"+value || q.Get("b") != "1" || q.Get("d") != "2" {
			t.Fatalf("%q became %v, %v", value, q, err)
		}
	})
}

// drawJSON draws a value, and notes what each pointer below prefix finds.
func drawJSON(t *rapid.T, prefix string, depth int, found map[string]any) any {
	kind := rapid.IntRange(0, 6).Draw(t, "kind")
	if depth == 0 {
		kind %= 5
	}

	var v any
	switch kind {
	case 0:
		v = nil
	case 1:
		v = rapid.Bool().Draw(t, "bool")
	case 2:
		v = json.Number(strconv.Itoa(rapid.Int().Draw(t, "number")))
	case 3, 4:
		v = rapid.String().Draw(t, "text")
	case 5:
		list := make([]any, rapid.IntRange(0, 3).Draw(t, "length"))
		for i := range list {
			list[i] = drawJSON(t, prefix+"/"+strconv.Itoa(i), depth-1, found)
		}
		v = list
	case 6:
		fields := map[string]any{}
		for _, key := range rapid.SliceOfNDistinct(rapid.StringMatching(`[a-c~/0-1é"]{0,3}`), 0, 3, rapid.ID[string]).Draw(t, "keys") {
			fields[key] = drawJSON(t, prefix+"/"+strings.ReplaceAll(strings.ReplaceAll(key, "~", "~0"), "/", "~1"), depth-1, found)
		}
		v = fields
	}

	found[prefix] = v

	return v
}

func TestPointerTree_FindsWhatIsThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := map[string]any{}
		doc, err := json.Marshal(drawJSON(t, "", 3, want))
		if err != nil {
			t.Fatal(err)
		}

		pointers := map[string]string{}
		for p := range want {
			pointers["at "+p] = p
		}
		pointers["missing"] = "/a/b/c/d/e/f"

		tree, err := newPointerTree(pointers)
		if err != nil {
			t.Fatal(err)
		}

		found, err := tree.readValues(bytes.NewReader(doc))
		if err != nil || len(found) != len(want) {
			t.Fatalf("%s: %d values, want %d; %v", doc, len(found), len(want), err)
		}

		for p, v := range want {
			text, isText := v.(string)
			if !isText {
				b, _ := json.Marshal(v)
				text = string(b)
			}
			if got := found["at "+p]; got != text {
				t.Fatalf("%s: %q is %q, want %q", doc, p, got, text)
			}
		}
	})
}
