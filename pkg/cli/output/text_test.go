package output

import (
	"encoding/json"
	"strings"
	"testing"
)

// JSON that is made harmless says what it said.
func TestSanitizeJSON_SaysTheSame(t *testing.T) {
	for _, evil := range hostile {
		evil = strings.ToValidUTF8(evil, "\ufffd")
		b, err := CompactJSON(map[string]string{"k" + evil: evil})
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]string
		if err := json.Unmarshal(SanitizeJSON(b), &got); err != nil || got["k"+evil] != evil {
			t.Errorf("%q became %q, %v", evil, got, err)
		}
	}
}

// hostile are what terminals obey, and what shows a text otherwise than it is.
var hostile = []string{
	"\x1b[2J\x1b[H", "\x1b]0;title\a", "\x1b]52;c;ZXZpbA==\x1b\\", "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", // CSI, OSC: title, clipboard, link
	"\x1bP+q544e\x1b\\", "\x1b_apc\x1b\\", "\x1b^pm\x1b\\", "\x1bXsos\x1b\\", "\x1bc", "\x1b(0", "\x1b#8", // DCS, APC, PM, SOS, reset, charset
	"\u009b31m", "\u009d0;title\u009c", "\u0090q\u009c", "\x9b31m", "\x9d0;t\x9c", "\x85", "\u0085", // C1, in UTF-8 and alone
	"\u202egnp.exe", "\u2066x\u2069", "\u200fx", "\u061cx", "\u200b", "\ufeff", "\u2028", "\u2029", // bidi, invisible, ends of lines
	"\a", "\b\b\b", "\x7f", "\x0e\x0f", "\v", "\f", "\x00", "\x05", "50%\rdone", "\xc3", "\xff\xfe", "\U000e0001",
}
