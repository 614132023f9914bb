//go:build unix

package output

import (
	"os"

	"golang.org/x/sys/unix"
)

// TerminalWidth reports whether a stream is a terminal, and its width.
func TerminalWidth(stream any) (width int, is bool) {
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

// TerminalHeight returns the number of lines of a terminal, or 0 if the stream is not a terminal.
func TerminalHeight(stream any) int {
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
