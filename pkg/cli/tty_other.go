//go:build !unix

package cli

// terminal never finds one here: output is plain and nothing is asked.
func terminal(any) (width int, is bool) { return 0, false }

func terminalHeight(any) int { return 0 }
