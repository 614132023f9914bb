package task

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// successWords describes when attempts succeed, or returns "" if only exit code 0 counts.
func successWords(s task.Success) string {
	if !s.Any() {
		return ""
	}

	codes := make([]string, len(s.ExitCodes))
	for i, code := range s.ExitCodes {
		codes[i] = strconv.Itoa(code)
	}

	words := []string{"exit code " + cmp.Or(strings.Join(codes, ", "), "0")}
	if s.Output != "" {
		words = append(words, "a line like "+task.Quote(s.Output))
	}

	if s.NotOutput != "" {
		words = append(words, "no line like "+task.Quote(s.NotOutput))
	}

	return strings.Join(words, "; ")
}

// outputWords describes a task's settings for output, or returns "" if there are none.
func outputWords(o task.Output) string {
	var words []string
	if o.Apart() {
		words = append(words, "separate streams")
	}

	if o.Limit > 0 {
		words = append(words, "the first "+o.Limit.String())
	}

	if o.Keep > 0 {
		words = append(words, "for "+o.Keep.String())
	}

	if o.Raw() {
		words = append(words, "not compressed")
	}

	return strings.Join(words, ", ")
}

// targetPartWords describes the parts of a task's runs, or returns "" if they have none.
func targetPartWords(t task.Target) string {
	if !t.FansOut() {
		return ""
	}

	var words string

	switch {
	case t.Parts > 0:
		words = strconv.Itoa(t.Parts)
	case t.Count == task.All:
		words = "one on every matching node"
	default:
		words = fmt.Sprintf("one on each of %d nodes", t.Count)
	}

	then := ", "

	if t.Stagger > 0 {
		words += fmt.Sprintf(", %s apart", t.Stagger)
	}

	if strings.Contains(words, " ") {
		then = "; "
	}

	return fmt.Sprintf("%s%s%s must succeed", words, then, cmp.Or(string(t.Succeed), "all"))
}
