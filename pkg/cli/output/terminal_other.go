//go:build !windows

package output

import "os"

// enableEscapes does nothing: terminals interpret escape sequences, unless TERM is dumb.
func enableEscapes(*os.File) {}
