//go:build !unix

package output

// TerminalWidth always reports that there is no terminal on this system. Output is plain, and nothing is asked.
func TerminalWidth(any) (width int, is bool) { return 0, false }

// TerminalHeight always returns 0 on this system.
func TerminalHeight(any) int { return 0 }
