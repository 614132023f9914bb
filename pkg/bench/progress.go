package bench

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// progress shows what happens: on a terminal in one line that is overwritten, otherwise in a line for each step.
type progress struct {
	out      io.Writer
	terminal bool

	mu   sync.Mutex
	last string    // the last step, which is printed once
	at   time.Time // when the line was last overwritten
}

// newProgress returns the progress display for a stream.
func newProgress(out io.Writer) *progress {
	p := &progress{out: out}
	if f, ok := out.(*os.File); ok {
		_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		p.terminal = err == nil
	}

	return p
}

// beginStep shows the step that begins.
func (p *progress) beginStep(format string, args ...any) {
	p.printLine(true, fmt.Sprintf(format, args...))
}

// showStatus shows the state of a step, on a terminal only.
func (p *progress) showStatus(format string, args ...any) {
	p.printLine(false, fmt.Sprintf(format, args...))
}

// printLine prints a step, or on a terminal overwrites the line at most ten times a second.
func (p *progress) printLine(step bool, line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.terminal && step && line != p.last:
		fmt.Fprintln(p.out, line)
		p.last = line
	case p.terminal && (step || time.Since(p.at) > 100*time.Millisecond):
		fmt.Fprintf(p.out, "\r\x1b[K%s", line)
		p.at = time.Now()
	}
}

// Write writes text of others, such as a log, in the place of the line.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}

	return p.out.Write(b)
}

// clearLine removes the line.
func (p *progress) clearLine() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
