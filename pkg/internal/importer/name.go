package importer

import (
	"crypto/sha256"
	"encoding/base32"
	"path"
	"regexp"
	"slices"
	"strings"
)

var (
	notInName = regexp.MustCompile(`[^a-z0-9._-]+`)
	dots      = regexp.MustCompile(`\.\.+`)
)

// slug makes of a text what may stand in a name; "" if nothing of it may.
func slug(text string) string {
	text = notInName.ReplaceAllString(strings.ToLower(text), "-")
	return strings.Trim(dots.ReplaceAllString(text, "."), "-._")
}

// clip is slug, at most so many bytes long.
func clip(text string, most int) string {
	if text = slug(text); len(text) > most {
		text = strings.Trim(text[:most], "-._")
	}
	return text
}

// joined makes a name of parts, of which any may be empty.
func joined(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(p string) bool { return p == "" })
	return strings.Join(parts, "-")
}

// tag is four letters that follow from a text: commands that look alike get names
// that do not.
func tag(text string) string {
	sum := sha256.Sum256([]byte(text))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:4])
}

// What a shell's line may have before the program that matters: what is only asked,
// and what only starts others.
var (
	asks     = strings.Fields("test [ [[ cd true : sleep export umask set ulimit . source")
	starts   = strings.Fields("if then else elif do while until { ( ! exec nice ionice chrt time timeout sudo chronic command env nohup setsid flock systemd-cat cat")
	endsPart = regexp.MustCompile(`&&|\|\||[;|&\n]`)
	assigns  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
)

// program is the name of what a command line is about. It is a guess, for names that
// people recognise; that it stays the same for the same line is all that matters.
func program(line string) string {
	fallback := ""
	for _, part := range endsPart.Split(line, -1) {
		started := false
		for _, word := range strings.Fields(part) {
			word = strings.Trim(word, `"'(){}`)
			base := clip(path.Base(word), 40)

			switch {
			case word == "", assigns.MatchString(word):
				continue
			case slices.Contains(starts, word):
				started = true
				continue
			case started && (strings.HasPrefix(word, "-") || word[0] >= '0' && word[0] <= '9'):
				continue // a flag of that
			}

			if slices.Contains(asks, word) || base == "" {
				break
			}

			return base
		}

		if words := strings.Fields(part); fallback == "" && len(words) > 0 {
			fallback = clip(path.Base(words[0]), 40)
		}
	}

	if fallback == "" {
		return "job"
	}

	return fallback
}
