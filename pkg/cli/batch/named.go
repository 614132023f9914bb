package batch

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Named describes a kind of objects of the whole cluster that commands name by words and globs.
type Named[T any] struct {
	Kind   string // in messages, such as "role"
	Name   func(T) string
	List   func(ctx context.Context, c *client.Client) ([]T, error)
	Get    func(ctx context.Context, c *client.Client, name string) (T, error)
	Delete func(ctx context.Context, c *client.Client, name string) error
	// Permanent reports whether an object cannot be deleted. A glob does not select it. Optional: all can be deleted.
	Permanent func(T) bool
	// Caution returns why the deletion of named objects needs a confirmation; "": it needs none. Optional.
	Caution func(names []string) string
}

// Written describes how commands create and change objects of a kind. A is the answer of the server.
type Written[T, A any] struct {
	Named[T]
	Put, DryRun func(ctx context.Context, c *client.Client, object T, as client.Writing) (A, error)
	// Outcome returns the revision in an answer, and the change that a dry run found.
	Outcome func(answer A) (revision int64, dry *client.Change)
	// Warn prints what else an answer says to people. Optional.
	Warn func(f *factory.Factory, answer A)
	// Next returns the command that usually follows the creation of an object.
	Next func(name string) string
}

// Write creates an object, or replaces the version that was read, and prints what has changed. With dryRun, the server only
// validates the change.
func (w Written[T, A]) Write(ctx context.Context, f *factory.Factory, c *client.Client, object T, as client.Writing, dryRun bool) error {
	put, name := w.Put, w.Name(object)
	if dryRun {
		put = w.DryRun
	}

	answer, err := factory.RetryBusy(ctx, func() (A, error) { return put(ctx, c, object, as) })
	if err != nil {
		return w.explainExisting(f, name, err)
	}
	if !f.ForPeople() {
		return output.EmitOne(&f.Printer, answer, name, nil)
	}

	revision, dry := w.Outcome(answer)
	switch {
	case dryRun:
		if err := view.PrintDryRun(f, w.Kind+" "+name, dry); err != nil {
			return err
		}
	case as.Create:
		f.Say("created %s %s", w.Kind, name)
	case revision == as.Revision:
		f.Say("%s %s is unchanged", w.Kind, name)
	default:
		f.Say("updated %s %s", w.Kind, name)
	}

	if w.Warn != nil {
		w.Warn(f, answer)
	}
	if as.Create && !dryRun {
		f.SayNext("%s", w.Next(name))
	}

	return nil
}

// BindList makes cmd list the objects. table shows them to people.
func BindList[T any](f *factory.Factory, cmd *cobra.Command, of Named[T], table func(list []T, wide bool) *output.Table) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = factory.Args(0, 0, ""), cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := f.Connect()
		if err != nil {
			return err
		}

		list, err := of.List(cmd.Context(), c)
		if err != nil {
			return err
		}

		return output.EmitList(&f.Printer, list, of.Name, func(wide bool) *output.Table { return table(list, wide) })
	}

	return cmd
}

// BindGet makes cmd show the object that it names. describe shows it to people.
func BindGet[T any](f *factory.Factory, cmd *cobra.Command, of Named[T], describe func(ctx context.Context, c *client.Client, d *output.Details, object T)) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		c, err := f.Connect()
		if err != nil {
			return err
		}

		object, err := of.Find(ctx, f, c, words[0])
		if err != nil {
			return err
		}

		return output.EmitOne(&f.Printer, object, of.Name(object), func(d *output.Details) { describe(ctx, c, d, object) })
	}

	return cmd
}

// deleted is what a program reads of a deletion.
type deleted struct {
	Name string `json:"name"`
}

