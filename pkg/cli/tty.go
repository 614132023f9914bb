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
