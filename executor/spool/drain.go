package spool

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Pipes holds the read ends of an attempt's output: one pipe for both streams, or one for each
// stream.
type Pipes struct {
	pipes []*os.File // both streams, or stdout and stderr
}

// NewPipes creates the pipes and returns the write ends for the child. If apart is false, both write ends are the same
// descriptor. The caller closes them with CloseWriters after the fork.
func NewPipes(apart bool) (o *Pipes, out, errs int, err error) {
	o = &Pipes{}
	r, out, err := newPipe()
	if err != nil {
		return nil, 0, 0, err
	}

	o.pipes = append(o.pipes, r)

	if !apart {
		return o, out, out, nil
	}
	if r, errs, err = newPipe(); err != nil {
		return nil, 0, 0, errors.Join(err, unix.Close(out), o.Close())
	}

	o.pipes = append(o.pipes, r)

	return o, out, errs, nil
}

// CloseWriters closes this process's copies of the write ends.
func CloseWriters(out, errs int) {
	unix.Close(out)
	if errs != out {
		unix.Close(errs)
	}
}

// newPipe creates a pipe. The read end is non-blocking, so that Go's runtime polls it. The write
// end is blocking, because the child's programs expect that.
func newPipe() (*os.File, int, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, 0, err
	}

	if _, err := unix.FcntlInt(uintptr(p[0]), unix.F_SETFL, unix.O_NONBLOCK); err != nil {
		err = os.NewSyscallError("fcntl", err)
		return nil, 0, errors.Join(err, unix.Close(p[0]), unix.Close(p[1]))
	}

	return os.NewFile(uintptr(p[0]), "output"), p[1], nil
}

// SetReadDeadline makes CopyTo stop at that time.
func (pi *Pipes) SetReadDeadline(at time.Time) error {
	var errs []error
	for _, p := range pi.pipes {
		errs = append(errs, p.SetReadDeadline(at))
	}
	return errors.Join(errs...)
}

// Close closes the read ends.
func (pi *Pipes) Close() error {
	var errs []error
	for _, p := range pi.pipes {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// CopyTo copies the pipes to an output until they end, or until the deadline of SetReadDeadline. The deadline is for an
// attempt that has ended while another process still holds the write end. What the
// pipe contains at the deadline is copied, too, because it was printed in time even if the node is busy.
func (pi *Pipes) CopyTo(into *Output) {
	if len(pi.pipes) == 1 {
		into.drainPipe(pi.pipes[0], mergedStream)
		return
	}

	var wg sync.WaitGroup
	wg.Go(func() { into.drainPipe(pi.pipes[1], stderr) })
	into.drainPipe(pi.pipes[0], stdout)
	wg.Wait()
}

// bufferPool holds read buffers of 32 KiB.
var bufferPool = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// drainPipe copies one pipe; see CopyTo.
func (o *Output) drainPipe(pipe *os.File, from stream) {
	rc, err := pipe.SyscallConn()
	if err != nil {
		return // the pipe was closed
	}

	var p pace

	for more := true; more; {
		n := 0
		err = rc.Read(func(fd uintptr) (ready bool) {
			var rerr error
			if n, rerr = o.readPipe(int(fd), from); errors.Is(rerr, syscall.EAGAIN) {
				return false
			}

			more = n > 0

			return true
		})

		more = more && err == nil
		p.addBytes(n)
	}

	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = rc.Control(func(fd uintptr) { o.drainRest(int(fd), from) })
	}
}

// drainRest copies what a pipe contains now, and no more, because another process may continue to write.
func (o *Output) drainRest(fd int, from stream) {
	held, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	for err == nil && held > 0 {
		var n int
		if n, err = o.readPipe(fd, from); n <= 0 {
			return
		}
		held -= n
	}
}

// An attempt that prints without pause is read at about half a GB a second (a sleep of one millisecond takes
// nearly two). Without the pauses, the reader and the writer of the pipe would occupy two cores, and
// other attempts would take several times as long.
const (
	paceBytes = 1 << 20 // bytes between two pauses
	pacePause = time.Millisecond
)

// floodPipe is the size in bytes to which the pipe of such an attempt is enlarged once its output is not stored any
// more, so that fewer reads are needed. It is kernel memory, for as long as the pipe exists.
const floodPipe = 1 << 20

// pace inserts a pause after each paceBytes.
type pace struct{ bytes int }

func (p *pace) addBytes(n int) {
	if p.bytes += n; p.bytes >= paceBytes {
		p.bytes = 0
		time.Sleep(pacePause)
	}
}

// readPipe processes what a pipe contains now and returns the number of bytes. It returns 0 at the end of the pipe, and
// EAGAIN if the pipe is empty.
func (o *Output) readPipe(fd int, from stream) (int, error) {
	dropped := o.discardPipe(fd, from)
	buf := bufferPool.Get().(*[]byte) // held only while there is something to read, because many attempts print nothing
	defer bufferPool.Put(buf)

	b := *buf
	if dropped > 0 {
		b = b[:tailMemory] // the rest, if any, is discarded by the next call
	}

	n, err := readFD(fd, b)
	if n > 0 {
		o.addOutput(b[:n], from)
	}

	if dropped > 0 {
		return dropped + max(n, 0), nil // the next call finds the end of the pipe, or the error
	}

	return n, err
}

// discardPipe discards what a pipe contains if the output is not stored any more, and returns the number of bytes. It
// leaves the last bytes, which may be the end of the output and belong in the attempt's record. The
// kernel moves page references to /dev/null, so the bytes are not copied.
func (o *Output) discardPipe(fd int, from stream) int {
	o.mu.Lock()
	defer o.mu.Unlock()

	if !o.keepsNothing() || o.matcher != nil && !o.matcher.Settled() { // a matcher needs all lines
		return 0
	}

	// The first bytes that are left may be the end of the value of a secret, and are not kept either.
	leave := tailMemory
	if o.masks != nil {
		leave += o.masks[from].MaxHeld()
	}

	held, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil || held <= leave+tailMemory {
		return 0
	}

	if o.null == nil {
		if o.null, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
			return 0 // the caller reads the bytes instead
		}
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, floodPipe) // an optimization, which may fail
	}

	n, err := unix.Splice(fd, nil, int(o.null.Fd()), nil, held-leave, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
	if err != nil || n <= 0 {
		return 0
	}

	o.bytes += n
	o.last = o.last[:0] // the next bytes do not continue what was kept
	if o.masks != nil {
		o.masks[from].Restart()
	}
	o.spool.dropped.Add(float64(n))

	return int(n)
}

// readFD reads from a descriptor and repeats an interrupted call.
func readFD(fd int, b []byte) (int, error) {
	for {
		n, err := syscall.Read(fd, b)
		if err != syscall.EINTR {
			return n, err
		}
	}
}
