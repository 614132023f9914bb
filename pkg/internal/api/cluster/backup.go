package cluster

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/callgroup"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/etcdadmin"
	"github.com/carillonhq/carillon/pkg/task"
)

const backupAbout = "The answer is a snapshot of etcd, compressed with zstd, after skippable frames of zstd. The last of these frames contains the manifest, " +
	"with the sizes and the SHA-256 of the snapshot; the others are empty, and show that the node is alive while it makes the backup. " +
	"If that fails, the last frame contains a problem, and no data follow. `carillon backup create` verifies and stores the answer. " +
	"It contains everything that etcd does, also hashes of tokens. The request needs a token without a scope, and writes an audit record with the SHA-256."

// Backups are what the handlers of backups need.
type Backups struct {
	// Dial connects to one endpoint of an etcd that is not embedded, for a snapshot.
	Dial etcdadmin.Dialer
	// File is where a backup is stored until it has been sent, in the data directory. Empty means that the node makes none.
	File string
	// Heartbeat is how often a node that makes a backup shows that it is alive. 0 means 5 s.
	Heartbeat time.Duration

	running atomic.Bool // a backup is made or sent
}

// backupHeartbeat is the default of Backups.Heartbeat. Proxies usually cut off answers that are silent for 60 s.
const backupHeartbeat = 5 * time.Second

// serveBackup serves a backup: of this node, or of the one whose member disturbs the cluster the least.
func (h *Handlers) serveBackup(c *httpapi.Call) (httpapi.Answer, error) {
	// A node whose key was stolen could name any caller.
	forwarded := httpapi.CallerOf(c.Context()).Forwarder != ""
	if forwarded {
		if err := c.Rights().RequireForwarded(access.Need{Verb: access.Backup, Kind: access.Cluster}); err != nil {
			return httpapi.Answer{}, err
		}
	}

	if c.Request.Method == http.MethodHead {
		c.Writer.Header().Set("Content-Type", httpapi.TypeZstd)
		return httpapi.Answer{Status: http.StatusOK}, nil
	}

	if !forwarded {
		holder, err := h.Store.SnapshotHolder(c.Context(), h.Node)
		if err != nil {
			return httpapi.Answer{}, err
		}

		if holder != nil {
			return httpapi.Answer{}, h.forwardBackup(c, *holder)
		}
	}

	return httpapi.Answer{}, h.makeBackup(c)
}

// forwardBackup has another node make the backup. That node records its SHA-256.
func (h *Handlers) forwardBackup(c *httpapi.Call, holder task.Node) error {
	if err := h.recordBackup(c, ""); err != nil {
		return err
	}

	if err := h.Peers.Forward(c, holder, nil, "v1", "cluster", "backup"); err != nil {
		f := httpapi.Fail(http.StatusServiceUnavailable, client.CodeNodeAway, "node %s, whose etcd member should make the backup, is unavailable: %s", holder.Name, httpapi.Shorten(err.Error()))
		return f.Because(err)
	}

	return nil
}

// makeBackup makes a backup on this node and sends it.
func (h *Handlers) makeBackup(c *httpapi.Call) error {
	b := &h.Backups
	if b.File == "" {
		return httpapi.Fail(http.StatusNotImplemented, client.CodeNotSupported, "node %s makes no backups", h.Node)
	}

	if !b.running.CompareAndSwap(false, true) {
		return httpapi.Fail(http.StatusConflict, client.CodeConflict, "node %s is already making or sending a backup", h.Node).WithHint("wait until it ends")
	}
	defer b.running.Store(false)

	at := h.Now()
	snapshot, err := h.Store.OpenSnapshot(c.Context(), b.Dial)
	if err != nil {
		return backupFailure(err)
	}
	defer snapshot.Close()

	// The snapshot and the compressed snapshot are there at the same time, and the latter may be as large.
	if err := backup.RequireSpace(filepath.Dir(b.File), 2*snapshot.DBSize); err != nil {
		return backupFailure(err)
	}

	// From here on, errors are sent as a frame.
	out := backupWriter{c.Writer}
	c.Writer.Header().Set("Content-Type", httpapi.TypeZstd)
	if err := out.writeFrame(nil); err != nil {
		return err // the caller has gone
	}

	packed, err := h.packBackup(c.Context(), snapshot, out, backup.Origin{
		Time: at, Source: backup.SourceAPI, Prefix: strings.TrimSuffix(h.Store.Keys().Root(), "/"), Carillon: h.Version, AtLeast: snapshot.AtLeast,
	})
	if packed != nil {
		defer func() {
			if err := os.Remove(packed.Path); err != nil {
				h.Log.Warn("cannot remove a backup that was sent", zap.Error(err))
			}
		}()
	}

	if err == nil {
		err = h.recordBackup(c, packed.Manifest.SHA256)
	}
	if err == nil {
		err = out.send(packed)
	}

	if err != nil && c.Context().Err() == nil {
		f := backupFailure(err)
		h.Problems.LogFailure(c.Request, f)
		if frame, err := backup.EncodeProblem(f.Problem); err == nil {
			_ = out.writeFrame(frame) // the caller may have gone
		}
	}
	if err != nil {
		panic(http.ErrAbortHandler) // the caller must not take the answer for complete
	}

	h.Log.Info("backup sent", zap.String("id", packed.Manifest.ID), zap.Int64("rev", packed.Manifest.Revision), zap.Int64("bytes", packed.Manifest.PackedSize),
		zap.Duration("took", h.Now().Sub(at)), zap.Stringer("who", c.Actor()))

	return nil
}

