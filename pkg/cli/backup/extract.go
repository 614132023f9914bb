package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/selection"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// extractor writes the tasks of a backup in the form of files for apply.
type extractor struct {
	*factory.Factory
	place

	selector string
	missing  bool

	labels  task.Selector
	present map[string]bool // with missing: the tasks of the cluster, as NAMESPACE/NAME
	count   int64
	codes   []int             // of what was reported
	list    []json.RawMessage // for JSON, which is written as one value
}

// extractCommand returns "carillon backup extract".
func extractCommand(f *factory.Factory) *cobra.Command {
	x := &extractor{Factory: f}
	cmd := factory.LimitFormats(&cobra.Command{
		Use:   "extract DIRECTORY/ID | FILE | s3://BUCKET/PREFIX/ID",
		Short: "Write tasks of a backup as files for apply",
		Long: "Write the tasks of a namespace, or with -A of all namespaces, from a backup as YAML, as carillon task export does. With\n" +
			"--missing, the command asks the cluster, and writes only tasks that it does not have. No cluster is needed otherwise.\n\n" +
			"A task that you create again begins anew: its history, its ledger and its waiting runs do not return. Secrets, tokens\n" +
			"and runs are not extracted. To get a task back that was deleted within a week, use carillon task undelete.",
		Example: "  carillon backup extract /backups/20261128T020000.000Z -n billing --missing | carillon apply -f -\n" +
			"  carillon backup extract /backups/20261128T020000.000Z -A -l team=data -o jsonl > tasks.ndjson",
		Args: factory.Args(1, 1, "the backup"),
		RunE: func(cmd *cobra.Command, words []string) error {
			if err := factory.RefuseEmpty(cmd, "selector", "work", "prefix"); err != nil {
				return err
			}

			var err error
			if x.labels, err = task.ParseSelector(x.selector); err != nil {
				return failure.Usage("--selector: %s", err)
			}

			return explain(x.extract(cmd.Context(), words[0]))
		},
	}, output.FormatTable, output.FormatYAML, output.FormatJSON, output.FormatJSONL, output.FormatName)
	cmd.Flags().StringVarP(&x.selector, "selector", "l", "", "extract tasks whose labels match this `SELECTOR`, such as team=data")
	cmd.Flags().BoolVar(&x.missing, "missing", false, "extract only tasks that the cluster does not have")
	x.bindWork(cmd, "as large as the unpacked snapshot")
	x.bindPrefix(cmd, "of a snapshot of etcdctl: `PREFIX` of Carillon's keys")

	return cmd
}

// extract writes the tasks of a backup.
func (x *extractor) extract(ctx context.Context, name string) (err error) {
	s, remove, err := open(ctx, x.Factory, name, x.directory(x.Factory))
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, remove()) }()

	if x.missing {
		if err := x.readPresent(ctx); err != nil {
			return err
		}
	}

	d, err := s.OpenUnpacked(ctx, x.directory(x.Factory))
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, d.Close()) }()

	prefix := x.prefixOf(s)
	found, err := d.HasCluster(ctx, prefix)
	if err != nil {
		return err
	}
	if !found {
		return failure.NotFound("the backup contains no cluster below %s", prefix).WithHint("--prefix names the prefix of its keys")
	}

	if err := d.EachTask(ctx, prefix, x.Scope(), x.writeTask, x.reportUnreadable); err != nil {
		return err
	}

	if x.Format == output.FormatJSON {
		if err := output.EmitList(&x.Printer, x.list, nil, nil); err != nil {
			return err
		}
	}

	x.noteResult(s)

	return failure.AlreadyReported(x.codes)
}

// readPresent reads the names of the tasks that the cluster has.
func (x *extractor) readPresent(ctx context.Context) error {
	c, err := x.Connect()
	if err != nil {
		return err
	}

	x.present = map[string]bool{}
	for t, err := range c.Tasks.All(ctx, client.TaskListOptions{Namespace: x.Scope(), Complete: true}) {
		if err != nil {
			return err
		}
		x.present[t.Namespace+"/"+t.Name] = true
	}

	return nil
}

// writeTask writes a task, if it is wanted. The namespace is always in the file: apply may run with another setting.
func (x *extractor) writeTask(t task.Task) error {
	if !x.labels.Matches(t.Labels) || x.present[t.Namespace+"/"+t.Name] {
		return nil
	}

	least, err := manifest.MinimalSpec(t.Spec, false)
	if err != nil {
		x.codes = append(x.codes, x.Report(fmt.Errorf("task %s/%s: %w", t.Namespace, t.Name, err)))
		return nil
	}

	x.count++
	switch x.Format {
	case output.FormatJSON:
		x.list = append(x.list, least)
		return nil
	case output.FormatJSONL:
		return x.Print(string(least) + "\n")
	case output.FormatName:
		return x.Print(selection.Name(x.Factory, t.Namespace, t.Name) + "\n")
	}

	text, err := manifest.WriteYAML(least)
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}

	if x.count > 1 {
		text = append([]byte("---\n"), text...)
	}

	return x.Print(string(text))
}

// reportUnreadable reports a task whose record cannot be decoded, and goes on.
func (x *extractor) reportUnreadable(namespace, name string, err error) error {
	x.codes = append(x.codes, x.Report(fmt.Errorf("task %s/%s: %w", namespace, name, err)))
	return nil
}

// noteResult says on stderr how many tasks were written.
func (x *extractor) noteResult(s *backup.Stored) {
	what := "tasks"
	if x.missing {
		what = "missing tasks"
	}

	switch {
	case x.count > 0:
		x.Note("extracted %s", output.Plural(x.count, "task"))
	case x.Scope() != "" && s.Manifest != nil && s.Manifest.Tasks() > 0:
		x.Note("the backup has no such %s in namespace %s; it has %s in all namespaces, which -A extracts", what, x.Scope(), output.Plural(s.Manifest.Tasks(), "task"))
	default:
		x.Note("the backup has no such %s", what)
	}
}
