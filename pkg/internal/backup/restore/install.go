package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	// etcdDir is the directory of the embedded etcd in the data directory of an agent.
	etcdDir = "etcd"
	// installedFile, in the directory of the embedded etcd, has the ID of the restore of which its data are. etcd ignores the file.
	installedFile = "carillon-restore"
	// maxRecord is the maximum size of prepared.json.
	maxRecord = 4 << 20
)

// Target is a host on which a prepared restore is installed.
type Target struct {
	// Node, Members and DataDir are those of its settings, as in Options.
	Node    string
	Members map[string]string
	DataDir string
	Logger  *zap.Logger

	interrupt func(step string) error // as in Options
}

// Installed says what Install has done.
type Installed struct {
	Prepared *Prepared
	// Already says that the restore was installed before, and that Install has changed nothing.
	Already bool
	// Started says that the agent was started after that, so the installation cannot be undone any more.
	Started bool
	Etcd    string // the directory with the data of etcd
	Former  string // where its former data are; empty if there were none
}

// Undo returns the commands that undo the installation. There are none after the agent was started: the other members know what this
// one has acknowledged since.
func (i *Installed) Undo() []string {
	if i.Started {
		return nil
	}

	commands := []string{"mv " + QuoteShell(i.Etcd) + " " + QuoteShell(i.Etcd+".restored-"+i.Prepared.Restored.ID)}
	if i.Former != "" {
		commands = append(commands, "mv "+QuoteShell(i.Former)+" "+QuoteShell(i.Etcd))
	}

	return commands
}

// ReadPrepared reads the record beside prepared.db. The path is that of either file.
func ReadPrepared(path string) (*Prepared, error) {
	file, err := os.Open(filepath.Join(filepath.Dir(path), recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w: it is written last, so the restore was not prepared completely, or only one of the two files was copied", recordFile, task.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()

	var p Prepared
	if err := json.NewDecoder(io.LimitReader(file, maxRecord)).Decode(&p); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", file.Name(), err)
	}
	if p.Token == "" || p.Cluster == "" || p.Restored.ID == "" || p.Restored.Epoch == 0 || p.SHA256 == "" || strings.Contains(p.Restored.ID, "/") {
		return nil, fmt.Errorf("%s is damaged: fields are missing", file.Name())
	}

	return &p, nil
}

// Install replaces the data of the embedded etcd of this host by those of a prepared restore. The agent must be stopped. Nothing else in
// its data directory changes: the output of attempts and state.json prove what ran, and peer-certs contains the CA.
//
// The data are replaced in one step, so an interrupted Install has done either nothing or everything, and can be repeated. A repetition
// after the agent was started changes nothing either: it would undo what the member has promised to the others.
func Install(ctx context.Context, prepared string, t Target) (_ *Installed, err error) {
	p, err := ReadPrepared(prepared)
	if err != nil {
		return nil, err
	}

	if err := t.checkMembers(p); err != nil {
		return nil, err
	}

	// The lock of the directory proves that no agent runs on it, and that no other Install does.
	state, err := lockDataDir(t.DataDir)
	if err != nil {
		return nil, err
	}
	defer state.Close()

	if err := checkSeen(seenBy(state), p, t.DataDir); err != nil {
		return nil, err
	}

	result := &Installed{Prepared: p, Etcd: filepath.Join(t.DataDir, etcdDir)}
	former, staged := result.Etcd+".before-"+p.Restored.ID, result.Etcd+".installing-"+p.Restored.ID

	installed, err := installedID(result.Etcd)
	if err != nil {
		return nil, err
	}

	// A former Install may have ended right after it has exchanged the directories. Then the former data have the name of the staged ones.
	if result.Already = installed == p.Restored.ID; result.Already {
		if err := renameIfExists(staged, former); err != nil {
			return nil, err
		}
		result.noteFormer(former)

		if result.Started, err = changedSinceInstall(result.Etcd); err != nil {
			return nil, err
		}
		// A clock that was set back hides changes from their times.
		result.Started = result.Started || state.Epoch() >= p.Restored.Epoch

		return result, nil
	}

	if err := t.stage(ctx, filepath.Join(filepath.Dir(prepared), PreparedFile), p, staged); err != nil {
		return nil, err
	}

	if err := t.replaceData(result.Etcd, staged, former); err != nil {
		return nil, err
	}
	result.noteFormer(former)

	return result, nil
}

// seenBy returns the history that a node has seen.
func seenBy(state *datadir.State) (s Seen) {
	s.Cluster, s.Epoch, s.Revision = state.History()
	return s
}

// checkSeen refuses a restore that is not later than what the node of this host has seen.
func checkSeen(seen Seen, p *Prepared, dir string) error {
	switch {
	case seen.Cluster == "":
		return nil
	case seen.Cluster != p.Cluster:
		return fmt.Errorf("the restore is of cluster %s, but the data directory %s belongs to cluster %s", p.Cluster, dir, seen.Cluster)
	case seen.Epoch > p.Restored.Epoch:
		return fmt.Errorf("the node of this host has seen epoch %d of the cluster, but the restore begins epoch %d: the cluster was restored again since, "+
			"or the clock of the host that prepared the restore was behind; prepare it again", seen.Epoch, p.Restored.Epoch)
	case seen.Epoch < p.Restored.Epoch && seen.Revision >= p.Revision:
		return fmt.Errorf("the node of this host has seen revision %d of etcd, but the restore has revision %d, so fencing tokens would be used twice: "+
			"the clock of the host that prepared the restore was behind; prepare it on this host", seen.Revision, p.Revision)
	}

	return nil
}

// checkMembers compares the settings of this host with those of the host that prepared the restore. Members with different settings
// would not find each other.
func (t *Target) checkMembers(p *Prepared) error {
	switch {
	case !p.Embedded:
		return errors.New("the restore was prepared on a host without an embedded etcd: restore each member of etcd with the commands of the plan instead")
	case maps.Equal(t.Members, p.Members):
		return nil
	}

	return fmt.Errorf("initial_cluster of this host is %s, but that of the host that prepared the restore was %s: make the settings of all hosts the same, "+
		"and prepare the restore again if they were wrong there", formatMembers(t.Members), formatMembers(p.Members))
}

// formatMembers formats the members of an etcd as a flag has them.
func formatMembers(members map[string]string) string {
	if len(members) == 0 {
		return "empty"
	}

	var list []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		list = append(list, name+"="+members[name])
	}

	return strings.Join(list, ",")
}

