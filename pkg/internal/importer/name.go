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
	notInName   = regexp.MustCompile(`[^a-z0-9._-]+`)
	dotsPattern = regexp.MustCompile(`\.\.+`)
)

// makeSlug makes of a text what may stand in a name; "" if nothing of it may.
func makeSlug(text string) string {
	text = notInName.ReplaceAllString(strings.ToLower(text), "-")
	return strings.Trim(dotsPattern.ReplaceAllString(text, "."), "-._")
}

// clipSlug is slug, at most so many bytes long.
func clipSlug(text string, most int) string {
	if text = makeSlug(text); len(text) > most {
		text = strings.Trim(text[:most], "-._")
	}
	return text
}

// joinName makes a name of parts, of which any may be empty.
func joinName(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(p string) bool { return p == "" })
	return strings.Join(parts, "-")
}

// hashTag is four letters that follow from a text: commands that look alike get names
// that do not.
func hashTag(text string) string {
	sum := sha256.Sum256([]byte(text))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:4])
}

// What a shell's line may have before the program that matters: what is only asked,
// and what only starts others.
var (
	testWords         = strings.Fields("test [ [[ cd true : sleep export umask set ulimit . source")
	prefixWords       = strings.Fields("if then else elif do while until { ( ! exec nice ionice chrt time timeout sudo chronic command env nohup setsid flock systemd-cat cat")
	endsPart          = regexp.MustCompile(`&&|\|\||[;|&\n]`)
	assignmentPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
)

// guessProgram is the name of what a command line is about. It is a guess, for names that
// people recognise; that it stays the same for the same line is all that matters.
func guessProgram(line string) string {
	fallback := ""
	for _, part := range endsPart.Split(line, -1) {
		started := false
		for _, word := range strings.Fields(part) {
			word = strings.Trim(word, `"'(){}`)
			base := clipSlug(path.Base(word), 40)

			switch {
			case word == "", assignmentPattern.MatchString(word):
				continue
			case slices.Contains(prefixWords, word):
				started = true
				continue
			case started && (strings.HasPrefix(word, "-") || word[0] >= '0' && word[0] <= '9'):
				continue // a flag of that
			}

			if slices.Contains(testWords, word) || base == "" {
				break
			}

			return base
		}

		if words := strings.Fields(part); fallback == "" && len(words) > 0 {
			fallback = clipSlug(path.Base(words[0]), 40)
		}
	}

	if fallback == "" {
		return "job"
	}

	return fallback
}