// packBackup packs a snapshot, and shows the caller meanwhile that the node is alive. If the caller goes away, packing ends.
func (h *Handlers) packBackup(ctx context.Context, snapshot *etcdadmin.Snapshot, out backupWriter, origin backup.Origin) (packed *backup.Packed, err error) {
	every := h.Backups.Heartbeat
	if every == 0 {
		every = backupHeartbeat
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	done := make(chan struct{})
	callgroup.Run(
		func() {
			defer close(done)
			packed, err = backup.Pack(ctx, snapshot, h.Backups.File, origin)
			err = errors.Join(err, snapshot.Close()) // ends the transaction in the member before anything is sent
		},
		func() {
			tick := time.NewTicker(every)
			defer tick.Stop()

			for {
				select {
				case <-done:
					return
				case <-tick.C:
					if err := out.writeFrame(nil); err != nil {
						cancel()
					}
				}
			}
		},
	)

	return packed, err
}

// recordBackup writes the audit record of a backup before anything of it is sent. sum is the SHA-256 of its snapshot, if it is known.
// A full etcd, which a user may want to back up, stores no record, so the node keeps it until there is space.
func (h *Handlers) recordBackup(c *httpapi.Call, sum string) error {
	// Making the backup has taken a while.
	if err := h.CheckStream(c.Context(), c.Request); err != nil {
		return err
	}

	o := task.AuditObject{Kind: "backup", Name: sum}
	if err := h.Writable(); err != nil {
		return httpapi.Fail(http.StatusServiceUnavailable, client.CodeRestored, "backups are recorded, and nothing can be written: %s", err)
	}

	ctx, cancel := context.WithTimeout(c.Context(), httpapi.RequestTimeout)
	defer cancel()

	err := c.Rights().RecordRead(ctx, h.Store, o)
	if store.NoSpace(err) {
		o.Change = "read"
		c.Rights().RecordLate([]task.AuditObject{o}, task.AuditRead)
		return nil
	}

	return err
}

// backupFailure converts an error of a backup to a failure.
func backupFailure(err error) *httpapi.Failure {
	switch {
	case errors.Is(err, backup.ErrNoDisk):
		return httpapi.Fail(http.StatusInsufficientStorage, client.CodeNoDisk, "%s", err)
	case errors.Is(err, etcdadmin.ErrNeedsRoot):
		return httpapi.Fail(http.StatusNotImplemented, client.CodeNotSupported, "%s", err).
			WithHint("carillon backup create --etcd URL --etcd-user root").Because(err)
	}

	return httpapi.AsFailure(err)
}

// backupWriter writes the answer.
type backupWriter struct{ http.ResponseWriter }

// writeFrame writes a frame at once. nil is padding.
func (w backupWriter) writeFrame(frame []byte) error {
	if frame == nil {
		frame = backup.Padding()
	}

	if _, err := w.Write(frame); err != nil {
		return err
	}

	return http.NewResponseController(w.ResponseWriter).Flush()
}

// send sends a backup.
func (w backupWriter) send(p *backup.Packed) error {
	frame, err := backup.EncodeFrame(p.Manifest)
	if err != nil {
		return err
	}

	f, err := os.Open(p.Path)
	if err != nil {
		return err
	}

	defer f.Close()

	if err := w.writeFrame(frame); err != nil {
		return err
	}

	// http.ResponseWriter may read from a file by itself, in one call that the deadline of a write would end.
	_, err = io.Copy(struct{ io.Writer }{w}, f)

	return err
}
