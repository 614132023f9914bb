package spool

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/pkg/clock"
)

// A compressed output is in the seekable format of zstd: frames that contain packFrame bytes
// each, which any zstd decoder reads one after the other, and a skippable frame with a table of
// their lengths. So the end of an output can be read without its beginning.
const (
	packFrame = 256 << 10 // bytes of output in a frame
	packQueue = 4096      // maximum number of outputs that wait; a sweep finds the others
	// packShare is how many times as long the packer pauses as it works. It uses a fifth of a core.
	packShare = 4

	skippableMagic = 0x184D2A5E // magic number of the skippable frame
	seekableMagic  = 0x8F92EAB1 // magic number at the end of the file
	seekFooter     = 9          // bytes: number of frames, descriptor, magic number
	seekEntry      = 8          // bytes of a table entry: compressed and uncompressed length
)

// toPack queues an output to be compressed. If the queue is full, a
// later sweep finds the output.
func (s *Spool) toPack(log string) {
	if s.cfg.Uncompressed {
		return
	}

	select {
	case s.packs <- log:
	default:
	}
}

// runPacker compresses one output after the other until ctx ends. It limits its share of a core by pauses after each
// frame. A thread with a low priority would delay the whole program,
// because Go's garbage collector waits for every thread.
func (s *Spool) runPacker(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case log := <-s.packs:
			if err := s.packOutput(ctx, log); err != nil && ctx.Err() == nil {
				s.log.Warn("cannot compress output", zap.String("path", log), zap.Error(err))
			}
		}
	}
}

// packOutput replaces an output by its compressed file if that saves a block; otherwise it marks the output as raw.
// The compressed file gets its final name only when it is on disk, so readers find a complete file
// under one of the two names at any time.
func (s *Spool) packOutput(ctx context.Context, log string) error {
	in, err := os.Open(log)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed or compressed meanwhile
	}
	if err != nil {
		return err
	}

	defer in.Close()

	was, err := in.Stat()
	if err != nil || !was.Mode().IsRegular() {
		return err
	}

	temp := packedPath(log) + ".tmp"
	out, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}

	defer out.Close()

	size, err := compressFile(ctx, in, was.Size(), out)
	switch {
	case err != nil:
	case onDisk(size) >= onDisk(was.Size()):
		err = s.leaveRaw(log)
	default:
		if err = s.copyMetadata(in, out, was); err == nil {
			var done bool
			if done, err = s.replaceWithPacked(log, was); done {
				s.used.Add(onDisk(size) - onDisk(was.Size()))
				return nil
			}
		}
	}

	return errors.Join(err, os.Remove(temp))
}

// copyMetadata copies the index of times and the modification time to the compressed file, and syncs it to disk.
func (s *Spool) copyMetadata(in, out *os.File, was fs.FileInfo) error {
	var b [timesSmall]byte
	if n, err := unix.Fgetxattr(int(in.Fd()), timesAttr, b[:]); err == nil && n > 0 {
		if err := unix.Fsetxattr(int(out.Fd()), timesAttr, b[:n], 0); err != nil {
			return err
		}
	}

	return errors.Join(os.Chtimes(out.Name(), was.ModTime(), was.ModTime()), unix.Fdatasync(int(out.Fd())))
}

// replaceWithPacked renames the compressed file to its final name and removes the output. It does nothing and returns
// false if the output was removed or replaced since it was read.
func (s *Spool) replaceWithPacked(log string, was fs.FileInfo) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	is, err := os.Lstat(log)
	if _, active := s.active[log]; active || err != nil || !os.SameFile(was, is) || is.Size() != was.Size() {
		return false, nil
	}
	if err := os.Rename(packedPath(log)+".tmp", packedPath(log)); err != nil {
		return false, err
	}

	return true, os.Remove(log)
}

// leaveRaw marks an output that compression does not make smaller, so that no sweep tries it again.
func (s *Spool) leaveRaw(log string) error {
	s.mu.Lock() // the output may be removed or begin again
	defer s.mu.Unlock()

	if _, err := os.Lstat(log); s.active[log] != nil || err != nil {
		return nil
	}

	return os.WriteFile(rawOf(log), nil, 0o600)
}

