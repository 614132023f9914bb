// Package bootstraptoken creates a cluster together with its first token.
//
// Guaranteed: the transaction that creates the cluster's record also creates the token, and nothing else ever does, so a
// cluster that exists and has no token gets none. Neither a lost answer nor a crash leaves the hash of a token in etcd
// whose secret is lost. If several nodes create the cluster at once, only the one whose token the cluster has keeps a
// file.
//
// The package writes the cluster's record, the first records below access/, and the file token in the data directory.
// After an error the caller tries again, and the next try uses the secret that is in the file.
//
// The package is separate from package daemon so that its tests can lose answers of etcd, or stop before a
// transaction, without starting a node.
package bootstraptoken

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/filetrust"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// bindingName is the name of the first binding. It gives the role admin to the service that the first token acts as.
const bindingName = "bootstrap"

// File is the file with the secret of the first token, on the node that creates the cluster.
type File struct {
	path  string
	store *store.Store
	log   *zap.Logger
}

// NewFile returns the file in a data directory. It reads and writes nothing.
func NewFile(dataDir string, s *store.Store, log *zap.Logger) *File {
	return &File{path: Path(dataDir), store: s, log: log}
}

// Path returns the path of the file in a data directory.
func Path(dataDir string) string { return filepath.Join(dataDir, "token") }

// CreateCluster creates the cluster with its first access records, unless found says that it exists, and returns its
// record. created reports whether this node has created it. The file of the token is left only on the node whose token the
// cluster has.
func (f *File) CreateCluster(ctx context.Context, found bool, shards int, openDefault bool, now time.Time) (c task.Cluster, created bool, err error) {
	var first store.FirstAccess
	if !found {
		if first, err = f.firstAccess(openDefault, now); err != nil {
			return c, false, err
		}
	}

	c, created, err = f.store.Bootstrap(ctx, shards, now, first)
	if err != nil {
		return c, created, err
	}

	return c, created, f.removeUnknown(ctx)
}

// firstAccess returns the access records with which a new cluster begins: the token, the binding that makes it an
// admin, and the namespace default. It writes the secret to disk before the records can reach etcd, and reuses a secret
// that is on disk: an earlier try may have written its hash to etcd, or may yet do so. So neither a lost answer nor a
// crash can leave a hash in etcd whose secret is lost.
func (f *File) firstAccess(openDefault bool, now time.Time) (first store.FirstAccess, err error) {
	secret, token := authority.NewSecret()

	kept, id, hash, err := f.readFile()
	if err != nil {
		return first, err
	}
	if id != "" {
		secret, token.ID, token.Hash = kept, id, hash
	}

	if err := datadir.WriteSynced(f.path, []byte(secret+"\n"), 0o600); err != nil {
		return first, err
	}

	by := task.NewActor(task.CreatedByCarillon) // no caller asked for it
	subject := access.KindService + ":" + bindingName

	token.Subject, token.Reason, token.CreatedAt, token.CreatedBy = subject, "created with the cluster", task.At(now), by
	first.Tokens = []record.Token{token}
	first.Bindings = []task.Binding{{
		Name: bindingName, Role: access.RoleAdmin, RoleUID: access.BuiltInUID, Subjects: []string{subject}, Cluster: true,
		Reason: "created with the cluster", CreatedAt: task.At(now), CreatedBy: by,
	}}

	ns := task.Namespace{Name: "default"}
	if openDefault {
		ns = store.OpenNamespace(ns.Name)
	}

	ns.CreatedAt, ns.CreatedBy, ns.UpdatedAt, ns.UpdatedBy = task.At(now), by, task.At(now), by
	first.Namespaces = []task.Namespace{ns}

	return first, nil
}

// readFile returns the secret in the file, with the id and the hash of its token. They are empty if there is no file, or
// if its content is not the secret of a token.
func (f *File) readFile() (secret, id, hash string, err error) {
	content, err := filetrust.ReadSecret(f.path, uint32(os.Geteuid()))
	if errors.Is(err, os.ErrNotExist) {
		return "", "", "", nil
	}
	if err != nil {
		return "", "", "", fmt.Errorf("admin token: %w", err)
	}

	secret = strings.TrimSpace(string(content))

	id, sum, ok := authority.ParseSecret(secret)
	if !ok {
		return "", "", "", nil
	}

	return secret, id, hex.EncodeToString(sum[:]), nil
}

// removeUnknown removes the file from the data directory if the cluster does not have its token. This happens if
// another node created the cluster at the same time, and after the token was deleted.
func (f *File) removeUnknown(ctx context.Context) error {
	_, id, hash, err := f.readFile()
	if err != nil || id == "" {
		return err
	}

	known, err := f.store.Token(ctx, id)
	switch {
	case err == nil && known.Hash == hash:
		return nil
	case err == nil || errors.Is(err, task.ErrNotFound):
		f.log.Warn("removed an admin token that the cluster does not know: it was deleted, or another node created the cluster", zap.String("file", f.path))
		return os.Remove(f.path)
	}

	return err
}
