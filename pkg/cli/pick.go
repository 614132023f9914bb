package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// ref names a task.
type ref struct{ namespace, name string }

func (r ref) String() string { return r.namespace + "/" + r.name }

// show is a task's name as messages use it: with its namespace only where that
// is not the one at hand.
func (a *app) show(r ref) string {
	if r.namespace == a.namespace() && !a.allNamespaces {
		return r.name
	}
	return r.String()
}

// ref reads NAME or NAMESPACE/NAME, and checks it before anything is sent.
func (a *app) ref(word string) (ref, error) {
	r := ref{a.namespace(), word}
	if ns, name, ok := strings.Cut(word, "/"); ok {
		r = ref{ns, name}
	}
	if err := task.CheckName("namespace", r.namespace); err != nil {
		return r, err
	}
	return r, task.CheckName("name", r.name)
}

// pick is how a verb that may take many tasks names them.
type pick struct {
	selector string
	dryRun   bool
}

func (p *pick) bind(cmd *cobra.Command, changes bool) {
	cmd.Flags().StringVarP(&p.selector, "selector", "l", "", "tasks whose labels match, such as team=data")
	if changes {
		cmd.Flags().BoolVar(&p.dryRun, "dry-run", false, "only list what would be done")
	}
}

// choice is what was picked. Broad is set if it is more than one task and not
// each was named: then a change asks first.
type choice struct {
	refs  []ref
	broad bool
}

func isGlob(word string) bool { return strings.ContainsAny(word, "*?[") }

// tasks finds the tasks that names, globs and a selector stand for, each once.
func (a *app) tasks(ctx context.Context, c *client.Client, words []string, p pick) (choice, error) {
	var out choice
	broad := p.selector != ""
	if !broad && len(words) == 0 {
		return out, failure.Usage("which task? name one, or several, or use -l")
	}
	if broad && len(words) > 0 {
		return out, failure.Usage("names and -l exclude each other")
	}
	if _, err := task.ParseSelector(p.selector); err != nil {
		return out, task.Under("selector", err)
	}
	globs := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return !isGlob(w) })
	var all []ref
	if broad = broad || len(globs) > 0; broad {
		namespace, names, err := a.patterns(globs)
		if err != nil {
			return out, err
		}
		for t, err := range c.All(ctx, client.ListOptions{Namespace: namespace, Selector: p.selector, Names: names, Brief: true}) {
			if err != nil {
				return out, err
			}
			all = append(all, ref{t.Namespace, t.Name})
		}
	}
	if p.selector != "" {
		out.refs = all
	}
	has := map[ref]bool{}
	for _, word := range words {
		found, err := a.matching(word, all)
		if err != nil {
			return out, err
		}
		for _, r := range found {
			if !has[r] {
				has[r] = true
				out.refs = append(out.refs, r)
			}
		}
	}
	out.broad = broad && len(out.refs) > 1
	return out, nil
}

// patterns are names and globs as the server takes them, and the namespace in which
// to look for them: "" if one of them names another.
func (a *app) patterns(words []string) (namespace string, names []string, err error) {
	namespace = a.scope()
	if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, "/") }) {
		namespace = ""
	}
	for _, w := range words {
		if _, err := path.Match(w, ""); isGlob(w) && (err != nil || strings.ContainsAny(w, ",")) {
			return "", nil, failure.Usage("%s is not a pattern; use *, ? and [a-z]", task.Quote(w))
		} else if !isGlob(w) {
			if _, err := a.ref(w); err != nil {
				return "", nil, err
			}
		}
		if namespace == "" && !a.allNamespaces && !strings.Contains(w, "/") {
			w = a.namespace() + "/" + w
		}
		names = append(names, w)
	}
	return namespace, names, nil
}

// matching is the tasks that one word stands for. A glob that matches nothing
// is an error, as it is for rm: it names something.
func (a *app) matching(word string, all []ref) ([]ref, error) {
	if !isGlob(word) {
		r, err := a.ref(word)
		return []ref{r}, err
	}
	var found []ref
	for _, r := range all {
		if a.matches(word, r) {
			found = append(found, r)
		}
	}
	if len(found) == 0 {
		return nil, failure.NotFound("no task matches %s", task.Quote(word))
	}
	return found, nil
}

// matches reports whether a name or a glob, with a namespace or without, stands for
// a task.
func (a *app) matches(word string, r ref) bool {
	text := r.String()
	if !strings.Contains(word, "/") {
		if text = r.name; !a.allNamespaces && r.namespace != a.namespace() {
			return false
		}
	}
	ok, _ := path.Match(word, text) // a bad pattern matches nothing
	return ok
}

// approve shows what is about to be done to many and asks. severe verbs want
// the number typed. It returns false if nothing is to be done.
func (a *app) approve(ctx context.Context, verb string, ch choice, p pick, severe bool) (bool, error) {
	names := make([]string, len(ch.refs))
	for i, r := range ch.refs {
		names[i] = a.show(r)
	}
	return a.confirm(ctx, verb, "task", names, ch.broad, p.dryRun, severe)
}

