//go:build unix

package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminal reports whether a stream is a terminal, and how wide it is.
func terminal(stream any) (width int, is bool) {
	f, ok := stream.(*os.File)
	if !ok {
		return 0, false
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(size.Col), true
}

// terminalHeight is how many lines a terminal has; 0 if a stream is none.
func terminalHeight(stream any) int {
	f, ok := stream.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Row)
}
