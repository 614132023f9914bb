// Package watch shows a list and keeps it up to date. On a terminal it redraws the list; otherwise it prints a
// line for each change. Events only tell that something may have changed; the current state is then read.
package watch
