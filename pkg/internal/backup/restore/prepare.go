package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/filetrust"
	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/embedded"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// The files in the work directory.
const (
	// PreparedFile is the database that replaces those of the members, in the format of a snapshot. recordFile describes it.
	PreparedFile = "prepared.db"
	recordFile   = "prepared.json"
	// unpackedFile is the snapshot, and privateDir the data directory of the private etcd. They exist only while a restore is prepared.
	unpackedFile = "unpacked.db"
	privateDir   = "etcd.private"
)

const (
	// minRevisionBump is by how much the revision exceeds the highest known one if the clock of the host is behind.
	minRevisionBump = 1_000_000_000
	// privateName and privateURL are the name and the URL of the only member of an etcd without peers, as package embedded starts it.
	privateName = "carillon"
	privateURL  = "unix://no-peers"
	// callTimeout limits a call to the private etcd. Some calls visit all keys.
	callTimeout = time.Hour
	// spaceFactor is how many times the size of the snapshot a restore needs in its work directory: first for the snapshot and the private
	// etcd, then for the private etcd and prepared.db, and for what the private etcd writes.
	spaceFactor = 3
)

// Source is the backup to restore, unpacked and verified.
type Source struct {
	Path   string    // the snapshot, in the work directory
	Time   time.Time // when it was made
	SHA256 string    // identifies it; empty for a snapshot without a manifest
}

// Prepared describes a prepared restore: the content of prepared.json.
type Prepared struct {
	// Token is the initial cluster token of all members. It is another one for each restore.
	Token string `json:"token"`
	// Cluster is the ID of the cluster, and Prefix that of its keys.
	Cluster string `json:"cluster"`
	Prefix  string `json:"prefix"`
	// Revision is that of etcd in prepared.db.
	Revision int64 `json:"revision"`
	// Embedded and Members are those of Options.
	Embedded bool              `json:"embedded"`
	Members  map[string]string `json:"members,omitempty"`
	// SHA256 and Size are those of prepared.db.
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	// Restored is what the cluster's record says about this restore.
	Restored task.Restored `json:"restored"`
	// EtcdUsers are the commands that make the users and roles of etcd again.
	EtcdUsers []string `json:"etcd_users,omitempty"`
}

// Unpack unpacks and verifies a backup into the work directory. It completes the options: without Until, everything until now may be lost.
// The caller must call Clean at the end.
func Unpack(ctx context.Context, stored *backup.Stored, o *Options) (s Source, err error) {
	info, err := os.Stat(stored.Path)
	if err != nil {
		return s, err
	}

	s, size := Source{Path: filepath.Join(o.Work, unpackedFile), Time: o.BackupTime}, info.Size()

	switch m := stored.Manifest; {
	case m != nil:
		s.Time, s.SHA256, size = m.Time.Time, m.SHA256, m.Size
	case s.Time.IsZero():
		return s, task.Invalid(task.CodeRequired, "backup-time", "is required for a snapshot without a manifest: say when it was made, such as "+
			"2026-11-28T02:00:00Z; if you do not know, take an earlier time")
	}

	switch {
	case o.SHA256 == "" || o.SHA256 == s.SHA256:
	case s.SHA256 == "":
		return s, task.Invalid(task.CodeBadValue, "sha256", "the snapshot has no manifest with a SHA-256: compare the file with sha256sum instead")
	default:
		return s, fmt.Errorf("the backup has the SHA-256 %s, not %s", s.SHA256, o.SHA256)
	}

	switch {
	case o.NothingLost:
		o.Until = s.Time
	case o.Until.IsZero():
		o.Until = o.Now
	}
	if err := o.checkTimes(s.Time); err != nil {
		return s, err
	}

	if err := o.checkWork(); err != nil {
		return s, err
	}
	if err := backup.RequireFree(o.Work, spaceFactor*size); err != nil {
		return s, err
	}
	if err := filetrust.MakePrivateDir(o.Work); err != nil {
		return s, fmt.Errorf("work directory: %w", err)
	}

	// An interrupted command may have left its files.
	if err := Clean(o.Work); err != nil {
		return s, err
	}
	if err := o.beginStep("unpack"); err != nil {
		return s, err
	}

	return s, stored.UnpackFile(ctx, s.Path)
}

// Clean removes the files from a work directory that exist only while a restore is prepared.
func Clean(work string) error { return removeFiles(work, unpackedFile, privateDir) }

// removeFiles removes files and directories in a directory. They may not exist.
func removeFiles(dir string, names ...string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, name)))
	}

	return errors.Join(errs...)
}

// preparation is a restore that is being prepared.
type preparation struct {
	*Options
	source  Source
	content *Content

	server *embedded.Server // the private etcd
	client *kv.Client
	store  *store.Store
}