// installedID returns the ID of the restore of which the data in a directory of etcd are, or "" if they are of none.
func installedID(dir string) (string, error) {
	id, err := os.ReadFile(filepath.Join(dir, installedFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}

	return strings.TrimSpace(string(id)), nil
}

// changedSinceInstall reports whether etcd was started on installed data. It writes to its files then, and installedFile was written
// last before.
func changedSinceInstall(dir string) (changed bool, err error) {
	marker, err := os.Stat(filepath.Join(dir, installedFile))
	if err != nil {
		return false, err
	}

	err = filepath.WalkDir(filepath.Join(dir, "member"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}

		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.ModTime().After(marker.ModTime()) {
			changed = true
			return fs.SkipAll
		}

		return nil
	})

	return changed, err
}

// stage restores prepared.db into a new directory beside the data of etcd. It first removes what an interrupted Install has left there.
func (t *Target) stage(ctx context.Context, db string, p *Prepared, staged string) error {
	if err := os.RemoveAll(staged); err != nil {
		return err
	}
	if err := backup.RequireFree(t.DataDir, p.Size); err != nil {
		return err
	}

	if err := t.beginStep("verify"); err != nil {
		return err
	}
	if err := verifyFile(ctx, db, p); err != nil {
		return err
	}

	if err := t.beginStep("restore"); err != nil {
		return err
	}

	name, url := t.Node, t.Members[t.Node]
	members := formatMembers(t.Members)
	if len(t.Members) == 0 {
		name, url = privateName, privateURL
		members = name + "=" + url
	}

	err := snapshot.NewV3(etcdLogger(t.Logger)).Restore(snapshot.RestoreConfig{
		SnapshotPath: db, OutputDataDir: staged, Name: name, PeerURLs: []string{url}, InitialCluster: members, InitialClusterToken: p.Token,
	})
	if err != nil {
		return fmt.Errorf("restore %s: %w", db, err)
	}

	if err := datadir.WriteSynced(filepath.Join(staged, installedFile), []byte(p.Restored.ID+"\n"), 0o600); err != nil {
		return err
	}

	// etcd has synced its files. Their directories follow before the directory gets its name.
	return errors.Join(os.Chmod(staged, 0o700), backup.SyncDir(filepath.Join(staged, "member", "snap")), backup.SyncDir(filepath.Join(staged, "member", "wal")),
		backup.SyncDir(filepath.Join(staged, "member")), backup.SyncDir(staged))
}

// replaceData exchanges the data of etcd with the staged ones, in one step, and keeps the former ones.
func (t *Target) replaceData(etcd, staged, former string) error {
	if err := t.beginStep("replace"); err != nil {
		return err
	}

	err := unix.Renameat2(unix.AT_FDCWD, staged, unix.AT_FDCWD, etcd, unix.RENAME_EXCHANGE)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		// There are no data, as on a new host, or the file system cannot exchange directories. Between these two steps there are no data.
		// An agent that starts then refuses to, because its data directory belongs to a cluster that etcd does not have.
		if err = renameIfExists(etcd, former); err == nil {
			err = os.Rename(staged, etcd)
		}
	case err == nil:
		if err := t.beginStep("rename the former data"); err != nil {
			return err
		}
		err = os.Rename(staged, former)
	}
	if err != nil {
		return fmt.Errorf("replace the data of etcd: %w", err)
	}

	return backup.SyncDir(t.DataDir)
}

// noteFormer notes where the former data of etcd are, if there were any.
func (i *Installed) noteFormer(dir string) {
	if _, err := os.Stat(dir); err == nil {
		i.Former = dir
	}
}

// beginStep is for tests.
func (t *Target) beginStep(step string) error {
	if t.interrupt != nil {
		return t.interrupt(step)
	}
	return nil
}

// verifyFile compares prepared.db with its record.
func verifyFile(ctx context.Context, path string, p *Prepared) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()

	if err := backup.CompareContent(ctx, path, file, p.Size, p.SHA256); err != nil {
		return fmt.Errorf("%w: it is not complete, or not of the same restore as %s", err, recordFile)
	}

	return nil
}

// renameIfExists renames a file or directory, if it exists.
func renameIfExists(from, to string) error {
	err := os.Rename(from, to)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
