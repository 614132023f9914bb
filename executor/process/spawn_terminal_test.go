package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carillonhq/carillon/executor/executortest"
)

// A process that has the daemon's terminal could inject input into it (TIOCSTI), and be stopped by it.
func TestSpawn_WithoutTheTerminalOfTheDaemon(t *testing.T) {
	t.Parallel()
	const line = `if (: </dev/tty) 2>/dev/null; then echo has; else echo none; fi >@new; mv @new @tty; read -r pid name state parent group rest </proc/self/stat; echo $$ $group >@new; mv @new @group; sleep 300`

	for name, terminal := range map[string]*os.File{"started from one": newTerminal(t), "started without one": nil} {
		t.Run(name, func(t *testing.T) {
			d := startDaemonAt(t, terminal, line)
			if got := d.written("tty"); got != "none" {
				t.Errorf("the attempt %s a terminal", got)
			}

			if shell, group, _ := strings.Cut(d.written("group"), " "); shell != group {
				t.Errorf("the attempt's shell is %s, its group is %s", shell, group)
			}
		})
	}
}

// written returns what an attempt of the daemon has written to a file in its directory.
func (d *daemon) written(file string) (text string) {
	d.t.Helper()
	executortest.Eventually(d.t, "it writes "+file, func() bool {
		b, err := os.ReadFile(filepath.Join(d.dir, file))
		text = strings.TrimSpace(string(b))
		return err == nil
	})

	return text
}

// newTerminal creates a terminal, which is closed at the end of the test.
func newTerminal(t *testing.T) *os.File {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = keyboard.Close() })

	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}

	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}

	screen, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = screen.Close() })

	return screen
}