// BindDelete makes cmd delete the objects that it names. Its verb and the past of it are words for people, such as
// "delete" and "deleted". It asks before it deletes several objects that were not all named.
func BindDelete[T any](f *factory.Factory, cmd *cobra.Command, verb, past string, of Named[T]) *cobra.Command {
	dryRun := false
	cmd.Args = factory.Args(1, -1, "the "+of.Kind+"'s name")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be done, without doing it")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		c, err := f.Connect()
		if err != nil {
			return err
		}

		names, broad, err := of.expandNames(ctx, c, words)
		if err != nil {
			return err
		}

		var absent error
		if dryRun {
			names, absent = Existing(ctx, f, names, func(name string) error {
				_, err := of.Get(ctx, c, name)
				return of.explainMissing(ctx, f, c, name, err, of.mayDelete)
			})
			if len(names) == 0 && absent != nil {
				return absent
			}
		}

		if of.Caution != nil && !dryRun && !f.Yes {
			if why := of.Caution(names); why != "" {
				if ok, err := f.Ask(ctx, why, len(names), false); !ok {
					return err
				}
			}
		}

		if ok, err := f.Confirm(ctx, verb, of.Kind, names, broad, dryRun, true); !ok {
			if err == nil {
				err = absent
			}
			return err
		}

		list, failed := Run(ctx, f, verb, past, of.Kind, names, func(ctx context.Context, name string) (deleted, string, error) {
			err := factory.RetryBusyError(ctx, func() error { return of.Delete(ctx, c, name) })
			err = of.explainMissing(ctx, f, c, name, err, of.mayDelete)
			return deleted{name}, past + " " + of.Kind + " " + name, err
		})
		if err := output.EmitChanged(&f.Printer, list, len(names), func(d deleted) string { return d.Name }); err != nil {
			return err
		}

		return failed
	}

	return cmd
}

// expandNames returns the objects that names and globs match, each once. broad is set if there are several of them and
// not each was named.
func (n Named[T]) expandNames(ctx context.Context, c *client.Client, words []string) (names []string, broad bool, err error) {
	var all []string
	if broad = slices.ContainsFunc(words, selection.IsGlob); broad {
		if all, err = n.listNames(ctx, c, n.mayDelete); err != nil {
			return nil, false, err
		}
	}

	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}

	for _, word := range words {
		if !selection.IsGlob(word) {
			add(word)
			continue
		}

		found := false
		for _, name := range all {
			matches, err := path.Match(word, name)
			if err != nil {
				return nil, false, failure.Usage("%s is not a pattern; use *, ? and [a-z]", task.Quote(word))
			}
			if matches {
				found = true
				add(name)
			}
		}

		if !found {
			return nil, false, failure.NotFound("no %s matches %s", n.Kind, task.Quote(word))
		}
	}

	return names, broad && len(names) > 1, nil
}

// Find reads an object. If none has this name, the error suggests the name that was probably meant.
func (n Named[T]) Find(ctx context.Context, f *factory.Factory, c *client.Client, name string) (T, error) {
	object, err := n.Get(ctx, c, name)
	return object, n.explainMissing(ctx, f, c, name, err, nil)
}

// explainExisting adds to the error of creating an object that exists already how to change it.
func (n Named[T]) explainExisting(f *factory.Factory, name string, err error) error {
	if !errors.Is(err, task.ErrExists) {
		return err
	}

	fail := f.Explain(err)
	fail.Hint = cmp.Or(fail.Hint, "change it with: carillon "+n.Kind+" update "+name)

	return fail
}

// explainMissing adds to the error of an object that does not exist the name that was probably meant, among the objects
// for which suggested returns true; nil stands for all.
func (n Named[T]) explainMissing(ctx context.Context, f *factory.Factory, c *client.Client, name string, err error, suggested func(T) bool) error {
	if !errors.Is(err, task.ErrNotFound) {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, f.LookupTimeout)
	defer cancel()

	fail := f.Explain(err)
	names, listed := n.listNames(ctx, c, suggested)
	if near := task.Nearest(name, names); listed == nil && near != "" && near != name {
		fail.Hint = "did you mean: " + near
	}

	return fail
}

// listNames returns the names of the objects for which wanted returns true; nil stands for all.
func (n Named[T]) listNames(ctx context.Context, c *client.Client, wanted func(T) bool) ([]string, error) {
	list, err := n.List(ctx, c)
	var names []string
	for _, object := range list {
		if wanted == nil || wanted(object) {
			names = append(names, n.Name(object))
		}
	}

	return names, err
}

func (n Named[T]) mayDelete(object T) bool { return n.Permanent == nil || !n.Permanent(object) }
