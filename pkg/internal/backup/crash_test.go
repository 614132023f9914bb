package backup_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// The environment of a process of this test that stores a backup.
const (
	storePacked = "TEST_STORE_PACKED" // the file with the compressed snapshot
	storeFrame  = "TEST_STORE_FRAME"  // the file with the manifest
	storeDir    = "TEST_STORE_DIR"
	storeUntil  = "TEST_STORE_UNTIL" // "all", or how many reads succeed before the process kills itself
)

// TestMain stores a backup if the environment says so.
func TestMain(m *testing.M) {
	if os.Getenv(storeDir) == "" {
		os.Exit(m.Run())
	}

	must := func(err error) {
		if err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
	}

	frame, err := os.Open(os.Getenv(storeFrame))
	must(err)
	manifest, _, err := backup.ReadFrame(frame)
	must(err)
	packed, err := os.Open(os.Getenv(storePacked))
	must(err)

	_, err = backup.Store(context.Background(), os.Getenv(storeDir), manifest, &suicidalReader{packed, os.Getenv(storeUntil)})
	must(err)
	os.Exit(0)
}

// suicidalReader kills its process after some reads. At the end it says so on stdout.
type suicidalReader struct {
	r     io.Reader
	until string
}

func (s *suicidalReader) Read(p []byte) (int, error) {
	if s.until == "" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	if s.until != "all" {
		s.until = s.until[1:] // one letter for each read
	}

	n, err := s.r.Read(p)
	if errors.Is(err, io.EOF) {
		os.Stdout.WriteString("end\n")
	}

	return n, err
}

// TestStore_IsKilled kills the process that stores a backup: at points while it receives it, and at random moments afterwards, while it
// syncs, reads back, renames and writes the manifest. Whatever is listed as complete then is good.
//
// Verifies: G67
func TestStore_IsKilled(t *testing.T) {
	etcd := kvtest.Start(t)
	keys := fill(t, etcd, 10)
	for range 4 {
		put(t, etcd, keys.Root()+"versions/default/big/"+strings.Repeat("x", rand.IntN(100)), randomText(1<<20))
	}
	p := pack(t, snapshot(t, etcd), noon)

	frame, err := backup.EncodeFrame(p.Manifest)
	ok(t, err)
	frameFile := filepath.Join(t.TempDir(), "frame")
	ok(t, os.WriteFile(frameFile, frame, 0o600))

	reads := int(p.Manifest.PackedSize / (32 << 10)) // io.Copy reads 32 KiB at a time
	completed := 0

	for point := range 24 {
		dir := t.TempDir()
		until := "all"
		if point < 12 {
			until = strings.Repeat(".", reads*point/12)
		}

		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), storePacked+"="+p.Path, storeFrame+"="+frameFile, storeDir+"="+dir, storeUntil+"="+until)
		out, err := cmd.StdoutPipe()
		ok(t, err)
		ok(t, cmd.Start())

		if until == "all" {
			_, err := out.Read(make([]byte, 8)) // the process has read everything
			ok(t, err)
			time.Sleep(rand.N(12 * time.Millisecond))
			_ = cmd.Process.Kill() // it may have ended
		}
		err = cmd.Wait()
		if err != nil && !strings.Contains(err.Error(), "killed") {
			t.Fatal(err)
		}

		list, err := backup.List(dir)
		ok(t, err)
		for _, l := range list {
			if l.Problem != "" {
				continue
			}

			completed++
			s, err := backup.Open(filepath.Join(dir, l.Name))
			ok(t, err)
			ok(t, s.Unpack(t.Context(), io.Discard))
		}
		if len(list) == 0 && until == "all" {
			t.Errorf("point %d: nothing is listed", point)
		}

		// What the process has left does not prevent the next backup.
		if len(list) == 0 || list[0].Manifest == nil {
			_ = os.Remove(filepath.Join(dir, p.Manifest.ID+".db.zst")) // without a manifest
			ok(t, stored(t, dir, p).Unpack(t.Context(), io.Discard))
		}
	}
	t.Logf("%d of 24 were completed", completed)
}

func randomText(size int) string {
	text := make([]byte, size)
	for i := range text {
		text[i] = byte(rand.Uint32())
	}

	return string(text)
}

// TestStore_OnAFullDisk stores and packs on a file system that is too small.
func TestStore_OnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("cannot mount a file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })

	etcd := kvtest.Start(t)
	keys := fill(t, etcd, 3)
	for i := range 3 {
		put(t, etcd, keys.Root()+"versions/default/big/"+strings.Repeat("x", i+1), randomText(1<<20))
	}
	raw := snapshot(t, etcd)
	p := pack(t, raw, noon)

	f, err := os.Open(p.Path)
	ok(t, err)
	defer f.Close()

	_, storeErr := backup.Store(t.Context(), dir, p.Manifest, f)
	_, packErr := backup.Pack(t.Context(), strings.NewReader(string(raw)), filepath.Join(dir, "backup.tmp"),
		backup.Origin{Time: noon, Source: backup.SourceAPI, Prefix: prefix, Carillon: "v1"})
	unpackErr := stored(t, t.TempDir(), p).UnpackFile(t.Context(), filepath.Join(dir, "db"))

	for what, err := range map[string]error{"store": storeErr, "pack": packErr, "unpack": unpackErr} {
		if !errors.Is(err, unix.ENOSPC) || errors.Is(err, backup.ErrDamaged) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}

	if err := backup.RequireSpace(dir, 2<<20); !errors.Is(err, backup.ErrNoDisk) {
		t.Error(err)
	}
	if err := backup.RequireSpace(dir, 1<<19); err != nil {
		t.Error(err)
	}
}