// Prepare makes prepared.db and prepared.json in the work directory, from a backup that was unpacked there and then read. It can be
// repeated, also after an interruption: each time it makes another restore, and members of different ones cannot form a cluster.
func Prepare(ctx context.Context, source Source, content *Content, o *Options) (_ *Prepared, err error) {
	keys, err := record.NewKeys(o.Prefix)
	if err != nil {
		return nil, err
	}
	if err := content.check(o); err != nil {
		return nil, err
	}

	// Remove the results of a former restore first. Otherwise an interruption could leave its record beside another database.
	if err := removeFiles(o.Work, recordFile, PreparedFile); err != nil {
		return nil, err
	}

	p := &preparation{Options: o, source: source, content: content}
	defer func() { err = errors.Join(err, p.close(), removeFiles(o.Work, privateDir)) }()

	if err := p.startPrivate(ctx, keys); err != nil {
		return nil, err
	}

	c, err := Rewrite(ctx, p.client, p.store, source, content, o)
	if err != nil {
		return nil, err
	}
	if p.inspect != nil {
		if err := p.inspect(ctx, p.store, c); err != nil {
			return nil, err
		}
	}

	return p.writeResult(ctx, c)
}

// startPrivate restores the snapshot into a private etcd, and starts that. Its revision is the time of the restore.
func (p *preparation) startPrivate(ctx context.Context, keys record.Keys) (err error) {
	if err := p.beginStep("copy the snapshot"); err != nil {
		return err
	}

	dir := filepath.Join(p.Work, privateDir)
	if err := removeFiles(p.Work, privateDir); err != nil {
		return err
	}

	bump := revisionBump(p.Now, p.content.Revision, p.Seen.Revision)
	// Unpack has verified the content.
	err = snapshot.NewV3(etcdLogger(p.Logger)).Restore(snapshot.RestoreConfig{
		SnapshotPath: p.source.Path, SkipHashCheck: true, OutputDataDir: dir,
		Name: privateName, PeerURLs: []string{privateURL}, InitialCluster: privateName + "=" + privateURL, InitialClusterToken: "private",
		RevisionBump: uint64(bump), MarkCompacted: true,
	})
	if err != nil {
		return fmt.Errorf("restore the snapshot: %w", err)
	}

	// The copy is complete, and what follows needs the space.
	if err := os.Remove(p.source.Path); err != nil {
		return err
	}
	if err := removeAccess(filepath.Join(dir, "member", "snap", "db")); err != nil {
		return err
	}

	if err := p.beginStep("start a private etcd"); err != nil {
		return err
	}

	// Without a quota: a database that is larger than the default quota must start, and a larger quota reserves address space. The only
	// member needs no long election.
	p.server, err = embedded.Start(ctx, embedded.Config{
		Dir: dir, Name: privateName, QuotaBytes: -1, Tick: 10 * time.Millisecond, Election: 100 * time.Millisecond, Logger: p.Logger,
	})
	if err != nil {
		return err
	}

	// The client of the server itself has short deadlines.
	if p.client, err = kv.Dial(ctx, kv.Config{Endpoints: []string{p.server.Endpoint()}, CallTimeout: callTimeout, Logger: p.Logger}); err != nil {
		return err
	}

	p.store = store.New(p.client, kv.Direct(p.client), keys)

	return nil
}

// etcdLogger returns the logger for the restore of a snapshot, which otherwise logs each of its steps.
func etcdLogger(log *zap.Logger) *zap.Logger {
	return log.WithOptions(zap.IncreaseLevel(zap.WarnLevel))
}

// revisionBump returns by how much the restore raises the revision of a snapshot: to the time of the restore in microseconds, so that
// the revision rises with every restore, whatever its snapshot. If the clock is behind what the snapshot contains, or what this host
// has seen, the revision becomes higher than these.
func revisionBump(now time.Time, revision, seen int64) int64 {
	high := max(revision, seen)
	if at := now.UnixMicro(); at > high {
		return at - revision
	}

	return high + minRevisionBump - revision
}

// close stops the private etcd.
func (p *preparation) close() error {
	var errs []error
	if p.client != nil {
		errs = append(errs, p.client.Close())
	}
	if p.server != nil {
		errs = append(errs, p.server.Close())
	}
	p.client, p.server = nil, nil

	return errors.Join(errs...)
}

// writeResult stops the private etcd, and writes prepared.db and then prepared.json.
func (p *preparation) writeResult(ctx context.Context, c task.Cluster) (*Prepared, error) {
	if err := p.beginStep("compact"); err != nil {
		return nil, err
	}

	revision, err := p.compact(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.close(); err != nil {
		return nil, fmt.Errorf("stop the private etcd: %w", err)
	}

	if err := p.beginStep("write " + PreparedFile); err != nil {
		return nil, err
	}

	sum, size, err := writeCompact(filepath.Join(p.Work, PreparedFile), filepath.Join(p.Work, privateDir, "member", "snap", "db"), p.content.facts)
	if err != nil {
		return nil, err
	}

	restored := *c.LastRestored()
	result := &Prepared{
		Token: fmt.Sprintf("%s-%d-%s", c.ID, c.Epoch, restored.ID), Cluster: c.ID, Prefix: p.Prefix, Revision: revision,
		Embedded: p.Embedded, Members: p.Members, SHA256: sum, Size: size, Restored: restored, EtcdUsers: p.content.facts.userCommands(),
	}

	if err := p.beginStep("write " + recordFile); err != nil {
		return nil, err
	}

	encoded, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return nil, err
	}

	return result, datadir.WriteSynced(filepath.Join(p.Work, recordFile), append(encoded, '\n'), 0o600)
}
