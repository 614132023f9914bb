package spool

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Pipes are the reading ends of what an attempt prints: one pipe, or one for each of its
// streams.
type Pipes struct {
	pipes []*os.File
}

// NewPipes makes the pipes, and returns the writing ends for the child, which are one if the
// streams are not to be told apart.
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

// CloseWriters closes the child's ends of the pipes.
func CloseWriters(out, errs int) {
	unix.Close(out)
	if errs != out {
		unix.Close(errs)
	}
}

// newPipe makes a pipe of which the runtime polls the reading end; the writing
// end is for the child, whose programs expect it to block.
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

// SetReadDeadline ends a drain at that time.
func (o *Pipes) SetReadDeadline(at time.Time) error {
	var errs []error
	for _, p := range o.pipes {
		errs = append(errs, p.SetReadDeadline(at))
	}
	return errors.Join(errs...)
}

// Close closes the reading ends.
func (o *Pipes) Close() error {
	var errs []error
	for _, p := range o.pipes {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// CopyTo reads all that comes until its end, or until its deadline, which is set when
// the attempt is over and something else may still hold the other end. What is in the
// pipe by then is read, too: it was printed in time, however busy the node is.
func (o *Pipes) CopyTo(into *Output) {
	if len(o.pipes) == 1 {
		into.drainPipe(o.pipes[0], mergedStream)
		return
	}

	var wg sync.WaitGroup
	wg.Go(func() { into.drainPipe(o.pipes[1], stderr) })
	into.drainPipe(o.pipes[0], stdout)
	wg.Wait()
}

var bufferPool = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

func (o *Output) drainPipe(pipe *os.File, from stream) {
	rc, err := pipe.SyscallConn()
	if err != nil {
		return // only if it is closed
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

// drainRest takes what a pipe holds, and no more: somebody may go on writing.
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

// A flood is let through at some half a GB a second (a sleep of a millisecond takes
// nearly two): without a pause its reader and its writer would have the cores for
// themselves, and other attempts take several times as long.
const (
	paceBytes = 1 << 20
	pacePause = time.Millisecond
)

// floodPipe is how large the pipe of a flood is made: the kernel's memory, as long as
// it lasts.
const floodPipe = 1 << 20

type pace struct{ bytes int }

func (p *pace) addBytes(n int) {
	if p.bytes += n; p.bytes >= paceBytes {
		p.bytes = 0
		time.Sleep(pacePause)
	}
}

// readPipe takes what a pipe holds now. 0 is its end.
func (o *Output) readPipe(fd int, from stream) (int, error) {
	dropped := o.discardPipe(fd)
	buf := bufferPool.Get().(*[]byte) // only while there is something to read: many attempts say nothing
	defer bufferPool.Put(buf)

	b := *buf
	if dropped > 0 {
		b = b[:tailMemory] // if there is more, it is dropped next
	}

	n, err := readFD(fd, b)
	if n > 0 {
		o.addOutput(b[:n], from)
	}

	if dropped > 0 {
		return dropped + max(n, 0), nil // an end is seen next time
	}

	return n, err
}

// discardPipe throws away what a pipe holds of an output of which nothing more is kept, but
// for its end: that goes into the attempt's record, and there may be no more. The
// bytes are not even looked at: they cost what moving a page's reference does.
func (o *Output) discardPipe(fd int) int {
	o.mu.Lock()
	defer o.mu.Unlock()

	if !o.keepsNothing() || o.matcher != nil && !o.matcher.Settled() { // who looks for something looks at all of it
		return 0
	}

	held, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil || held <= 2*tailMemory {
		return 0
	}

	if o.null == nil {
		if o.null, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
			return 0 // then they are read
		}
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, floodPipe) // fewer turns; without it there are more
	}

	n, err := unix.Splice(fd, nil, int(o.null.Fd()), nil, held-tailMemory, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
	if err != nil || n <= 0 {
		return 0
	}

	o.bytes += n
	o.last = o.last[:0] // what comes does not follow on it
	o.spool.dropped.Add(float64(n))

	return int(n)
}

func readFD(fd int, b []byte) (int, error) {
	for {
		n, err := syscall.Read(fd, b)
		if err != syscall.EINTR {
			return n, err
		}
	}
}
