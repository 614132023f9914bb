package output

import (
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/term"
)

// TerminalWidth reports whether a stream is a terminal, and its width, or 0 if that is not known.
func TerminalWidth(stream any) (width int, is bool) {
	width, _, is = terminalSize(stream)
	return width, is
}

// TerminalHeight returns the number of lines of a terminal, or 0 if the stream is not a terminal.
func TerminalHeight(stream any) int {
	_, height, _ := terminalSize(stream)
	return height
}

func terminalSize(stream any) (width, height int, is bool) {
	f, ok := stream.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0, 0, false
	}

	enableEscapes(f)

	width, height, err := term.GetSize(int(f.Fd()))
	if err != nil { // Windows knows the size only of outputs
		return 0, 0, true
	}

	return width, height, true
}

// UserCommand returns a command line of the user, such as that of an editor, with additional arguments. A shell interprets the line. On
// Windows, which has no such shell, its words are separated by spaces.
func UserCommand(line string, args ...string) *exec.Cmd {
	if runtime.GOOS == "windows" {
		words := append(strings.Fields(line), args...)
		return exec.Command(words[0], words[1:]...)
	}

	return exec.Command("/bin/sh", append([]string{"-c", line + ` "$@"`, "carillon"}, args...)...)
}