// confirm is approve for things of any kind, by their names.
func (a *app) confirm(ctx context.Context, verb, kind string, names []string, broad, dryRun, severe bool) (bool, error) {
	if len(names) == 0 {
		a.Note("no %s matches; nothing done", kind)
	}
	if dryRun || len(names) == 0 {
		return false, a.emitPlan(verb, kind, names)
	}
	if !broad || a.yes {
		return true, nil
	}
	if !a.wantsJSON() {
		a.preview(verb, names)
	}
	return a.ask(ctx, verb+" "+output.Plural(int64(len(names)), kind)+"?", len(names), severe)
}

// planned is what a dry run tells programs of one thing.
type planned struct {
	Would string `json:"would"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
}

// emitPlan prints what a dry run found: a sentence for each thing, or a list.
func (a *app) emitPlan(verb, kind string, names []string) error {
	if a.ForPeople() {
		var b strings.Builder
		for _, name := range names {
			fmt.Fprintf(&b, "would %s %s\n", verb, name)
		}
		return a.Print(b.String())
	}
	plan := make([]planned, len(names))
	for i, name := range names {
		plan[i] = planned{verb, kind, name}
	}
	return output.EmitList(&a.Printer, plan, func(p planned) string { return p.Name }, nil)
}

// present keeps those of named things that look finds; it tells of the others. So a
// dry run of a name with a slip in it fails as the change itself would.
func present[T any](ctx context.Context, a *app, things []T, look func(T) error) ([]T, error) {
	found := make([]T, 0, len(things))
	failed := together(ctx, a, things, func(t T) error {
		err := look(t)
		if err == nil {
			found = append(found, t)
		}
		return err
	})
	return found, failed
}

// preview says what would be done to which things, before the question.
func (a *app) preview(verb string, names []string) {
	const most = 20
	for i, name := range names {
		if i == most {
			fmt.Fprintf(a.Err, a.Plain("… and %d more\n"), len(names)-most)
			return
		}
		fmt.Fprintf(a.Err, "%s %s\n", verb, name)
	}
}

func (a *app) ask(ctx context.Context, question string, n int, severe bool) (bool, error) {
	if _, tty := a.Terminal(a.In); !tty || a.noInput {
		return false, &failure.Error{Exit: failure.ExitUsage, Problem: failure.Problem{Code: failure.CodeConfirm,
			Message: strings.TrimSuffix(question, "?") + ": needs a yes, and nobody can be asked",
			Hint:    "add --yes to go ahead, or --dry-run to see what it would be"}}
	}
	want := "y"
	if severe {
		question = a.inContext(question)
		want = strconv.Itoa(n)
		fmt.Fprintf(a.Err, "%s Type the number %d to go ahead: ", question, n)
	} else {
		fmt.Fprintf(a.Err, "%s [y/N] ", question)
	}
	answer, err := patiently(ctx, func() (string, error) {
		line, _ := bufio.NewReader(a.In).ReadString('\n') // no answer is a no
		return line, nil
	})
	if err != nil {
		return false, err
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	if answer == want || (!severe && answer == "yes") {
		return true, nil
	}
	return false, &failure.Error{Exit: failure.ExitFailure, Problem: failure.Problem{Code: failure.CodeConfirm, Message: "not done"}}
}

// patiently reads what a person may take their time to type, or another program
// to send, and gives up when ctx ends. The read itself cannot be ended: it is
// left behind, and ends with the process.
func patiently[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := read()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// missing adds to "not found" what was probably meant.
func (a *app) missing(ctx context.Context, c *client.Client, r ref, err error) error {
	var e *client.Error
	if !errors.As(err, &e) || e.Code != client.CodeNotFound {
		return err
	}
	f := a.explainRemote(e)
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	if answer, err := c.Why(ctx, r.namespace, r.name, client.WhyQuestion{}); err == nil {
		switch d := answer.Deleted; {
		case d == nil: // the task is there, and something of it is not
			if e.Field == "to" {
				f.Hint = "carillon task history " + a.show(r) + " --versions"
			}
		case !strings.Contains(f.Message, "it was deleted"):
			by, why := "", ""
			if d.By != "" {
				by = " by " + d.By
			}
			if d.Why != "" {
				why = ": " + d.Why
			}
			f.Hint = output.OneLine("it was deleted " + strings.Replace(a.PastTime(d.At, ""), "now", "just now", 1) + by + why)
		}
		return f
	}
	var names []string
	const most = 5000
	for t, err := range c.All(ctx, client.ListOptions{Limit: most}) {
		switch {
		case err != nil:
			return f
		case t.Namespace == r.namespace:
			names = append(names, t.Name)
		case t.Name == r.name:
			f.Hint = fmt.Sprintf("it is in another namespace: -n %s", t.Namespace)
		}
	}
	if near := task.Nearest(r.name, names); near != "" {
		f.Hint = "did you mean: " + near
	}
	return f
}
