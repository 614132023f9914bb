package mcp

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestEncodeAnswer_IsNoLongerThanTheLimit(t *testing.T) {
	items := make([]string, 100)
	for i := range items {
		items[i] = strings.Repeat("x", 1000)
	}

	text, err := encodeAnswer(newList(items, 100))
	if err != nil || len(text) > maxAnswer {
		t.Fatalf("%d bytes, %v", len(text), err)
	}

	var l list[string]
	if err := json.Unmarshal([]byte(text), &l); err != nil || len(l.Items) != 50 || !l.More {
		t.Errorf("%d items, more: %t, %v", len(l.Items), l.More, err)
	}

	for _, tooLong := range []any{strings.Repeat("x", maxAnswer), newList([]string{strings.Repeat("x", maxAnswer)}, 1)} {
		if text, err := encodeAnswer(tooLong); err == nil || !strings.Contains(err.Error(), "bytes, which is more than 65536") {
			t.Errorf("%d bytes, %v", len(text), err)
		}
	}
}

// A person who reads along sees all that a model reads.
func TestEncodeAnswer_ShowsInvisibleCharacters(t *testing.T) {
	text, err := encodeAnswer(map[string]string{"description": "a\u202eb\U000e0041c"})
	if want := `{"description":"a\u202eb\udb40\udc41c"}`; err != nil || text != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
}
