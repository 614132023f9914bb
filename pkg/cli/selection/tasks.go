package selection

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Flags are the flags that select tasks.
type Flags struct {
	Selector string
	DryRun   bool
}

// Bind declares the flags. changes adds those for commands that change something.
func (f *Flags) Bind(cmd *cobra.Command, changes bool) {
	cmd.Flags().StringVarP(&f.Selector, "selector", "l", "", "select tasks whose labels match this `SELECTOR`, such as team=data")
	if changes {
		cmd.Flags().BoolVar(&f.DryRun, "dry-run", false, "print the changes without making them")
	}
}

// Tasks are the selected tasks. Broad is true if they are several and not all were named; a change then needs a
// confirmation.
type Tasks struct {
	Refs  []Ref
	Broad bool
}

// IsGlob reports whether a word is a glob.
func IsGlob(word string) bool { return strings.ContainsAny(word, "*?[") }

// Find returns the tasks that names, globs or a selector select, each once.
func Find(ctx context.Context, f *factory.Factory, c *client.Client, words []string, p Flags) (Tasks, error) {
	var out Tasks
	broad := p.Selector != ""
	if !broad && len(words) == 0 {
		return out, failure.Usage("no task given; name one or more tasks, or use -l")
	}
	if broad && len(words) > 0 {
		return out, failure.Usage("names and -l cannot be used together")
	}

	globs := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return !IsGlob(w) })
	var all []Ref
	// One list contains the matches of all globs. expandWord then assigns them to the words.
	if broad = broad || len(globs) > 0; broad {
		namespace, query, err := Query(f, globs, p.Selector)
		if err != nil {
			return out, err
		}

		for t, err := range c.Tasks.All(ctx, client.TaskListOptions{Namespace: namespace, Query: query, Brief: true, Complete: true}) {
			if err != nil {
				return out, err
			}
			all = append(all, Ref{t.Namespace, t.Name})
		}
	}

	if p.Selector != "" {
		out.Refs = all
	}

	has := map[Ref]bool{}
	for _, word := range words {
		found, err := expandWord(f, word, all)
		if err != nil {
			return out, err
		}

		for _, r := range found {
			if !has[r] {
				has[r] = true
				out.Refs = append(out.Refs, r)
			}
		}
	}

	out.Broad = broad && len(out.Refs) > 1

	return out, nil
}

// Query returns the query for tasks with one of these names or globs, with labels that match a selector, and for which
// further terms hold. Without words, all names match; an empty selector or term is left out. The query is about a
// namespace, which is "" for all: also if a word contains a namespace.
func Query(f *factory.Factory, words []string, selector string, terms ...string) (namespace, query string, err error) {
	if selector != "" {
		parsed, err := task.ParseSelector(selector)
		if err == nil && len(parsed) == 0 {
			err = task.Invalid(task.CodeRequired, "", "%s has no terms", task.Quote(selector)) // it would select all tasks
		}
		if err != nil {
			return "", "", task.Under("selector", err)
		}
		terms = append([]string{client.QueryTerm("selector", selector)}, terms...)
	}

	var names []string
	namespace = f.Scope()
	if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, "/") }) {
		namespace = ""
	}

	for _, w := range words {
		if _, err := path.Match(w, ""); IsGlob(w) && (err != nil || strings.ContainsAny(w, ",")) {
			return "", "", failure.Usage("%s is not a pattern; use *, ? and [a-z]", task.Quote(w))
		} else if !IsGlob(w) {
			if _, err := ParseRef(f, w); err != nil {
				return "", "", explainWord(w, err)
			}
		}

		if namespace == "" && !f.AllNamespaces && !strings.Contains(w, "/") {
			w = f.Namespace() + "/" + w
		}

		names = append(names, w)
	}

	// The terms that people write come last. If one of them has a quote that is not closed, the error is about this term.
	return namespace, client.JoinTerms(append([]string{client.QueryTerm("name", names...)}, terms...)...), nil
}

// explainWord explains the error for a word that is not a name: what people write for labels is a selector.
func explainWord(word string, err error) error {
	if _, wrong := task.ParseSelector(word); err == nil || wrong != nil || !strings.Contains(word, "=") {
		return err
	}
	return failure.Usage("%s is not the name of a task", task.Quote(word)).WithHint("to select tasks by their labels: -l '%s'", word)
}

// expandWord returns the tasks that one word selects. A glob that matches nothing is an error, as with rm.
func expandWord(f *factory.Factory, word string, all []Ref) ([]Ref, error) {
	if !IsGlob(word) {
		r, err := ParseRef(f, word)
		return []Ref{r}, explainWord(word, err)
	}

	var found []Ref
	for _, r := range all {
		if Matches(f, word, r) {
			found = append(found, r)
		}
	}

	if len(found) == 0 {
		return nil, failure.NotFound("no task matches %s", task.Quote(word))
	}

	return found, nil
}

// Matches reports whether a name or a glob, with or without a namespace, selects a task.
func Matches(f *factory.Factory, word string, r Ref) bool {
	text := r.String()
	if !strings.Contains(word, "/") {
		if text = r.Name; !f.AllNamespaces && r.Namespace != f.Namespace() {
			return false
		}
	}

	ok, _ := path.Match(word, text) // an invalid pattern matches nothing
	return ok
}

// Approve shows a change of several tasks and asks for confirmation: see Factory.Confirm. It returns false if
// nothing must be done.
func Approve(ctx context.Context, f *factory.Factory, verb string, ch Tasks, p Flags, severe bool) (bool, error) {
	names := make([]string, len(ch.Refs))
	for i, r := range ch.Refs {
		names[i] = Show(f, r)
	}
	return f.Confirm(ctx, verb, "task", names, ch.Broad, p.DryRun, severe)
}

// ExplainMissing adds to a "not found" error what was probably meant, or who deleted the task.
func ExplainMissing(ctx context.Context, f *factory.Factory, c *client.Client, r Ref, err error) error {
	var e *client.Error
	if !errors.As(err, &e) || e.Code != client.CodeNotFound {
		return err
	}

	fail := f.ExplainRemote(e)
	ctx, cancel := context.WithTimeout(ctx, f.LookupTimeout)
	defer cancel()

	if answer, err := c.Tasks.Why(ctx, r.Namespace, r.Name, client.WhyQuestion{}); err == nil {
		switch d := answer.Deleted; {
		case d == nil: // the task exists, but something within it does not
			if e.Field == "to" {
				fail.Hint = "carillon task history " + Show(f, r) + " --versions"
			}
		default:
			by, why := "", ""
			if d.By != nil {
				by = " by " + d.By.String()
			}

			if d.Why != "" {
				why = ": " + d.Why
			}

			fail.Hint = output.OneLine("it was deleted " + strings.Replace(f.PastTime(d.At, output.ReaderZone), "now", "just now", 1) + by + why)
		}

		return fail
	}

	var names []string
	const most = 5000
	for t, err := range c.Tasks.All(ctx, client.TaskListOptions{Limit: most}) {
		switch {
		case err != nil:
			return fail
		case t.Namespace == r.Namespace:
			names = append(names, t.Name)
		case t.Name == r.Name:
			fail.Hint = fmt.Sprintf("the task is in another namespace: -n %s", t.Namespace)
		}
	}

	if near := task.Nearest(r.Name, names); near != "" {
		fail.Hint = "did you mean: " + near
	}

	return fail
}
