package spool

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/carillonhq/carillon/pkg/task"
)

// spoolWith returns a spool with one output that has ended.
func spoolWith(t *testing.T, text []byte, wants task.Output, cfg Config) (s *Spool, path string) {
	t.Helper()

	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}

	s = New(cfg)
	path, err := s.Path("default", "job", "r1", 1)
	if err != nil {
		t.Fatal(err)
	}

	o := s.NewOutput(path, wants)
	o.addOutput(text, mergedStream)
	o.Close()

	return s, path
}

// lines returns text that can be compressed well and that is different in all parts.
func lines(size int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < size; i++ {
		b.WriteString(strings.Repeat(string(rune('a'+i%26)), i%70) + "\n")
	}
	return b.Bytes()[:size]
}

// A compressed output has the same contents from every position, also with another zstd decoder.
func TestPack_ReadsAsItWas(t *testing.T) {
	for _, size := range []int{blockSize + 1, packFrame - 1, packFrame, packFrame + 1, 5*packFrame + 4711} {
		text := lines(size)
		s, path := spoolWith(t, text, task.Output{}, Config{})
		was, _ := os.Stat(path)

		if err := s.packOutput(t.Context(), path); err != nil {
			t.Fatal(err)
		}

		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("%d bytes: what it was is still there: %v", size, err)
		}

		is, err := os.Stat(packedPath(path))
		if err != nil || !is.ModTime().Equal(was.ModTime()) || is.Size() > was.Size()/2 {
			t.Fatalf("%d bytes: %v, %v", size, is, err)
		}

		if used := s.used.Load(); used != onDisk(is.Size()) {
			t.Errorf("%d bytes: %d are counted as used", size, used)
		}

		if readOutput(t, s, "r1") != string(text) {
			t.Errorf("%d bytes: it reads otherwise", size)
		}

		raw, _ := os.ReadFile(packedPath(path))
		dec, _ := zstd.NewReader(bytes.NewReader(raw))
		if got, err := io.ReadAll(dec); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%d bytes: another zstd reads %d, %v", size, len(got), err)
		}

		dec.Close()
		f, err := s.Open("default", "job", "r1", 1)
		if err != nil {
			t.Fatal(err)
		}

		rapid.Check(t, func(t *rapid.T) {
			at := rapid.IntRange(0, size+10).Draw(t, "at")
			if _, err := f.Seek(int64(at), io.SeekStart); err != nil {
				t.Fatal(err)
			}

			b := make([]byte, rapid.IntRange(1, 1000).Draw(t, "bytes"))
			n, _ := io.ReadFull(f, b)
			if want := text[min(at, size):min(at+len(b), size)]; !bytes.Equal(b[:n], want) {
				t.Fatalf("at %d: %d bytes, want %d", at, n, len(want))
			}
		})

		f.Close()

		if got, err := s.Attempts("default", "job", "r1"); err != nil || len(got) != 1 {
			t.Errorf("attempts %v, %v", got, err)
		}
	}
}

// A file that is truncated anywhere is rejected, and reading it takes no more memory than its size.
func TestPack_HalfAFileIsNotTakenForWhole(t *testing.T) {
	s, path := spoolWith(t, lines(2*packFrame+5), task.Output{}, Config{})
	if err := s.packOutput(t.Context(), path); err != nil {
		t.Fatal(err)
	}

	whole, _ := os.ReadFile(packedPath(path))
	read := func(b []byte) error {
		if err := os.WriteFile(packedPath(path), b, 0o600); err != nil {
			t.Fatal(err)
		}

		f, err := s.Open("default", "job", "r1", 1)
		if err != nil {
			return err
		}

		defer f.Close()

		_, err = io.Copy(io.Discard, f)

		return err
	}

	for cut := 0; cut < len(whole); cut++ {
		if cut > 10 && cut < len(whole)-60 {
			cut += len(whole) / 50
		}

		cut = min(cut, len(whole)-1)
		if err := read(whole[:cut]); !errors.Is(err, errDamaged) {
			t.Fatalf("%d of %d bytes: %v", cut, len(whole), err)
		}
	}

	for range 100 { // reading ends, whatever the result is
		b := bytes.Clone(whole)
		b[rand.IntN(len(b))] ^= byte(1 + rand.IntN(255))
		_ = read(b)
	}

	if err := read(whole); err != nil {
		t.Fatal(err)
	}
}

// A daemon that died while it compressed leaves the original output. The next daemon compresses it again, and does
// not replace an output that an attempt has begun again meanwhile.
func TestPack_IsBegunAnewAfterACrash(t *testing.T) {
	text := lines(3 * packFrame)
	s, path := spoolWith(t, text, task.Output{}, Config{})
	if err := os.WriteFile(packedPath(path)+".tmp", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	if err := s.packOutput(ctx, path); !errors.Is(err, context.Canceled) || readOutput(t, s, "r1") != string(text) {
		t.Errorf("interrupted: %v", err)
	}

	again := New(s.cfg)
	ctx, cancel = context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- again.Run(ctx) }()
	eventually(t, "the output of a former daemon is compressed", func() bool { // the packer pauses four times as long as it works
		_, err := os.Stat(path)
		return errors.Is(err, os.ErrNotExist)
	})

	cancel()

	if err := <-ended; err != nil || readOutput(t, again, "r1") != string(text) {
		t.Errorf("it reads otherwise, %v", err)
	}

	files, _ := filepath.Glob(filepath.Dir(path) + "/*")
	if len(files) != 1 {
		t.Errorf("there are %v", files)
	}
}

