package mask

import (
	"encoding/json"
	"fmt"
	"html"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"
)

// escapeEach escapes the characters of a text for which which is true.
func escapeEach(which func(rune) bool, format string) func(string) string {
	return func(s string) string {
		var b strings.Builder
		for _, r := range s {
			if !which(r) {
				b.WriteRune(r)
				continue
			}
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, format, unit)
			}
		}
		return b.String()
	}
}

// plainJSON escapes as few characters as JSON requires.
func plainJSON(s string) string { return quoteJSON(s, false) }

// encoders are what libraries make of a text in URLs, JSON and HTML.
var encoders = map[string]func(string) string{
	"query":           url.QueryEscape,
	"query, in lower": func(s string) string { return lowerEscapes(url.QueryEscape(s)) },
	"path":            url.PathEscape,
	"JSON":            plainJSON,
	"JSON of Go":      func(s string) string { return quoteJSON(s, true) },
	"JSON of Python":  func(s string) string { return escapeEach(func(r rune) bool { return r > '~' }, `\u%04x`)(plainJSON(s)) },
	"JSON of PHP": func(s string) string {
		return escapeEach(func(r rune) bool { return r > '~' }, `\u%04x`)(strings.ReplaceAll(plainJSON(s), "/", `\/`))
	},
	"JSON of Gson": func(s string) string {
		return escapeEach(func(r rune) bool { return strings.ContainsRune("<>&='", r) }, `\u%04x`)(plainJSON(s))
	},
	"JSON of .NET":   escapeEach(func(r rune) bool { return isEscapable(r) }, `\u%04X`),
	"HTML of Go":     html.EscapeString,
	"HTML of Python": strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&#x27;").Replace,
	"HTML of PHP":    strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&#039;").Replace,
	"Go":             func(s string) string { q := strconv.Quote(s); return q[1 : len(q)-1] },
	"Latin-1":        func(s string) string { l, _ := asLatin1(s); return l },
	"Latin-1, twice": func(s string) string { l, _ := asLatin1(s); l, _ = asLatin1(l); return l },
	"Windows-1252":   func(s string) string { _, w := asLatin1(s); return w },
	"nothing":        func(s string) string { return s },
}

// lowerEscapes turns %2F into %2f.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := range b {
		if i >= 1 && b[i-1] == '%' || i >= 2 && b[i-2] == '%' {
			b[i] |= 0x20
		}
	}
	return string(b)
}

func TestMasker_FindsValuesHoweverTheyAreEscaped(t *testing.T) {
	const value = `aq7/ab+Z"é&<z>=w' 😀9\K`

	for outer, encode := range encoders {
		for inner, encodeFirst := range encoders {
			m := &Masker{}
			m.Hide(value)

			text := `{"v": "` + encode(encodeFirst(value)) + `", "w": 1}`
			if got := m.Apply(text); got != `{"v": "***", "w": 1}` {
				t.Errorf("%s in %s: %s became %s", inner, outer, text, got)
			}
		}
	}
}

// A target may take UTF-8 for Latin-1, or answer in Latin-1.
func TestMasker_FindsValuesInTheWrongEncoding(t *testing.T) {
	for value, echoes := range map[string][]string{
		"pässwörd": {"pässwörd", "pÃ¤sswÃ¶rd", "pÃ\u0083Â¤sswÃ\u0083Â¶rd", "pÃƒÂ¤sswÃƒÂ¶rd", `p\u00c3\u00a4ssw\u00c3\u00b6rd`, "p&Atilde;&curren;ssw&Atilde;&para;rd", "p%C3%83%C2%A4ssw%C3%83%C2%B6rd", "p\xe4ssw\xf6rd"},
		"10 € für": {"10 â‚¬ fÃ¼r", "10+%E2%82%AC+f%C3%BCr", "10 &#128; f&uuml;r", "10 \u00e2\u0082\u00ac fÃ¼r"},
		"key😀":     {"keyðŸ˜€", "key\u00f0\u009f\u0098\u0080", `key\ud83d\ude00`},
		"éé":       {"éé", `\u00e9\u00e9`, "Ã©Ã©"},
		"ÿÿÿÿ/":    {`\u00ff\u00ff\u00ff\u00ff\/`, "Ã¿Ã¿Ã¿Ã¿/"},
	} {
		m := &Masker{}
		m.Hide(value)

		for _, echo := range echoes {
			if got := m.Apply("[" + echo + "]"); got != "[***]" {
				t.Errorf("%s: %q became %q", value, echo, got)
			}
		}
		if got := m.Apply("päss Ã¤ 10 â‚¬ é key"); got != "päss Ã¤ 10 â‚¬ é key" {
			t.Errorf("%s: other text became %q", value, got)
		}
	}

	long := strings.Repeat("geheimnisträger ", maxEscaped/8)
	m := &Masker{}
	m.Hide(long)
	if got := m.Apply("[" + strings.Repeat("geheimnistrÃ¤ger ", maxEscaped/8) + "]"); got != "[***]" && got != "[*** ]" {
		t.Errorf("a long value: %q", got)
	}
}

