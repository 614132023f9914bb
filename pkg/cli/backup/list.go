package backup

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/task"
)

// listedBackup is a backup in the output of list.
type listedBackup struct {
	Name     string           `json:"name"`
	State    string           `json:"state"`             // complete, or what is wrong
	Size     int64            `json:"size"`              // of the file, in bytes
	Modified task.Time        `json:"modified,omitzero"` // of the file
	Manifest *backup.Manifest `json:"manifest,omitempty"`
}

// stateComplete is the state of a backup whose manifest is right and whose file has the right size.
const stateComplete = "complete"

// listCommand returns "carillon backup list".
func listCommand(f *factory.Factory) *cobra.Command {
	return factory.LimitFormats(&cobra.Command{
		Use:   "list DIRECTORY | s3://BUCKET/PREFIX",
		Short: "List the backups in a directory or bucket, in the order of history",
		Long: "List the backups in a directory or bucket in the order of the cluster's history: by epoch and revision, not by the times of files, and\n" +
			"those of several stopped members by raft term and revision. The last one is usually the one to restore. Files that are not\n" +
			"complete backups come first.\n\n" +
			"The command reads only manifests and sizes. carillon backup verify reads everything.",
		Example: "  carillon backup list /backups\n  carillon backup list /backups -o json | jq -r '.[] | select(.state == \"complete\") | .name' | tail -1",
		Args:    factory.Args(1, 1, "the directory or bucket"),
		RunE: func(cmd *cobra.Command, words []string) error {
			found, err := list(cmd.Context(), f, words[0])
			if err != nil {
				return explain(err)
			}

			rows := make([]listedBackup, len(found))
			for i, l := range found {
				rows[i] = listedBackup{Name: l.Name, State: l.Problem, Size: l.Size, Manifest: l.Manifest}
				if l.Problem == "" {
					rows[i].State = stateComplete
				}
				if !l.ModTime.IsZero() {
					rows[i].Modified = task.At(l.ModTime)
				}
			}

			return output.EmitList(&f.Printer, rows, func(l listedBackup) string { return l.Name }, func(bool) *output.Table {
				return backupTable(f, rows)
			})
		},
	}, output.Formats...)
}

// backupTable returns the table of backups.
func backupTable(f *factory.Factory, list []listedBackup) *output.Table {
	ta := &output.Table{Headers: []string{"ID", "CLUSTER", "EPOCH", "REVISION", "TASKS", "SIZE", "STATE"}, Empty: "there are no backups"}
	for _, l := range list {
		row := []string{output.OneLine(l.Name), f.NoValue(), f.NoValue(), f.NoValue(), f.NoValue(), output.Bytes(l.Size), l.State}
		if m := l.Manifest; m != nil {
			row[1], row[2], row[3], row[4] = output.OneLine(m.Cluster), strconv.Itoa(m.Epoch), strconv.FormatInt(m.Revision, 10), strconv.FormatInt(m.Tasks(), 10)
		}

		if l.State == stateComplete {
			row[6] = f.Paint(output.Green, l.State)
		} else {
			row[6] = f.Paint(output.Red, output.OneLine(l.State))
		}

		ta.AddRow(row...)
	}

	return ta
}
