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

// makeSlug converts a text to what a name may contain; "" if nothing remains.
func makeSlug(text string) string {
	text = notInName.ReplaceAllString(strings.ToLower(text), "-")
	return strings.Trim(dotsPattern.ReplaceAllString(text, "."), "-._")
}

// clipSlug is makeSlug with a limit of bytes.
func clipSlug(text string, most int) string {
	if text = makeSlug(text); len(text) > most {
		text = strings.Trim(text[:most], "-._")
	}
	return text
}

// joinName joins the parts of a name that are not empty.
func joinName(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(p string) bool { return p == "" })
	return strings.Join(parts, "-")
}

// hashTag returns four letters that are derived from a text, so that similar commands have different names.
func hashTag(text string) string {
	sum := sha256.Sum256([]byte(text))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:4])
}

// Words that a line for the shell may have before the program that matters: those that only test something, and
// those that only start another program.
var (
	testWords         = strings.Fields("test [ [[ cd true : sleep export umask set ulimit . source")
	prefixWords       = strings.Fields("if then else elif do while until { ( ! exec nice ionice chrt time timeout sudo chronic command env nohup setsid flock systemd-cat cat")
	endsPart          = regexp.MustCompile(`&&|\|\||[;|&\n]`)
	assignmentPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
)

// guessProgram returns the name of the program that a command line is about. It is a guess, so that people
// recognize the names. It only needs to be the same whenever the line is the same.
func guessProgram(line string) string {
	fallback := ""

	// Take the first word of the first command that is not a test, an assignment, or a program that starts another
	// one.
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
				continue // a flag of that program
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
