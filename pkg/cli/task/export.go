package task

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// exporter writes tasks in the form of files for apply.
type exporter struct {
	*factory.Factory
	selector string
	dir      string
	force    bool
	count    int
	list     []json.RawMessage // for JSON, which is written as one value
}

// exportCommand returns "carillon task export".
func exportCommand(f *factory.Factory) *cobra.Command {
	x := &exporter{Factory: f}
	cmd := &cobra.Command{
		Use:   "export [TASK...]",
		Short: "Write tasks as files for apply",
		Long: "Write tasks as YAML, without defaults and without the fields that the server sets. Applying the\n" +
			"output changes nothing. Without names, the command exports all tasks of the namespace, or with -A of\n" +
			"all namespaces.\n\n" +
			"With --dir, each task gets its own file: DIR/TASK.yaml, or with -A DIR/NAMESPACE/TASK.yaml. The\n" +
			"command keeps a file that already describes the same task, including its comments. It refuses to\n" +
			"overwrite a file that differs, unless you pass --force.",
		Example: `  carillon task export > tasks.yaml
  carillon task export nightly-backup 'report-*'
  carillon task export -l team=data --dir tasks/
  carillon task export -A -o jsonl > million.ndjson`,
		ValidArgsFunction: complete.Tasks(f),
	}
	factory.LimitFormats(cmd, output.FormatTable, output.FormatYAML, output.FormatJSON, output.FormatJSONL, output.FormatName)
	cmd.Flags().StringVarP(&x.selector, "selector", "l", "", "export tasks whose labels match this `SELECTOR`, such as team=data")
	cmd.Flags().StringVar(&x.dir, "dir", "", "write a file for each task into this `DIRECTORY`")
	cmd.Flags().BoolVar(&x.force, "force", false, "with --dir: overwrite files that differ")
	_ = cmd.MarkFlagDirname("dir") // the flag exists
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if err := factory.RefuseEmpty(cmd, "dir", "selector"); err != nil {
			return err
		}
		if x.force && x.dir == "" {
			return failure.Usage("--force requires --dir")
		}
		if x.dir != "" && x.Format != output.FormatTable && x.Format != output.FormatYAML {
			return failure.Usage("--dir writes YAML, and cannot be used with -o %s", x.Format)
		}
		c, err := f.Connect()
		if err != nil {
			return err
		}
		if err := x.exportSelected(cmd.Context(), c, words); err != nil {
			return err
		}
		if x.Format == output.FormatJSON {
			return output.EmitList(&f.Printer, x.list, nil, nil)
		}

		return nil
	}

	return cmd
}

// exportSelected exports the tasks that words and flags select.
func (e *exporter) exportSelected(ctx context.Context, c *client.Client, words []string) error {
	if e.selector == "" && len(words) > 0 && !slices.ContainsFunc(words, selection.IsGlob) {
		return e.exportByName(ctx, c, words)
	}
	if e.selector != "" && len(words) > 0 {
		return failure.Usage("names and -l cannot be used together")
	}

	matched := map[string]bool{}
	var codes []int

	namespace, query, err := selection.Query(e.Factory, words, e.selector)
	if err != nil {
		return err
	}

	for t, err := range c.Tasks.All(ctx, client.TaskListOptions{Namespace: namespace, Query: query, Complete: true}) {
		if err != nil {
			return err
		}

		for _, w := range words {
			matched[w] = matched[w] || selection.Matches(e.Factory, w, selection.Ref{Namespace: t.Namespace, Name: t.Name})
		}

		if err := e.writeTask(t); err != nil {
			codes = append(codes, e.Report(err))
		}
	}

	for _, w := range words {
		if !matched[w] {
			codes = append(codes, e.Report(failure.NotFound("no task matches %s", task.Quote(w))))
		}
	}

	if e.count == 0 && len(codes) == 0 {
		e.Note("%s", selection.NoTasks(ctx, e.Factory, c, namespace, query))
	}

	return failure.AlreadyReported(codes)
}