// However a value is escaped, and however the text is split, the value is masked, and nothing else.
func TestMasker_AnyEscapes(t *testing.T) {
	names := slices.Sorted(maps.Keys(encoders))

	rapid.Check(t, func(t *rapid.T) {
		// The ends are letters, because a target could write the first half of an escape before a value. The length is enough
		// for minMasked even if all of the value looks like escapes.
		value := "v" + rapid.StringOfN(rapid.SampledFrom([]rune(`az09%\/"'&;<>=+ #xué😀`)), 9, 24, -1).Draw(t, "value") + "v"
		inner, outer := rapid.SampledFrom(names).Draw(t, "inner"), rapid.SampledFrom(names).Draw(t, "outer")
		m := &Masker{}
		m.Hide(value)

		text, flushes := "["+encoders[outer](encoders[inner](value))+"]", rapid.Bool().Draw(t, "flushes")
		var b strings.Builder
		w := m.Writer(&b)
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "part")
			_, _ = io.WriteString(w, rest[:n])
			rest = rest[n:]
			if flushes {
				_ = w.Flush()
			}
		}
		_ = w.Close()

		if b.String() != "[***]" {
			t.Fatalf("%q, %s in %s, is %s and became %s", value, inner, outer, text, b.String())
		}
	})
}

func TestMasker_MasksPartsOfURLsAndBodies(t *testing.T) {
	m := &Masker{}
	u, err := url.Parse("https://hooks.test/services/T0segment/B0%2Fsegment?token=abc%2Fdef+ghi&format=json")
	if err != nil {
		t.Fatal(err)
	}
	m.HideURL(u)
	m.HideBody(`{"user":"joe","login":{"passwords":["pass/word1"]}}`)
	m.HideBody("user=joe&password=form%2Fword")

	echo, err := json.Marshal(map[string]any{"args": map[string]string{"token": "abc/def ghi", "format": "json"}, "path": []string{"T0segment", "B0/segment"}, "passwords": []string{"pass/word1", "form/word"}, "user": "joe"})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"args":{"format":"json","token":"***"},"passwords":["***","***"],"path":["***","***"],"user":"joe"}`
	if got := m.Apply(string(echo)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A target must not be able to keep the node busy.
func BenchmarkMasker_Escapes(b *testing.B) {
	m := &Masker{}
	m.Hide(strings.Repeat("a/", maxEscaped/2))

	for name, part := range map[string]string{
		"text": "some text that contains nothing of interest, except / and \n", "values": strings.Repeat("a%2F", maxEscaped/2), "chain": "%3%3%3%34", "Latin-1": "Ã\u0083Â©‡→",
	} {
		text := []byte(strings.Repeat(part, 8<<10/len(part)+1))
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			w := m.Writer(io.Discard)
			for b.Loop() {
				_, _ = w.Write(text)
			}
		})
	}
}

// A text that consists of beginnings of escapes does not keep the node busy, and most of it is passed on.
func TestUnescaped_HasFewOpenEnds(t *testing.T) {
	for _, text := range []string{"%", "&", "\xe9", "\\u"} {
		u := unescape([]byte(strings.Repeat(text, 8<<10)))
		if n := len(u.openEnds()); n > maxOpen+1 {
			t.Errorf("%q, repeated: %d open ends", text, n)
		}
	}
}