func TestPack_LeavesAloneWhatItMayNotTouch(t *testing.T) {
	text := lines(2 * packFrame)
	s, _ := spoolWith(t, text, task.Output{Compress: new(bool)}, Config{})
	s.Sweep(t.Context(), time.Now())

	if len(s.packs) != 0 {
		t.Error("the output is to be compressed, although its task forbids that")
	}

	s, _ = spoolWith(t, text, task.Output{}, Config{Uncompressed: true})
	s.Sweep(t.Context(), time.Now())

	if len(s.packs) != 0 {
		t.Error("the output is to be compressed, although the node forbids that")
	}

	path, err := s.Path("default", "job", "r2", 1)
	must(t, err)
	o := s.NewOutput(path, task.Output{})
	defer o.Close()
	o.addOutput(text, mergedStream)

	if err := s.packOutput(t.Context(), path); err != nil || readOutput(t, s, "r2") != string(text) {
		t.Errorf("an attempt is writing: %v", err)
	}

	noise := make([]byte, 2*packFrame)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}

	s, path = spoolWith(t, noise, task.Output{}, Config{})
	if err := s.packOutput(t.Context(), path); err != nil || readOutput(t, s, "r1") != string(noise) {
		t.Error(err)
	}

	if files, _ := filepath.Glob(filepath.Dir(path) + "/*"); !slices.Equal(files, []string{path, rawOf(path)}) {
		t.Errorf("what cannot be compressed became %v", files)
	}

	<-s.packs // queued when its attempt ended

	if s.Sweep(t.Context(), time.Now()); len(s.packs) != 0 {
		t.Error("what compressing did not make smaller is compressed again")
	}
}

// The sweep counts all files of an output, keeps them as long as its task requests, but no longer than the node
// does, and leaves none of them.
func TestSpool_SweepsAllOfAnOutput(t *testing.T) {
	for name, c := range map[string]struct {
		keep time.Duration
		age  time.Duration
		gone bool
	}{
		"young": {0, time.Minute, false}, "old": {0, 3 * time.Hour, true},
		"kept shorter":             {time.Hour, 90 * time.Minute, true},
		"kept shorter, but young":  {time.Hour, 30 * time.Minute, false},
		"kept longer than allowed": {100 * time.Hour, 3 * time.Hour, true},
	} {
		s := New(Config{Dir: t.TempDir(), MaxAge: 2 * time.Hour})
		path, _ := s.Path("default", "job", "r1", 1)
		o := s.NewOutput(path, task.Output{Keep: task.Duration(c.keep)})

		for i := range 2000 {
			o.addOutput(lines(100), stream(i%2+1))
		}

		o.Close()

		if err := s.packOutput(t.Context(), path); err != nil {
			t.Fatal(err)
		}

		s.Sweep(t.Context(), time.Now())
		want := int64(0)
		files, _ := filepath.Glob(filepath.Dir(path) + "/*")
		for _, f := range files {
			info, _ := os.Stat(f)
			want += onDisk(info.Size())
		}

		if got := s.used.Load(); got != want || want <= blockSize {
			t.Errorf("%s: %d bytes are counted of %d: %v", name, got, want, files)
		}

		s.Sweep(t.Context(), time.Now().Add(c.age))
		files, _ = filepath.Glob(s.root + "/*")
		if (len(files) == 0) != c.gone {
			t.Errorf("%s: there are %v", name, files)
		}
	}
}

// If an output is compressed after a sweep has read the directory, the sweep finds only its marker files. It must
// not remove everything because of that.
func TestSweep_LeavesWhatWasCompressedMeanwhile(t *testing.T) {
	s, path := spoolWith(t, lines(5*blockSize), task.Output{Keep: task.Duration(time.Hour)}, Config{})
	if err := s.packOutput(t.Context(), path); err != nil {
		t.Fatal(err)
	}

	if s.isOutdated(spooled{path: path, until: time.Now().Add(time.Hour)}, time.Now()) {
		t.Error("it is removed")
	}

	if err := os.Remove(packedPath(path)); err != nil {
		t.Fatal(err)
	}

	if !s.isOutdated(spooled{path: path, until: time.Now().Add(time.Hour)}, time.Now()) {
		t.Error("what is beside an output that is gone is left for ever")
	}
}

// On a full disk, an output cannot be compressed, and stays as it is.
func TestPack_FullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("carillon-test", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skip("a disk of its own takes root")
	}

	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })

	text := make([]byte, 1_000_000)
	s, path := spoolWith(t, text, task.Output{}, Config{Dir: dir})

	info, err := os.Stat(path)
	if err != nil || info.Size() < 100<<10 || info.Size() >= int64(len(text)) {
		t.Fatalf("what fitted is not there: %v, %v", info, err)
	}

	if err := s.packOutput(t.Context(), path); err != nil && !strings.Contains(err.Error(), "no space") {
		t.Error(err)
	}

	if got := readOutput(t, s, "r1"); strings.Trim(got, "\x00") != "" || len(got) < 100<<10 {
		t.Errorf("%d bytes are left of it", len(got))
	}
}
