// Package backup implements "carillon backup": it makes, lists, verifies and reads backups of a cluster. Package pkg/internal/backup
// knows their form.
package backup

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/task"
)

// Command returns "carillon backup".
func Command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{Use: "backup", Short: "Make backups of the cluster, verify them, and restore them"}
	lists, verify, rehearse, restore := listCommand(f), verifyCommand(f), rehearseCommand(f), restoreCommand(f)
	factory.WithoutConfig(lists, verify, rehearse, restore) // they ask no node
	cmd.AddCommand(createCommand(f), lists, verify, extractCommand(f), rehearse, restore)

	return cmd
}

// codeDamaged is the code of a backup that is not what was stored.
const codeDamaged = "backup_damaged"

// explain adds an exit code to an error of package pkg/internal/backup. Errors of the API have one already.
func explain(err error) error {
	var remote *client.Error
	var known *failure.Error
	if err == nil || errors.As(err, &remote) || errors.As(err, &known) || errors.Is(err, context.Canceled) {
		return err
	}

	e := &failure.Error{Exit: failure.ExitFailure, Problem: failure.Problem{Code: failure.CodeFailure, Message: err.Error()}}
	switch {
	case errors.Is(err, backup.ErrDamaged):
		e.Exit, e.Code = failure.ExitFinding, codeDamaged
	case errors.Is(err, task.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		e.Exit, e.Code = failure.ExitNotFound, client.CodeNotFound
	case errors.Is(err, task.ErrExists):
		e.Exit, e.Code = failure.ExitConflict, client.CodeExists
	case errors.Is(err, task.ErrConflict):
		e.Exit, e.Code = failure.ExitConflict, client.CodeConflict
	case errors.Is(err, task.ErrUnavailable):
		e.Exit, e.Code = failure.ExitUnavailable, client.CodeUnavailable
	case errors.Is(err, backup.ErrNoDisk):
		e.Code = client.CodeNoDisk
	case errors.Is(err, task.ErrInvalid):
		return err
	}

	return e
}

// open opens the backup with a name. One in a bucket is copied to a directory first. The caller must call remove at the end.
func open(ctx context.Context, f *factory.Factory, name, work string) (s *backup.Stored, remove func() error, err error) {
	if backup.IsBucket(name) {
		return backup.FetchTemp(ctx, name, work, f.Env)
	}

	s, err = backup.Open(name)

	return s, func() error { return nil }, err
}

// list lists the backups in a directory or bucket.
func list(ctx context.Context, f *factory.Factory, name string) ([]backup.Listed, error) {
	if !backup.IsBucket(name) {
		return backup.List(name)
	}

	b, err := backup.OpenBucket(name, f.Env)
	if err != nil {
		return nil, err
	}

	return b.List(ctx)
}

// place is where a command stores temporary files, and the prefix of keys in a backup without a manifest.
type place struct{ work, prefix string }

// bindWork declares --work. what is the size of the files.
func (p *place) bindWork(cmd *cobra.Command, what string) {
	cmd.Flags().StringVar(&p.work, "work", "", "`DIRECTORY` for temporary files, "+what+" (default: TMPDIR, or /var/tmp)")
	_ = cmd.MarkFlagDirname("work") // the flag exists
}

// bindPrefix declares --prefix.
func (p *place) bindPrefix(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVar(&p.prefix, "prefix", backup.DefaultPrefix, usage)
}

// directory returns the directory for temporary files. /tmp is often in memory.
func (p *place) directory(f *factory.Factory) string {
	for _, dir := range []string{p.work, f.Env("TMPDIR")} {
		if dir != "" {
			return dir
		}
	}

	return "/var/tmp"
}

// makeWork makes a private directory in the one for temporary files.
func (p *place) makeWork(f *factory.Factory) (dir string, remove func() error, err error) {
	dir, err = os.MkdirTemp(p.directory(f), "carillon-backup-*")
	return dir, func() error { return os.RemoveAll(dir) }, err
}

// prefixOf returns the prefix of Carillon's keys in a backup.
func (p *place) prefixOf(s *backup.Stored) string {
	if s.Manifest != nil {
		return s.Manifest.Prefix
	}
	return p.prefix
}
