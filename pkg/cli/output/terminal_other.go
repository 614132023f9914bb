//go:build !unix

package output

// TerminalWidth never finds one here: output is plain and nothing is asked.
func TerminalWidth(any) (width int, is bool) { return 0, false }

// TerminalHeight never finds one here.
func TerminalHeight(any) int { return 0 }
