// Package complete offers words when the user presses TAB: names from the server, and values
// of flags. It waits for a moment only, remembers what it found for a few seconds, and is
// silent about errors.
package complete
