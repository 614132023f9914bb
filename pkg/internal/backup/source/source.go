// Package source makes backups without the API: of an etcd, and of the data directory of an embedded member that has stopped.
//
// A data directory is not opened itself. Its copy is started as the only member of a cluster. What the member's log contains, but its
// database does not, is in the backup, too. The data directory stays as it was.
package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
	"github.com/carillonhq/carillon/pkg/task"
)

// Options are common to all sources.
type Options struct {
	Prefix   string // of Carillon's keys
	Carillon string // the version of this program
	Now      func() time.Time
	Work     string // an existing directory for temporary files, with the space for the backup
}

// Etcd is how to connect to an etcd.
type Etcd struct {
	Endpoint                     string // a single member
	User, Password, PasswordFile string // see kv.Config
	Files                        certs.Files
}

// FromEtcd makes a backup of an etcd. The result is in the directory for temporary files; the caller must remove it.
func FromEtcd(ctx context.Context, e Etcd, o Options) (*backup.Packed, error) {
	cfg := kv.Config{Endpoints: []string{e.Endpoint}, Username: e.User, Password: e.Password, PasswordFile: e.PasswordFile}
	if e.Files != (certs.Files{}) {
		files, err := certs.Open(e.Files)
		if err != nil {
			return nil, err
		}
		cfg.TLS = files.Client
	}

	c, err := kv.Dial(ctx, cfg)
	if err != nil {
		return nil, err
	}

	p, err := o.pack(ctx, c, e.Endpoint, backup.SourceEtcd, 0)

	return p, errors.Join(err, c.Close())
}

// pack makes a backup of the member to which a client is connected. term is the RaftTerm of its manifest.
func (o Options) pack(ctx context.Context, c *kv.Client, endpoint, source string, term int64) (_ *backup.Packed, err error) {
	origin := backup.Origin{Time: o.Now(), Source: source, Prefix: o.Prefix, Carillon: o.Carillon, RaftTerm: term}

	snapshot, err := etcdadmin.OpenSnapshot(ctx, c, endpoint)
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, snapshot.Close()) }()

	if err := backup.RequireSpace(o.Work, 2*snapshot.DBSize); err != nil {
		return nil, err
	}

	origin.AtLeast = snapshot.AtLeast

	return backup.Pack(ctx, snapshot, filepath.Join(o.Work, "backup.tmp"), origin)
}

// startTimeout limits how long the copy of a data directory takes to start. It has to apply the whole log of the member.
const startTimeout = 10 * time.Minute

// FromDataDir makes a backup of the data directory of an agent with an embedded member, or of the directory of the etcd in it. The agent
// must have stopped. The result is in the directory for temporary files; the caller must remove it.
func FromDataDir(ctx context.Context, dir string, o Options) (_ *backup.Packed, err error) {
	etcd, err := findEtcd(dir)
	if err != nil {
		return nil, err
	}

	lock, err := embedded.LockDir(etcd)
	if errors.Is(err, embedded.ErrLocked) {
		return nil, fmt.Errorf("%s: %w: its agent runs; stop it, or make a backup without --data-dir", etcd, task.ErrConflict)
	}
	if err != nil {
		return nil, err
	}

	copied := filepath.Join(o.Work, "etcd")
	size, err := sizeOf(etcd)
	if err == nil {
		err = backup.RequireSpace(o.Work, size)
	}
	if err == nil {
		err = copyDir(ctx, etcd, copied)
	}
	// The copy is independent of the directory, so the agent may start again.
	if err = errors.Join(err, lock.Close()); err != nil {
		return nil, errors.Join(err, os.RemoveAll(copied))
	}

	defer func() { err = errors.Join(err, os.RemoveAll(copied)) }()

	start, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	// Without a quota, so that no alarm is raised, and without a compaction. The only member needs no long election.
	server, err := embedded.Start(start, embedded.Config{
		Dir: copied, ForceNewCluster: true, QuotaBytes: -1, CompactionInterval: 24 * time.Hour, Tick: 10 * time.Millisecond, Election: 100 * time.Millisecond,
	})
	if err != nil {
		return nil, fmt.Errorf("start a copy of %s: %w", etcd, err)
	}

	p, err := o.pack(ctx, server.Client(), "", backup.SourceDataDir, server.LastTerm())

	return p, errors.Join(err, server.Close())
}

// findEtcd returns the data directory of etcd in dir, or dir itself.
func findEtcd(dir string) (string, error) {
	for _, path := range []string{filepath.Join(dir, "etcd"), dir} {
		if _, err := os.Stat(filepath.Join(path, "member", "wal")); err == nil {
			return path, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}

	return "", fmt.Errorf("%s contains no data of an embedded etcd: %w", dir, task.ErrNotFound)
}

func sizeOf(dir string) (bytes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}

		info, err := e.Info()
		if err == nil {
			bytes += info.Size()
		}

		return err
	})

	return bytes, err
}

// copyDir copies the regular files of a directory. Sockets and the like are left out.
func copyDir(ctx context.Context, from, to string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}

		rest, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}

		target := filepath.Join(to, rest)
		switch {
		case e.IsDir():
			return os.Mkdir(target, 0o700)
		case e.Type().IsRegular():
			return copyFile(path, target)
		}

		return nil
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}

	defer in.Close()

	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}

	_, err = io.Copy(out, in)

	return errors.Join(err, out.Close())
}
