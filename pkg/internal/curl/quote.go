package curl

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// piece is a part of a word: a text, or the value of a shell variable after it.
type piece struct{ text, variable string }

// safeWord matches words that a shell does not change.
var safeWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// quoted returns a word for a shell. Text is in single quotes, in which nothing is special; variables are in double quotes,
// so that their values are not split.
func (c *command) quoted(pieces ...piece) string {
	var b, text strings.Builder

	flush := func() {
		if text.Len() > 0 {
			b.WriteString(quoteText(text.String()))
		}
		text.Reset()
	}

	for _, p := range pieces {
		text.WriteString(p.text)
		if p.variable != "" {
			flush()
			b.WriteString(`"$` + p.variable + `"`)
		}
	}

	flush()
	if b.Len() == 0 {
		return "''"
	}

	return b.String()
}

// quoteText returns a text for a shell.
func quoteText(s string) string {
	if safeWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// notInVariable matches what the name of a shell variable must not contain.
var notInVariable = regexp.MustCompile(`[^A-Z0-9_]+`)

// variable returns the name of the shell variable for a reference: API_KEY for secret:api/key, and the name itself for a
// variable of the run. Two references never share a name.
func (c *command) variable(ref string) string {
	if name, is := c.names[ref]; is {
		return name
	}

	base, isEnv := strings.CutPrefix(ref, task.EnvRefPrefix)
	if !isEnv {
		base = notInVariable.ReplaceAllString(strings.ToUpper(strings.TrimPrefix(ref, task.SecretRefPrefix)), "_")
	}
	if base[0] >= '0' && base[0] <= '9' {
		base = "_" + base
	}

	name := base
	for n := 2; slices.Contains(slices.Collect(maps.Values(c.names)), name); n++ {
		name = base + "_" + strconv.Itoa(n)
	}

	c.names[ref] = name

	return name
}
