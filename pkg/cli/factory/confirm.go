package factory

import (
	"bufio"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
)

// Confirm asks for the confirmation of a change of several objects. It returns false if nothing must be done:
// no object matches, or it is a dry run, whose plan it prints. broad states that the objects were selected by a
// pattern; only then is a confirmation needed. A severe change is confirmed with the number of objects.
func (f *Factory) Confirm(ctx context.Context, verb, kind string, names []string, broad, dryRun, severe bool) (bool, error) {
	if len(names) == 0 {
		f.Note("no %s matches; nothing was changed", kind)
	}

	if dryRun || len(names) == 0 {
		return false, f.emitPlan(verb, kind, names)
	}
	if !broad || f.Yes {
		return true, nil
	}

	if !f.wantsJSON() {
		f.showPreview(verb, names)
	}

	return f.Ask(ctx, verb+" "+output.Plural(int64(len(names)), kind)+"?", len(names), severe)
}

// DryRunItem is one planned change of a dry run, for programs.
type DryRunItem struct {
	Would string `json:"would"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
}

// emitPlan prints the plan of a dry run: a sentence for each object, or a list.
func (f *Factory) emitPlan(verb, kind string, names []string) error {
	if f.ForPeople() {
		var b strings.Builder
		for _, name := range names {
			fmt.Fprintf(&b, "would %s %s\n", verb, name)
		}
		return f.Print(b.String())
	}

	plan := make([]DryRunItem, len(names))
	for i, name := range names {
		plan[i] = DryRunItem{verb, kind, name}
	}

	return output.EmitList(&f.Printer, plan, func(p DryRunItem) string { return p.Name }, nil)
}

// showPreview prints the planned changes before the question.
func (f *Factory) showPreview(verb string, names []string) {
	const most = 20

	for i, name := range names {
		if i == most {
			fmt.Fprintf(f.Err, f.Plain("… and %d more\n"), len(names)-most)
			return
		}
		fmt.Fprintf(f.Err, "%s %s\n", verb, name)
	}
}

// Ask asks a question on the terminal. The answer must be y, or the number n if the change is severe. It
// returns an error if there is no terminal, or if input is disabled.
func (f *Factory) Ask(ctx context.Context, question string, n int, severe bool) (bool, error) {
	if _, tty := f.Terminal(f.In); !tty || f.NoInput {
		return false, &failure.Error{Exit: failure.ExitUsage, Problem: failure.Problem{Code: failure.CodeConfirm,
			Message: strings.TrimSuffix(question, "?") + ": requires confirmation, but there is no terminal",
			Hint:    "add --yes to confirm, or --dry-run to see what would change"}}
	}

	want := "y"
	if severe {
		question = f.inContext(question)
		want = strconv.Itoa(n)
		fmt.Fprintf(f.Err, "%s Type %d to confirm: ", question, n)
	} else {
		fmt.Fprintf(f.Err, "%s [y/N] ", question)
	}

	answer, err := ReadPatiently(ctx, func() (string, error) {
		line, _ := bufio.NewReader(f.In).ReadString('\n') // no answer counts as no
		return line, nil
	})

	if err != nil {
		return false, err
	}

	answer = strings.ToLower(strings.TrimSpace(answer))
	if answer == want || (!severe && answer == "yes") {
		return true, nil
	}

	return false, &failure.Error{Exit: failure.ExitFailure, Problem: failure.Problem{Code: failure.CodeConfirm, Message: "cancelled"}}
}

// ReadPatiently calls a function that may block for a long time on input from a user or another program. It
// returns when ctx ends. The function itself cannot be interrupted, so its goroutine remains until the process
// ends.
func ReadPatiently[T any](ctx context.Context, read func() (T, error)) (T, error) {
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
