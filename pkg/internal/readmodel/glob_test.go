package readmodel

import (
	"path"
	"testing"

	"pgregory.net/rapid"
)

// A compiled pattern matches what path.Match matches.
func TestGlob_MatchesLikePath(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*?/]{0,8}|[ab*?/\[\]\\^-]{0,8}`).Draw(t, "pattern")
		g := CompileGlob(pattern)
		if _, err := path.Match(pattern, ""); err != nil {
			t.Skip("not valid")
		}

		for range 20 {
			text := rapid.StringMatching(`[ab/]{0,8}`).Draw(t, "text")
			want, err := path.Match(pattern, text)
			if err != nil {
				t.Skip("not valid")
			}
			if got := g.Match(text); got != want {
				t.Fatalf("%q matches %q: %t", pattern, text, got)
			}
		}
	})
}
