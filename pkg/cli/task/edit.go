package task

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/apply"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// maxOpenings limits how often the editor is opened. A noninteractive editor may change the text each time.
const maxOpenings = 50

// editCommand returns "carillon task edit".
func editCommand(f *factory.Factory) *cobra.Command {
	e := &editSession{Factory: f}
	cmd := &cobra.Command{
		Use:   "edit TASK",
		Short: "Edit a task in your editor",
		Long: "Edit a task as YAML in $VISUAL or $EDITOR. The file shows the fields that differ from their defaults.\n" +
			"When you save and quit, the command applies the file. If you change nothing, it does nothing.\n\n" +
			"If the file is not valid, the editor opens again with the error at the top. If somebody else changed\n" +
			"the task in the meantime, it opens again with their changes. Your text is never lost: if it was not\n" +
			"applied, the command keeps it in a file and prints the path.",
		Example: `  carillon task edit nightly-backup
  EDITOR="code --wait" carillon task edit nightly-backup
  carillon task edit nightly-backup --editor 'sed -i s/02:30/03:30/'     without a terminal`,
		Args:              factory.Args(1, 1, "the task's name"),
		ValidArgsFunction: complete.Task(f),
	}
	cmd.Flags().StringVar(&e.editor, "editor", "", "run this `COMMAND` instead of $VISUAL or $EDITOR; it does not need a terminal")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if err := factory.RefuseEmpty(cmd, "editor"); err != nil {
			return err
		}
		if err := e.findEditor(); err != nil {
			return err
		}

		r, err := selection.ParseRef(f, words[0])
		if err != nil {
			return err
		}

		c, err := f.Connect()
		if err != nil {
			return err
		}

		t, err := c.Tasks.Get(cmd.Context(), r.Namespace, r.Name)
		if err != nil {
			return selection.ExplainMissing(cmd.Context(), f, c, r, err)
		}

		return e.editUntilApplied(cmd.Context(), c, t)
	}

	return cmd
}

// editSession is a task that is being edited.
type editSession struct {
	*factory.Factory
	editor string
	file   string
	base   client.Task // the task that the text is based on, updated after a conflict
}

// findEditor sets the command of the editor.
func (e *editSession) findEditor() error {
	if e.editor != "" {
		return nil
	}

	const other = "to change single fields, use carillon task update NAME; to apply files, use carillon apply; or use --editor with a command that does not need a terminal"
	_, in := e.Terminal(e.In)
	_, out := e.Terminal(e.Out)
	if !in || !out || e.NoInput {
		return failure.Usage("an editor requires a terminal").WithHint("%s", other)
	}
	if e.editor = cmp.Or(strings.TrimSpace(e.Env("VISUAL")), strings.TrimSpace(e.Env("EDITOR"))); e.editor == "" {
		return failure.Usage("neither VISUAL nor EDITOR is set").WithHint("for example: EDITOR=nano carillon task edit NAME")
	}

	return nil
}

// editUntilApplied opens the editor until the text is applied or the user gives up.
func (e *editSession) editUntilApplied(ctx context.Context, c *client.Client, t client.Task) error {
	e.base = t
	least, err := manifest.MinimalSpec(t.Spec, false)
	if err != nil {
		return err
	}

	body, err := manifest.WriteYAML(least)
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	if err := e.createFile(t); err != nil {
		return err
	}

	var why error // why the editor is opened again
	head := commentOut(fmt.Sprintf("Task %s at revision %d. Comment lines at the top, like this one, are ignored.\n"+
		"Omitted fields have their defaults.", selection.TaskName(e.Factory, t), t.Revision))
	for range maxOpenings {
		shown := append([]byte(head), body...)
		text, err := e.openEditor(ctx, shown)
		switch {
		case err != nil && why == nil && e.isUnchanged(shown):
			os.Remove(e.file)
			return err
		case err != nil:
			return e.keepFileOnError(err)
		case bytes.Equal(text, shown) && why == nil:
			os.Remove(e.file)
			e.Say("unchanged %s", selection.TaskName(e.Factory, t))
			return e.emitResult(t, client.Unchanged)
		case bytes.Equal(text, shown):
			return e.keepFileOnError(why)
		}

		body = withoutHead(text)
		if len(bytes.TrimSpace(body)) == 0 {
			os.Remove(e.file) // the file is empty
			return &failure.Error{Exit: failure.ExitFailure, Problem: failure.Problem{Code: failure.CodeConfirm, Message: "cancelled: the file is empty"}}
		}

		done, err := e.applyText(ctx, c, body)
		if err == nil {
			os.Remove(e.file)
			e.AboutTask(done.Timezone)
			selection.PrintWarnings(e.Factory, done)
			e.Say("%s %s%s", done.Result, selection.TaskName(e.Factory, done), view.NextText(e.Factory, done))

			return e.emitResult(done, done.Result)
		}

		switch {
		case errors.Is(err, task.ErrStale):
			why = err
			if head, err = e.explainConflict(ctx, c); err != nil {
				return e.keepFileOnError(err)
			}
		case errors.Is(err, task.ErrInvalid):
			head, why = e.faultHead(err)
		default:
			return e.keepFileOnError(err)
		}
	}

	return e.keepFileOnError(why)
}

// emitResult prints the task for programs.
func (e *editSession) emitResult(t client.Task, result string) error {
	t.Result = result
	return output.EmitChanged(&e.Factory.Printer, []client.Task{t}, 1, func(t client.Task) string { return selection.TaskName(e.Factory, t) })
}

