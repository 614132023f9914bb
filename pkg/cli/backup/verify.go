package backup

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/internal/backup"
)

// verified is the result for one backup.
type verified struct {
	Name       string   `json:"name"`
	Good       bool     `json:"good"`
	Problem    string   `json:"problem,omitempty"`
	Keys       int64    `json:"keys"`
	Revision   int64    `json:"revision,omitempty"`
	Unreadable []string `json:"unreadable,omitempty"`
	BadRecords int64    `json:"unreadable_records,omitempty"`
	Unknown    []string `json:"unknown_kinds,omitempty"`
	Other      int64    `json:"other_keys,omitempty"`
}

// verifyCommand returns "carillon backup verify".
func verifyCommand(f *factory.Factory) *cobra.Command {
	var p place
	cmd := factory.LimitFormats(&cobra.Command{
		Use:   "verify DIRECTORY[/ID] | FILE",
		Short: "Verify the hashes of backups, and decode every record",
		Long: "Verify the hashes of a backup, or of all backups in a directory, and decode every record. A snapshot that etcdctl has\n" +
			"made is verified by the SHA-256 that etcd has appended.\n\n" +
			"It exits with 8 if a backup is damaged, incomplete, or contains records that cannot be decoded.",
		Example: "  carillon backup verify /backups\n  carillon backup verify /backups/20261128T020000.000Z",
		Args:    factory.Args(1, 1, "the backup"),
		RunE: func(cmd *cobra.Command, words []string) error {
			if err := factory.RefuseEmpty(cmd, "work", "prefix"); err != nil {
				return err
			}
			return explain(verifyAll(cmd.Context(), f, &p, words[0]))
		},
	}, output.Formats...)
	p.bindWork(cmd, "as large as the unpacked snapshot")
	p.bindPrefix(cmd, "of a snapshot of etcdctl: `PREFIX` of Carillon's keys")

	return cmd
}

// verifyAll verifies a backup, or all in a directory.
func verifyAll(ctx context.Context, f *factory.Factory, p *place, name string) error {
	names, err := namesOf(ctx, f, name)
	if err != nil {
		return err
	}

	var list []verified
	bad := 0
	for _, name := range names {
		v, err := verifyOne(ctx, f, p, name)
		if err != nil {
			return err
		}

		if list = append(list, v); !v.Good {
			bad++
		}
	}

	err = output.EmitList(&f.Printer, list, func(v verified) string { return v.Name }, func(bool) *output.Table { return verifiedTable(f, list) })
	if err == nil && f.ForPeople() {
		for _, v := range list {
			for _, record := range v.Unreadable {
				f.Note("%s: cannot be decoded: %s", v.Name, output.OneLine(record))
			}
		}
	}
	if err == nil && bad > 0 {
		err = failure.AlreadyReported([]int{failure.ExitFinding})
	}

	return err
}

// namesOf returns the backups in a directory, or the name of a single one.
func namesOf(ctx context.Context, f *factory.Factory, name string) ([]string, error) {
	if backup.IsBucket(name) {
		if _, id := backup.SplitBucketName(name); backup.IsID(id) {
			return []string{name}, nil
		}
	} else if info, err := os.Stat(name); err != nil || !info.IsDir() {
		return []string{name}, nil //nolint:nilerr // Open explains a name that does not exist
	}

	found, err := list(ctx, f, name)
	if err != nil {
		return nil, err
	}

	names := make([]string, len(found))
	for i, l := range found {
		names[i] = strings.TrimRight(name, "/") + "/" + l.Name
	}

	return names, nil
}

// verifyOne verifies a backup. An error means that this could not be decided.
func verifyOne(ctx context.Context, f *factory.Factory, p *place, name string) (verified, error) {
	v := verified{Name: name}

	s, remove, err := open(ctx, f, name, p.directory(f))
	var found *backup.Verification
	if err == nil {
		found, err = s.Verify(ctx, p.directory(f), p.prefix)
		err = errors.Join(err, remove())
	}

	switch {
	case errors.Is(err, backup.ErrDamaged), errors.Is(err, backup.ErrNewer):
		v.Problem = err.Error()
		return v, nil
	case err != nil:
		return v, err
	}

	v.Keys, v.Revision, v.Unreadable, v.BadRecords, v.Unknown, v.Other = found.Keys, found.Revision, found.Unreadable, found.BadRecords, found.Unknown, found.Other
	switch {
	case v.BadRecords > 0:
		v.Problem = output.Plural(v.BadRecords, "record") + " cannot be decoded"
	case len(v.Unknown) > 0:
		v.Problem = "keys of unknown kinds: " + strings.Join(v.Unknown, ", ")
	default:
		v.Good = true
	}

	return v, nil
}

// verifiedTable returns the table of the results.
func verifiedTable(f *factory.Factory, list []verified) *output.Table {
	ta := &output.Table{Headers: []string{"NAME", "KEYS", "RESULT"}, Empty: "there are no backups"}
	for _, v := range list {
		result := f.Paint(output.Green, "good")
		if !v.Good {
			result = f.Paint(output.Red, output.OneLine(v.Problem))
		}

		ta.AddRow(output.OneLine(v.Name), strconv.FormatInt(v.Keys, 10), result)
	}

	return ta
}
