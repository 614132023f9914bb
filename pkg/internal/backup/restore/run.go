package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Restore plans the restore of a backup on a host, and prepares it in the work directory, unless the caller wants only the plan. gone are
// the nodes of the backup that somebody has switched off (see CheckNodes). It refuses what the documentation of the package lists.
func Restore(ctx context.Context, stored *backup.Stored, host *Host, o *Options, gone []string, planOnly bool) (plan *Plan, p *Prepared, err error) {
	seen, release, err := readSeen(host.DataDir)
	if err != nil {
		return nil, nil, err
	}
	defer release()

	o.Seen = seen
	check := func(ctx context.Context, c *Content) error {
		// The lock of the data directory proves that the node of this host is stopped, if it is the directory of that node.
		self := ""
		if seen.Cluster == c.Cluster.ID {
			self = host.Node
		}

		if err := o.beginStep("ask the nodes of the backup"); err != nil {
			return err
		}

		return CheckNodes(ctx, host.Asker, c, self, gone)
	}

	return run(ctx, stored, host, o, check, planOnly)
}

// run is Restore without what concerns other hosts. check, if set, is called with the content of the backup.
func run(ctx context.Context, stored *backup.Stored, host *Host, o *Options, check func(context.Context, *Content) error, planOnly bool) (plan *Plan, p *Prepared, err error) {
	keys, err := record.NewKeys(o.Prefix)
	if err != nil {
		return nil, nil, err
	}

	_, missing := os.Stat(o.Work)
	source, err := Unpack(ctx, stored, o)
	defer func() {
		err = errors.Join(err, Clean(o.Work))
		if errors.Is(missing, fs.ErrNotExist) && (planOnly || err != nil) {
			_ = os.Remove(o.Work) // unless something is in it
		}
	}()
	if err != nil {
		return nil, nil, err
	}

	if err := o.beginStep("read the content"); err != nil {
		return nil, nil, err
	}

	content, err := ReadContent(ctx, source.Path, keys)
	if err != nil {
		return nil, nil, err
	}
	if err := errors.Join(content.check(o), checkMove(stored.Manifest, source, content, o)); err != nil {
		return nil, nil, err
	}
	if check != nil {
		if err := check(ctx, content); err != nil {
			return nil, nil, err
		}
	}

	if plan, err = MakePlan(ctx, source, content, o, host.SecretKeys); err != nil || planOnly {
		return plan, nil, err
	}

	encoded, err := json.MarshalIndent(plan, "", "  ")
	if err != nil {
		return plan, nil, err
	}
	if err := datadir.WriteSynced(filepath.Join(o.Work, planFile), append(encoded, '\n'), 0o600); err != nil {
		return plan, nil, err
	}

	p, err = Prepare(ctx, source, content, o)

	return plan, p, err
}

// checkMove refuses a restore after which everything of the backup goes on, unless nothing can have happened since the backup.
func checkMove(m *backup.Manifest, source Source, c *Content, o *Options) error {
	switch {
	case o.Until.After(source.Time):
		return nil
	case o.Freeze != "":
		return task.Invalid(task.CodeBadValue, "freeze", "is not possible if nothing was lost: a freeze skips the ticks that are due meanwhile")
	case len(c.Nodes) > 0 && (m == nil || m.Source != backup.SourceDataDir):
		return task.Invalid(task.CodeBadValue, "lost-until", "the backup was made while nodes were running, so ticks were decided after it: say until when. "+
			"Only a backup that was made after all agents were stopped can be moved without a gap")
	case o.Seen.Epoch > c.Cluster.Epoch, o.Seen.Epoch == c.Cluster.Epoch && o.Seen.Revision > c.Revision:
		return task.Invalid(task.CodeBadValue, "lost-until", "the node of this host has run since the backup was made, so ticks were decided after it: "+
			"say until when, or stop all agents and make another backup")
	}

	return nil
}

// readSeen returns the history that the node with a data directory has seen. It takes the lock of the directory, which proves that the
// agent does not run; release gives it back. A directory that does not exist has seen nothing.
func readSeen(dir string) (s Seen, release func(), err error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return Seen{}, func() {}, nil
	}

	state, err := lockDataDir(dir)
	if err != nil {
		return Seen{}, nil, err
	}

	return seenBy(state), state.Close, nil
}

// lockDataDir opens a data directory. Its lock proves that no agent runs on it.
func lockDataDir(dir string) (*datadir.State, error) {
	state, err := datadir.Open(dir)
	if errors.Is(err, datadir.ErrRunning) {
		err = fmt.Errorf("%w: stop it first", err)
	}

	return state, err
}

// Commands returns the commands that install a prepared restore, for the operator to run. host is the one that has prepared it in the
// directory work, and config the file with its settings.
func (p *Prepared) Commands(host *Host, work, config string) []string {
	db := filepath.Join(work, PreparedFile)
	if !p.Embedded {
		return []string{
			"# on each member of etcd, with its own NAME, URL and DIRECTORY, and the same --initial-cluster on all of them:",
			fmt.Sprintf("etcdutl snapshot restore %s --name NAME --initial-advertise-peer-urls URL --initial-cluster NAME=URL,… --initial-cluster-token %s --data-dir DIRECTORY",
				QuoteShell(db), QuoteShell(p.Token)),
		}
	}

	install := fmt.Sprintf("carillon backup restore --install %s --config %s", QuoteShell(db), QuoteShell(config))
	var commands []string
	if len(p.Members) > 1 {
		commands = append(commands, "# on the other members, after you have copied the directory to the same place there: "+
			fmt.Sprintf("scp -r %s HOST:%s", QuoteShell(work), QuoteShell(filepath.Dir(work)+"/")))
	}

	return append(commands, install)
}