// applyText writes the task as described by the text, if nobody else has changed it.
func (e *editSession) applyText(ctx context.Context, c *client.Client, body []byte) (client.Task, error) {
	objects, err := manifest.Read(e.file, body, e.base.Namespace)
	if err != nil {
		return client.Task{}, err
	}
	if len(objects) != 1 {
		return client.Task{}, task.Invalid(task.CodeBadValue, "", "the file contains %d tasks; it must contain exactly one", len(objects))
	}

	o := objects[0]
	for _, f := range []struct{ field, is, was string }{{"name", o.Spec.Name, e.base.Name}, {"namespace", o.Spec.Namespace, e.base.Namespace}} {
		if f.is != f.was {
			return client.Task{}, o.Locate(task.Invalid(task.CodeBadValue, f.field, "%s: the %s of a task cannot change; it is %s", task.Quote(f.is), f.field, f.was))
		}
	}

	if o.Err != nil {
		return client.Task{}, o.Err
	}

	t, err := c.Tasks.Apply(ctx, o.Spec, client.ApplyOptions{Revision: e.base.Revision})

	return t, apply.Locate(o, err)
}

// explainConflict describes the changes that somebody else made to the task. From then on, the text is compared
// with that version.
func (e *editSession) explainConflict(ctx context.Context, c *client.Client) (head string, err error) {
	now, err := c.Tasks.Get(ctx, e.base.Namespace, e.base.Name)
	if err != nil {
		return "", err
	}

	text := "The task has been changed"
	if now.UpdatedBy != nil {
		text += " by " + now.UpdatedBy.String()
	}

	text += ":\n"
	for _, f := range task.Compare(e.base.Spec, now.Spec) {
		text += "  " + f.String() + "\n"
	}

	text += "To overwrite this change, edit the text or remove these lines. To cancel, leave the text unchanged."
	e.base = now

	return commentOut(text), nil
}

// faultHead describes an error in the text below it. Line numbers take the new lines into account.
func (e *editSession) faultHead(err error) (head string, moved error) {
	var placed *manifest.Error
	if !errors.As(err, &placed) {
		placed = &manifest.Error{Line: 1, Column: 1, Err: err}
	}

	f := e.Explain(placed.Err)
	lines := func(line int) string {
		text := fmt.Sprintf("Not applied: line %d, column %d: %s", line, placed.Column, placed.Err)
		for i, other := range failure.Joined(err) {
			var at *manifest.Error
			if i > 0 && errors.As(other, &at) {
				text += fmt.Sprintf("\nAlso line %d, column %d: %s", at.Line+line-placed.Line, at.Column, at.Err)
			}
		}
		if f.Hint != "" {
			text += "\n" + f.Hint
		}
		return commentOut(text + "\nTo cancel, leave the text unchanged.")
	}

	at := *placed
	at.File, at.Line = e.file, at.Line+strings.Count(lines(0), "\n")

	return lines(at.Line), &at
}

// commentOut converts a text to the lines above the text to edit.
func commentOut(text string) string {
	return "#: " + strings.ReplaceAll(output.Sanitize(text), "\n", "\n#: ") + "\n"
}

// withoutHead removes the lines that this command has added, wherever they are.
func withoutHead(text []byte) []byte {
	var body []byte
	for line := range bytes.Lines(text) {
		if !bytes.HasPrefix(line, []byte("#:")) {
			body = append(body, line...)
		}
	}

	return body
}

// createFile creates the file. Only its user can read it, because it may contain secrets.
func (e *editSession) createFile(t client.Task) error {
	f, err := os.CreateTemp(e.Env("TMPDIR"), "carillon-"+t.Name+"-*.yaml")
	if err != nil {
		return fmt.Errorf("create a file to edit: %w", err)
	}

	e.file = f.Name()

	return f.Close()
}

// openEditor opens the text in the editor and returns it as it was saved.
func (e *editSession) openEditor(ctx context.Context, text []byte) ([]byte, error) {
	if err := os.WriteFile(e.file, text, 0o600); err != nil {
		return nil, fmt.Errorf("%s: %s", e.file, failure.FileReason(err))
	}

	// Not ended with ctx, because text that is not saved in the editor would be lost.
	cmd := output.UserCommand(e.editor, e.file)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = e.In, e.Out, e.Err
	if !e.ForPeople() {
		cmd.Stdout = e.Err // the output is data
	}

	if err := cmd.Run(); err != nil {
		return nil, &failure.Error{Exit: failure.ExitFailure, Problem: failure.Problem{Code: failure.CodeFailure, Message: fmt.Sprintf("the editor, %s, failed: %v", task.Quote(e.editor), err)}}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}

	b, err := manifest.Load(e.file)

	return b, err
}

// isUnchanged reports whether the file contains the text that was to be edited.
func (e *editSession) isUnchanged(shown []byte) bool {
	b, err := os.ReadFile(e.file)
	return err == nil && bytes.Equal(b, shown)
}

// keepFileOnError returns an error that names the file in which the text is kept.
func (e *editSession) keepFileOnError(err error) error {
	if errors.Is(err, context.Canceled) {
		err = failure.Interrupted(err)
	}

	f := *e.Explain(err)
	hint := "your text is in " + e.file
	if f.Hint != "" {
		hint = f.Hint + "; " + hint
	}

	f.Hint = hint

	return &f
}