// compressFile compresses in to out and returns the length of the result. has is the number of bytes in in; bytes that
// are appended meanwhile may be missing. It pauses after each frame and returns an error when ctx ends.
func compressFile(ctx context.Context, in io.Reader, has int64, out io.Writer) (size int64, err error) {
	enc, err := sharedEncoder()
	if err != nil {
		return 0, err
	}

	// The table begins with eight bytes for the header of the skippable frame, which are filled in at the end.
	raw, frame, table := make([]byte, min(has, packFrame)), []byte(nil), make([]byte, 8)
	for n := packFrame; n == packFrame; {
		began := time.Now()
		n, err = io.ReadFull(in, raw)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return 0, err
		}
		if n == 0 {
			break
		}

		frame = enc.EncodeAll(raw[:n], frame[:0])
		if _, err := out.Write(frame); err != nil {
			return 0, err
		}

		size += int64(len(frame))
		table = binary.LittleEndian.AppendUint32(table, uint32(len(frame)))
		table = binary.LittleEndian.AppendUint32(table, uint32(n))

		if !clock.Sleep(ctx, packShare*time.Since(began)) {
			return 0, ctx.Err()
		}
	}

	frames := (len(table) - 8) / seekEntry
	table = binary.LittleEndian.AppendUint32(table, uint32(frames))
	table = binary.LittleEndian.AppendUint32(append(table, 0), seekableMagic)
	binary.LittleEndian.PutUint32(table, skippableMagic)
	binary.LittleEndian.PutUint32(table[4:], uint32(len(table)-8))
	_, err = out.Write(table)

	return size + int64(len(table)), err
}

// sharedEncoder returns the one encoder that all calls use. It needs much more memory than most outputs have bytes.
var sharedEncoder = sync.OnceValues(func() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(packFrame))
})

// errDamaged means that a compressed output is incomplete or malformed.
var errDamaged = errors.New("the compressed output is damaged")

// packedReader reads a compressed output. It holds one uncompressed frame in memory. It is not safe for concurrent use.
type packedReader struct {
	f      *os.File
	frames []packedFrame
	size   int64  // bytes of the output
	at     int64  // position in the output
	have   int    // index of the frame in text; -1: none
	text   []byte // an uncompressed frame
}

// packedFrame is an entry of the table.
type packedFrame struct {
	at   int64 // its position in the file
	from int64 // the position of its first byte in the output
	long int   // its length in the file
	text int   // the number of bytes of output in it
}

// openPacked opens a compressed output. It returns an error that wraps errDamaged if the file is truncated or was not
// written by compressFile.
func openPacked(path string) (*packedReader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}

	p := &packedReader{f: f, have: -1}
	if err := p.readTable(); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}

	return p, nil
}

// readTable reads and checks the table at the end of the file. The lengths in it must add up to the size of the file, so
// a truncated file is rejected.
func (p *packedReader) readTable() error {
	end, err := p.f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}

	var footer [seekFooter]byte
	if _, err := p.f.ReadAt(footer[:], max(end-seekFooter, 0)); err != nil {
		return errDamaged
	}

	frames := int64(binary.LittleEndian.Uint32(footer[:]))
	long := frames*seekEntry + seekFooter
	if binary.LittleEndian.Uint32(footer[5:]) != seekableMagic || footer[4] != 0 || long+8 > end {
		return errDamaged
	}

	table := make([]byte, 8+long)
	if _, err := p.f.ReadAt(table, end-long-8); err != nil {
		return err
	}

	at := int64(0)
	for i := range frames {
		// All frames but the last are full. The limit on the compressed length bounds the memory for a damaged file.
		e := table[8+i*seekEntry:]
		f := packedFrame{at: at, from: p.size, long: int(binary.LittleEndian.Uint32(e)), text: int(binary.LittleEndian.Uint32(e[4:]))}
		if f.text > packFrame || f.text < packFrame && i < frames-1 || f.long > 2*packFrame {
			return errDamaged
		}

		p.frames, p.size, at = append(p.frames, f), p.size+int64(f.text), at+int64(f.long)
	}

	if at != end-long-8 {
		return errDamaged
	}

	return nil
}

// Seek implements io.Seeker. A position after the end is valid; reads there return io.EOF.
func (p *packedReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += p.at
	case io.SeekEnd:
		offset += p.size
	}

	if offset < 0 {
		return 0, errors.New("seek before the beginning")
	}

	p.at = offset

	return offset, nil
}

// Read implements io.Reader. It returns at most the rest of one frame.
func (p *packedReader) Read(b []byte) (int, error) {
	if p.at >= p.size {
		return 0, io.EOF
	}

	i := int(p.at / packFrame)
	if err := p.loadFrame(i); err != nil {
		return 0, err
	}

	n := copy(b, p.text[p.at-p.frames[i].from:])
	p.at += int64(n)

	return n, nil
}

// loadFrame uncompresses frame i into p.text, unless it is there already.
func (p *packedReader) loadFrame(i int) error {
	if p.have == i {
		return nil
	}

	f := p.frames[i]
	frame := make([]byte, f.long)
	if _, err := p.f.ReadAt(frame, f.at); err != nil {
		return err
	}

	dec, err := sharedDecoder()
	if err != nil {
		return err
	}

	p.have = -1
	p.text, err = dec.DecodeAll(frame, p.text[:0])
	if err != nil || len(p.text) != f.text {
		return errors.Join(errDamaged, err)
	}

	p.have = i

	return nil
}

// Close closes the file.
func (p *packedReader) Close() error { return p.f.Close() }

// sharedDecoder returns the one decoder that all readers use; it keeps no state between calls. Its memory limit is the
// size of a frame, whatever a damaged frame claims.
var sharedDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxMemory(packFrame))
})
