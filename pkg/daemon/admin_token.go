package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/daemon/datadir"
	"github.com/carillonhq/carillon/pkg/filetrust"
	"github.com/carillonhq/carillon/pkg/internal/api"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// adminToken creates the cluster's first token. The node that creates the cluster stores the token's secret in a file.
type adminToken struct {
	path  string
	store *store.Store
	env   Environment
	log   *zap.Logger
}

// tokenPath returns the path of the file with the admin token.
func (c *Config) tokenPath() string { return filepath.Join(c.DataDir, "token") }

// ensureToken creates the admin token if the cluster has none. It writes the secret to
// disk before it writes the hash to etcd, and reuses a secret that is on disk. So neither a lost
// answer nor a crash can leave a hash in etcd whose secret is lost.
func (a *adminToken) ensureToken(ctx context.Context) error {
	has, err := a.store.HasTokens(ctx)
	if err != nil {
		return err
	}
	if has {
		return a.removeUnknown(ctx)
	}

	secret, id, record := api.NewToken()
	kept, err := filetrust.ReadSecret(a.path, uint32(os.Geteuid()))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("admin token: %w", err)
	}

	if err == nil {
		// Reuse a secret from an earlier try. If the file contains no token, it is replaced.
		if keptID, keptRecord, ok := api.TokenOf(strings.TrimSpace(string(kept))); ok {
			secret, id, record = strings.TrimSpace(string(kept)), keptID, keptRecord
		}
	}

	record.Who, record.CreatedAt = "admin", task.At(a.env.Now())

	if err := datadir.WriteSynced(a.path, []byte(secret+"\n"), 0o600); err != nil {
		return err
	}

	err = a.store.CreateFirstToken(ctx, id, record)
	if errors.Is(err, task.ErrExists) {
		// Another node has created the first token since the check above.
		return a.removeUnknown(ctx)
	}

	if err == nil {
		a.log.Info("created the admin token", zap.String("file", a.path))
	}

	return err
}

// removeUnknown removes the token from the data directory if the cluster has no such
// token. This happens if another node created the first one at the same time.
func (a *adminToken) removeUnknown(ctx context.Context) error {
	kept, err := filetrust.ReadSecret(a.path, uint32(os.Geteuid()))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("admin token: %w", err)
	}

	id, record, ok := api.TokenOf(strings.TrimSpace(string(kept)))
	if !ok {
		return nil // the file is not a token
	}

	known, err := a.store.Token(ctx, id)
	switch {
	case err == nil && known.Hash == record.Hash:
		return nil
	case err == nil || errors.Is(err, task.ErrNotFound):
		a.log.Warn("removed an admin token that the cluster does not know; another node created one", zap.String("file", a.path))
		return os.Remove(a.path)
	}

	return err
}
