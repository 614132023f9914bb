package batch

import (
	"context"
	"errors"
	"path"
	"slices"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/task"
)

// Named describes objects of the whole cluster that commands name by words and globs.
type Named[C any] struct {
	Kind    string // in messages, such as "role"
	Connect func() (C, error)
	List    func(ctx context.Context, c C) ([]string, error)
	Get     func(ctx context.Context, c C, name string) error
	Delete  func(ctx context.Context, c C, name string) error
	// Caution returns why the deletion of named objects needs a confirmation; "": it needs none. Optional.
	Caution func(ctx context.Context, c C, names []string) string
}

// deleted is what a program reads of a deletion.
type deleted struct {
	Name string `json:"name"`
}

// BindDelete makes cmd delete the objects that it names. Its verb and the past of it are words for people, such as
// "delete" and "deleted". It asks before it deletes several objects that were not all named.
func BindDelete[C any](f *factory.Factory, cmd *cobra.Command, verb, past string, of Named[C]) *cobra.Command {
	dryRun := false
	cmd.Args = factory.Args(1, -1, "the "+of.Kind+"'s name")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be done, without doing it")
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		c, err := of.Connect()
		if err != nil {
			return err
		}

		names, broad, err := of.expand(ctx, c, words)
		if err != nil {
			return err
		}

		var absent error
		if dryRun {
			names, absent = Existing(ctx, f, names, func(name string) error { return of.Missing(ctx, f, c, name, of.Get(ctx, c, name)) })
			if len(names) == 0 && absent != nil {
				return absent
			}
		}

		if of.Caution != nil && !dryRun && !f.Yes {
			if why := of.Caution(ctx, c, names); why != "" {
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
			err = of.Missing(ctx, f, c, name, err)
			return deleted{name}, past + " " + of.Kind + " " + name, err
		})
		if err := output.EmitChanged(&f.Printer, list, len(names), func(d deleted) string { return d.Name }); err != nil {
			return err
		}

		return failed
	}

	return cmd
}

// expand returns the objects that names and globs match, each once. broad is set if there are several of them and
// not each was named.
func (n Named[C]) expand(ctx context.Context, c C, words []string) (names []string, broad bool, err error) {
	var all []string
	if broad = slices.ContainsFunc(words, selection.IsGlob); broad {
		if all, err = n.List(ctx, c); err != nil {
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

// Missing adds to the error of an object that does not exist the name that was probably meant.
func (n Named[C]) Missing(ctx context.Context, f *factory.Factory, c C, name string, err error) error {
	if !errors.Is(err, task.ErrNotFound) {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, f.LookupTimeout)
	defer cancel()

	fail := f.Explain(err)
	names, listed := n.List(ctx, c)
	if near := task.Nearest(name, names); listed == nil && near != "" && near != name {
		fail.Hint = "did you mean: " + near
	}

	return fail
}
