package output

import (
	"os"

	"golang.org/x/sys/windows"
)

// enableEscapes makes a console interpret escape sequences, such as those of colors. Only outputs have a screen buffer. The same bit of
// the mode of an input means something else.
func enableEscapes(f *os.File) {
	console := windows.Handle(f.Fd())
	var info windows.ConsoleScreenBufferInfo
	var mode uint32
	if windows.GetConsoleScreenBufferInfo(console, &info) != nil || windows.GetConsoleMode(console, &mode) != nil {
		return
	}

	_ = windows.SetConsoleMode(console, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) // the first consoles with it are those of Windows 10
}