// exportByName exports tasks by their names.
func (e *exporter) exportByName(ctx context.Context, c *client.Client, words []string) error {
	refs := make([]selection.Ref, len(words))
	for i, w := range words {
		var err error
		if refs[i], err = selection.ParseRef(e.Factory, w); err != nil {
			return err
		}
	}

	return batch.ForEach(ctx, e.Factory, refs, func(r selection.Ref) error {
		t, err := c.Tasks.Get(ctx, r.Namespace, r.Name)
		if err != nil {
			return selection.ExplainMissing(ctx, e.Factory, c, r, err)
		}
		return e.writeTask(t)
	})
}

// writeTask exports a task. It omits the namespace if applying the output with the current settings means the
// same.
func (e *exporter) writeTask(t client.Task) error {
	std := task.Defaults().Namespace
	least, err := manifest.MinimalSpec(t.Spec, t.Namespace == std && e.Namespace() == std && !e.AllNamespaces)
	if err != nil {
		return err
	}

	first := e.count == 0
	e.count++
	switch {
	case e.dir != "":
		return e.writeFile(t, least)
	case e.Format == output.FormatJSON:
		e.list = append(e.list, least)
		return nil
	case e.Format == output.FormatJSONL:
		return e.Print(string(least) + "\n")
	case e.Format == output.FormatName:
		return e.Print(selection.TaskName(e.Factory, t) + "\n")
	}

	text, err := manifest.WriteYAML(least)
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}

	if !first {
		text = append([]byte("---\n"), text...)
	}

	return e.Print(string(text))
}

// writeFile writes a task to its own file. The name of the file comes from the server, so it is checked here: a
// malicious server must not choose a path outside the directory.
func (e *exporter) writeFile(t client.Task, least []byte) error {
	if err := cmp.Or(task.CheckName("namespace", t.Namespace), task.CheckName("name", t.Name)); err != nil {
		return fmt.Errorf("the server returned a task that cannot be written to a file: %w", err)
	}

	text, err := manifest.WriteYAML(least)
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}

	dir := e.dir
	if e.AllNamespaces {
		dir = filepath.Join(dir, t.Namespace)
	}

	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("%s: %s", dir, failure.FileReason(err))
	}

	file := filepath.Join(dir, t.Name+".yaml")
	have, err := manifest.Load(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case e.saysSame(file, have, least):
		e.Say("unchanged %s", file)
		return nil
	case !e.force:
		return &failure.Error{Exit: failure.ExitConflict, Problem: failure.Problem{Code: client.CodeExists, Message: file + " differs from the task",
			Hint: "to overwrite it, add --force; to see the differences: carillon diff -f " + file}}
	}

	if err := replaceFile(file, text); err != nil {
		return fmt.Errorf("%s: %s", file, failure.FileReason(err))
	}

	e.Say("wrote %s", file)

	return nil
}

// saysSame reports whether a file contains this task and no other.
func (e *exporter) saysSame(file string, have, least []byte) bool {
	objects, err := manifest.Read(file, have, e.Namespace())
	if err != nil || len(objects) != 1 || objects[0].Err != nil {
		return false
	}

	same, err := manifest.MinimalSpec(objects[0].Spec, false)
	if err != nil {
		return false
	}

	wanted, err := manifest.Read("x.json", least, e.Namespace())
	if err != nil || len(wanted) != 1 {
		return false
	}

	full, err := manifest.MinimalSpec(wanted[0].Spec, false)

	return err == nil && bytes.Equal(same, full)
}

// replaceFile writes a file atomically.
func replaceFile(file string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(file), ".carillon-*")
	if err != nil {
		return err
	}

	defer os.Remove(f.Name()) // has no effect after the rename

	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err != nil {
		return err
	}

	return os.Rename(f.Name(), file)
}
