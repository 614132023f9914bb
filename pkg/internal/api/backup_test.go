package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/internal/statement"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/task"
)

// newBackupWorld returns a world in an etcd whose node makes backups.
func newBackupWorld(t *testing.T, etcd *kv.Client) *world {
	t.Helper()
	w := newWorldOn(t, etcd)
	w.backupFile = filepath.Join(t.TempDir(), "backup.tmp")
	w.url = w.serve("node-a")
	w.Client = w.client(w.url)

	return w
}

// requireNoFile fails unless the node has removed its file, and makes backups again.
func (w *world) requireNoFile() {
	w.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		left, err := os.ReadDir(filepath.Dir(w.backupFile))
		must(w.t, err)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("left: %v", left)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// store reads a backup and stores it in a directory.
func storeBackup(t *testing.T, r io.Reader, dir string) (*backup.Stored, error) {
	t.Helper()
	m, _, err := backup.ReadFrame(r)
	if err != nil {
		return nil, err
	}

	return backup.Store(t.Context(), dir, m, r)
}

func TestBackup_HasEverythingAndIsRecorded(t *testing.T) {
	t.Parallel()
	w := newBackupWorld(t, kvtest.Start(t))
	for i := range 20 {
		w.create(fmt.Sprint("task-", i), "@daily")
	}
	present := w.revision()

	stream, err := w.Cluster.Backup(t.Context())
	must(t, err)
	defer stream.Close()

	s, err := storeBackup(t, stream, t.TempDir())
	must(t, err)
	m := s.Manifest
	if m.Revision < present || m.Tasks() != 20 || m.Cluster != w.cluster.ID || m.Source != backup.SourceAPI || m.Carillon != "1.2.3" {
		t.Errorf("%+v", m)
	}

	d, err := s.OpenUnpacked(t.Context(), t.TempDir())
	must(t, err)
	defer d.Close()

	tasks := 0
	must(t, d.EachTask(t.Context(), m.Prefix, "", func(task.Task) error { tasks++; return nil }, func(ns, name string, err error) error { return err }))
	if tasks != 20 {
		t.Errorf("%d tasks", tasks)
	}

	var newest task.AuditRecord
	for r, err := range w.AuditLog.List(t.Context(), client.AuditLogOptions{}) {
		must(t, err)
		if r.Operation == "backup-cluster" {
			newest = r
		}
	}
	if newest.Outcome != task.AuditRead || newest.Subject != "user:ann" ||
		len(newest.Objects) != 1 || newest.Objects[0].Kind != "backup" || newest.Objects[0].Name != m.SHA256 {
		t.Errorf("%+v", newest)
	}
	w.requireNoFile()
}

func TestBackup_NeedsATokenWithoutAScope(t *testing.T) {
	t.Parallel()
	w := newBackupWorld(t, kvtest.Start(t))
	w.bind("service:backup", "backup")
	w.bind("service:other", "auditor")

	scoped := func(tok *task.Token) { tok.Scope = &task.TokenScope{Role: "admin", RoleUID: "builtin"} }
	session := func(tok *task.Token) {
		tok.Kind, tok.Until = task.TokenKindSession, task.At(w.clock.now().Add(time.Hour))
	}

	for name, test := range map[string]struct {
		token  string
		status int
	}{
		"role backup":             {w.token("service:backup"), http.StatusOK},
		"role backup, scoped":     {w.token("service:backup", scoped), http.StatusForbidden},
		"role admin, scoped":      {w.token("user:ann", scoped), http.StatusForbidden},
		"role admin, session":     {w.token("user:ann", session), http.StatusForbidden},
		"role auditor":            {w.token("service:other"), http.StatusForbidden},
		"role admin, not limited": {w.token("user:ann"), http.StatusOK},
	} {
		wantStatus(t, name, w.as(test.token, "GET", "/v1/cluster/backup", ""), test.status, "")
	}

	// The role gives nothing else.
	wantStatus(t, "the status", w.as(w.token("service:backup"), "GET", "/v1/cluster", ""), http.StatusForbidden, "")
}

func TestBackup_OneAtATime(t *testing.T) {
	t.Parallel()
	w := newBackupWorld(t, kvtest.Start(t))
	w.fillEtcd(20 << 20) // more than the buffers of a connection

	first, err := w.Cluster.Backup(t.Context())
	must(t, err)

	// The node sends it, and its receiver does not read.
	if _, err := w.Cluster.Backup(t.Context()); !errors.Is(err, task.ErrConflict) {
		t.Errorf("the second: %v", err)
	}

	// A receiver that goes away frees the slot, and the file is removed.
	must(t, first.Close())
	w.requireNoFile()

	again := w.backupWhenFree(t.Context())
	defer again.Close()

	_, err = storeBackup(t, again, t.TempDir())
	must(t, err)
	w.requireNoFile()
}

// backupWhenFree requests a backup, again while the node still makes another one.
func (w *world) backupWhenFree(ctx context.Context) io.ReadCloser {
	w.t.Helper()
	for {
		stream, err := w.Cluster.Backup(ctx)
		if !errors.Is(err, task.ErrConflict) {
			must(w.t, err)
			return stream
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// fillEtcd puts data that cannot be compressed.
func (w *world) fillEtcd(bytes int) {
	w.t.Helper()
	for i := range bytes / (1 << 20) {
		_, err := w.etcd.Put(w.t.Context(), fmt.Sprint(w.store.Keys().Root(), "versions/default/big/", i), randomText(1<<20))
		must(w.t, err)
	}
}

func TestBackup_ReceiverThatGoesAwayWhileItIsMade(t *testing.T) {
	t.Parallel()
	w := newBackupWorld(t, kvtest.Start(t))
	w.fillEtcd(30 << 20)

	for i := range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		stream := w.backupWhenFree(ctx)
		time.Sleep(time.Duration(i) * 20 * time.Millisecond) // at different points
		cancel()
		_ = stream.Close()
	}

	s, err := storeBackup(t, w.backupWhenFree(t.Context()), t.TempDir())
	must(t, err)
	must(t, s.Unpack(t.Context(), io.Discard))
	w.requireNoFile()
}

func TestBackup_OfAFullEtcdIsRecordedLater(t *testing.T) {
	t.Parallel()
	etcd := kvtest.StartWithQuota(t, 8<<20).Client()
	w := newWorldOn(t, etcd)
	var late []task.AuditRecord
	w.lateAudit = func(r task.AuditRecord) { late = append(late, r) } // within the request
	w.backupFile = filepath.Join(t.TempDir(), "backup.tmp")
	w.Client = w.client(w.serve("node-a"))

	for {
		_, err := etcd.Put(t.Context(), fmt.Sprint(w.store.Keys().Root(), "versions/default/big/", time.Now().UnixNano()), strings.Repeat("x", 1<<20))
		if err != nil {
			break
		}
	}

	stream, err := w.Cluster.Backup(t.Context())
	must(t, err)
	defer stream.Close()

	s, err := storeBackup(t, stream, t.TempDir())
	must(t, err)
	must(t, s.Unpack(t.Context(), io.Discard))

	if len(late) != 1 || len(late[0].Objects) != 1 || late[0].Objects[0].Name != s.Manifest.SHA256 {
		t.Errorf("%+v", late)
	}
}

func TestBackup_NeedsSpaceOnTheNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=32k"); err != nil {
		t.Skipf("cannot mount a file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })

	w := newWorldOn(t, kvtest.Start(t))
	w.backupFile = filepath.Join(dir, "backup.tmp")
	w.url = w.serve("node-a")

	for range 2 { // the slot is free again
		r := w.do(request{method: "GET", path: "/v1/cluster/backup"})
		wantStatus(t, "no space", r, http.StatusInsufficientStorage, client.CodeNoDisk)
	}
	w.requireNoFile()
}

// A stolen key of a node must not open more than the access records say.
func TestBackup_ForwardedRequestsAreJudgedAgain(t *testing.T) {
	t.Parallel()
	w := newBackupWorld(t, kvtest.Start(t))
	w.bind("service:other", "auditor")

	for who, status := range map[string]int{"user:ann": http.StatusOK, "service:other": http.StatusForbidden} {
		const path = "/v1/cluster/backup"
		st := statement.Statement{From: "node-b", FromInstance: "i-node-b", To: "node-a", ToInstance: "i-node-a", Caller: statement.Caller{Who: who}}
		header := map[string]string{statement.Header: st.Sign(keyOf("node-b"), statement.Request{Method: "GET", Path: path}, w.clock.now())}
		wantStatus(t, who, w.do(request{method: "GET", path: path, header: header, noToken: true}), status, "")
	}

	all, err := w.etcd.Get(t.Context(), w.store.Keys().AuditRecords(), clientv3.WithPrefix())
	must(t, err)
	last := w.store.Keys().DecodeAudit(all.Kvs[len(all.Kvs)-1])
	if last.Outcome != task.AuditForwarded || last.Node != "node-b" {
		t.Errorf("%+v", last)
	}
}

// randomText returns text that can hardly be compressed.
func randomText(size int) string {
	text := make([]byte, size)
	for i := range text {
		text[i] = byte(rand.Uint32())
	}

	return string(text)
}
