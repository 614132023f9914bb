package mask

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestMasker(t *testing.T) {
	m := &Masker{}
	m.Hide("secret/one two")
	m.Hide("secret")
	m.Hide("abc") // too short
	m.Hide("quo\"te\n")

	for text, want := range map[string]string{
		"x": "x", "": "", "abc": "abc", "a secret b": "a *** b", "secretsecret": "******", "secret/one two.": "***.", "secret/one": "***/one",
		"secret%2Fone+two": "***", "secret%2Fone%20two": "***", `{"v":"quo\"te\n"}`: `{"v":"***"}`, "sec": "sec", "secre": "secre",
	} {
		if got := m.Apply(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}

		// The same in parts of any size.
		for n := 1; n < len(text); n++ {
			var b strings.Builder
			w := m.Writer(&b)
			for rest := text; rest != ""; rest = rest[min(n, len(rest)):] {
				if _, err := io.WriteString(w, rest[:min(n, len(rest))]); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil || b.String() != want {
				t.Errorf("%q in parts of %d: %q, want %q", text, n, b.String(), want)
			}
		}
	}
}

// However a text is split, the values are masked, and nothing else changes.
func TestMasker_AnySplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.StringOfN(rapid.SampledFrom([]rune("ab")), 0, 60, -1)
		m := &Masker{}
		for _, v := range rapid.SliceOfN(rapid.StringOfN(rapid.SampledFrom([]rune("ab")), 4, 8, -1), 0, 3).Draw(t, "values") {
			m.Hide(v)
		}

		text, flushes := letters.Draw(t, "text"), rapid.Bool().Draw(t, "flushes")
		var b bytes.Buffer
		w := m.Writer(&b)
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "part")
			if _, err := w.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
			if flushes {
				if err := w.Flush(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}

		if want := m.Apply(text); b.String() != want {
			t.Fatalf("%q: %q, want %q", text, b.String(), want)
		}
		values, _ := m.snapshot()
		for _, v := range values {
			if bytes.Contains(b.Bytes(), v) {
				t.Fatalf("%q contains %q", b.String(), v)
			}
		}
	})
}

// A follower of an output sees each line at once, unless a value may begin with its end.
func TestWriter_FlushKeepsOnlyTheBeginningOfAValue(t *testing.T) {
	m := &Masker{}
	m.HideText("hunter2/é")
	m.HideText("-----BEGIN KEY-----\nMIIEvQIBADANBg\nQEFAASCBKcwgg\n-----END KEY-----\n")
	m.HideText(`{"login": {"password": "correct horse", "id": 7}, "key": "-----BEGIN KEY-----\nMIIBOgIBAAJBAK\n-----END KEY-----\n"}`)

	var b strings.Builder
	w := m.Writer(&b)
	for _, step := range []struct{ write, shown string }{
		{"line one\n", "line one\n"},
		{"50%", "50"}, {" done\n", "% done\n"},
		{"a hunter", "a "}, {"s\n", "hunters\n"},
		{"a hun", "a "}, {"ter2/é b\n", "*** b\n"},
		{"a hunter2%2", "a "}, {"F%C3%a", ""}, {"9.\n", "***.\n"},
		{`a hunter2\/\u00`, "a "}, {"e9\n", "***\n"},
		{"R&D and A & B\n", "R&D and A & B\n"},
		{"> MIIEvQIBADANBg <\n", "> *** <\n"}, // a line of a key, in a log with prefixes
		{"-----BEGIN KEY-----\nMIIEvQIBADANBg\nQEF", ""}, {"AASCBKcwgg\n-----END KEY-----\n", "***"},
		{"> MIIBOgIBAAJBAK <\n", "> *** <\n"}, // a line of a key that is in JSON
		{"correct horse, correct ox\n", "***, correct ox\n"},
		{`C:\`, "C:"}, {"temp\n", "\\temp\n"},
	} {
		b.Reset()
		_, _ = io.WriteString(w, step.write)
		if err := w.Flush(); err != nil || b.String() != step.shown {
			t.Errorf("after %q: %q, want %q, %v", step.write, b.String(), step.shown, err)
		}
	}
}

// A target may repeat a secret that it has received, which must not keep the node busy.
func BenchmarkMasker_RepeatedValue(b *testing.B) {
	m := &Masker{}
	m.Hide("s3cr/t")
	m.Hide(`pass"word/&`)
	part := []byte(strings.Repeat("s3cr/t", 8<<10/6))

	b.SetBytes(int64(len(part)))
	w := m.Writer(io.Discard)
	for b.Loop() {
		_, _ = w.Write(part)
	}
}

// What an attempt with one secret costs that prints a line, apart from its process.
func BenchmarkMasker_OneLine(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		m := &Masker{}
		m.HideText(`s3cr3t/Valué "0123456789"`)
		for range 3 { // a writer for each stream
			m.Writer(io.Discard)
		}
		w := m.Writer(io.Discard)
		_, _ = io.WriteString(w, "a line of output\n")
		_ = w.Flush()
		_ = w.Close()
	}
}

// What masking costs an output that flows, by the kind of value.
func BenchmarkMasker_Text(b *testing.B) {
	text := []byte(strings.Repeat("some text that contains nothing of interest, except / and 50% \n", 512))
	for name, value := range map[string]string{"plain": "s3cr3t0123456789", "escapable": `s3cr3t/Valué "0123456789"`} {
		b.Run(name, func(b *testing.B) {
			m := &Masker{}
			m.HideText(value)
			w := m.Writer(io.Discard)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				_, _ = w.Write(text)
				_ = w.Flush()
			}
		})
	}
}
